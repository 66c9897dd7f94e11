#include "base/arena.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/fatal.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#define POISON(addr, nbytes) __asan_poison_memory_region((addr), (nbytes))
#define UNPOISON(addr, nbytes) __asan_unpoison_memory_region((addr), (nbytes))
#else
#define POISON(addr, nbytes) ((void)(addr), (void)(nbytes))
#define UNPOISON(addr, nbytes) ((void)(addr), (void)(nbytes))
#endif

/* From here on large pages are asked for: fewer TLB misses in the matrix products. */
static const size_t HUGE_PAGES_FROM = (size_t)8 << 20;

static size_t round_up(size_t nbytes, size_t align) {
    DM_ASSERT(nbytes <= SIZE_MAX - (align - 1));
    return (nbytes + align - 1) / align * align;
}

/* An arena without bytes still has an address: a NULL base means measuring. */
static size_t mapped_bytes(size_t capacity) {
    const long page = sysconf(_SC_PAGESIZE);
    return round_up(capacity > 0 ? capacity : 1, (size_t)page);
}

/* Bytes that can be had without swapping, or SIZE_MAX where the kernel does not tell. */
static size_t available_bytes(void) {
    FILE *file = fopen("/proc/meminfo", "re");
    if (file == NULL)
        return SIZE_MAX;
    char line[256];
    size_t available = SIZE_MAX;
    unsigned long long kib = 0;
    while (available == SIZE_MAX && fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
            available = (size_t)kib * 1024;
    }
    (void)fclose(file);
    return available;
}

Status arena_init(Arena *arena, size_t capacity, const char *what) {
    *arena = (Arena){0};
    if (capacity > SIZE_MAX / 2)
        return STATUS_FAIL(STATUS_NO_MEMORY, "%s: %zu bytes are more than an address space holds", what, capacity);
    /* Fresh pages are promised, not given: without this check an overcommitted request would succeed here and the
     * process would be killed at the first touch. */
    const size_t available = available_bytes();
    if (capacity > available)
        return STATUS_FAIL(STATUS_NO_MEMORY, "%s: %zu bytes do not fit, %zu bytes of memory are available", what,
                           capacity, available);
    const size_t mapped = mapped_bytes(capacity);
    void *base = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return STATUS_FAIL(STATUS_NO_MEMORY, "%s: %zu bytes: %s", what, capacity, strerror(errno));
    if (capacity >= HUGE_PAGES_FROM)
        (void)madvise(base, mapped, MADV_HUGEPAGE);
    POISON(base, mapped);
    arena->base = base;
    arena->capacity = capacity;
    return STATUS_OK;
}

void arena_deinit(Arena *arena) {
    if (arena->base != NULL) {
        const size_t mapped = mapped_bytes(arena->capacity);
        UNPOISON(arena->base, mapped);
        (void)munmap(arena->base, mapped);
    }
    *arena = (Arena){0};
}

void *arena_push(Arena *arena, size_t nbytes) {
    const size_t begin = arena->used;
    const size_t size = round_up(nbytes, ARENA_ALIGN);
    DM_ASSERT(size <= SIZE_MAX - begin);
    arena->used = begin + size;
    if (arena->used > arena->high)
        arena->high = arena->used;
    if (arena->base == NULL)
        return NULL;
    /* The last block may end inside its alignment gap. */
    if (begin > arena->capacity || nbytes > arena->capacity - begin)
        fatal("internal error: an arena of %zu bytes has %zu in use and is asked for %zu more", arena->capacity, begin,
              nbytes);
    UNPOISON(arena->base + begin, nbytes);
    return arena->base + begin;
}

size_t arena_mark(const Arena *arena) {
    return arena->used;
}

void arena_rewind(Arena *arena, size_t mark) {
    DM_ASSERT(mark <= arena->used);
    if (arena->base != NULL) {
        const size_t end = arena->used < arena->capacity ? arena->used : arena->capacity;
        if (mark < end)
            POISON(arena->base + mark, end - mark);
    }
    arena->used = mark;
}

void *heap_alloc(size_t nbytes) {
    void *block = calloc(1, nbytes > 0 ? nbytes : 1);
    if (block == NULL)
        fatal("out of memory: %zu bytes", nbytes);
    return block;
}

void *heap_realloc(void *block, size_t nbytes) {
    void *moved = realloc(block, nbytes > 0 ? nbytes : 1);
    if (moved == NULL)
        fatal("out of memory: %zu bytes", nbytes);
    return moved;
}

char *heap_strdup(const char *text) {
    const size_t nbytes = strlen(text) + 1;
    return memcpy(heap_alloc(nbytes), text, nbytes);
}

void heap_free(void *block) {
    free(block);
}
