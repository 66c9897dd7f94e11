/* Rings of entries in mapped memory: the kernel keeps the pages of a file when the process is gone. */
#include "comm/flight.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/str.h"

_Static_assert(sizeof(FlightHeader) == 256 && sizeof(FlightEntry) == 160, "the layout is a file format");

/* Before a run directory is known, and in programs without one. */
static FlightFile own_memory = {.header = {.magic = "DMFLIGHT",
                                           .version = FLIGHT_VERSION,
                                           .rings = FLIGHT_RINGS,
                                           .slots = FLIGHT_SLOTS,
                                           .entry_bytes = sizeof(FlightEntry)}};
static FlightFile *_Atomic record = &own_memory;
static _Atomic uint64_t numbers;
static uint64_t used[FLIGHT_RINGS]; /* entries so far, by the ring's thread */

static void copy_name(char *dst, size_t capacity, const char *src) {
    const size_t len = strnlen(src, capacity - 1);
    memcpy(dst, src, len);
    memset(dst + len, 0, capacity - len);
}

FlightEntry *flight_begin(int ring, const FlightOperation *o) {
    FlightFile *file = atomic_load_explicit(&record, memory_order_acquire);
    FlightEntry *entry = &file->entry[ring][used[ring]++ % FLIGHT_SLOTS];
    atomic_store_explicit(&entry->number, 0, memory_order_relaxed);
    atomic_signal_fence(memory_order_release); /* a kill falls between two instructions */
    entry->sequence = o->sequence;
    entry->hash = o->hash;
    entry->step = o->step;
    entry->count = o->count;
    entry->nbytes = o->nbytes;
    entry->begin_ns = (int64_t)(clock_wall_s() * 1e9);
    atomic_store_explicit(&entry->end_ns, 0, memory_order_relaxed);
    entry->unit = o->unit;
    entry->root = o->root;
    entry->leader = o->leader;
    copy_name(entry->op, sizeof entry->op, o->op);
    copy_name(entry->axis, sizeof entry->axis, o->axis);
    copy_name(entry->what, sizeof entry->what, o->what);
    const uint64_t number = atomic_fetch_add_explicit(&numbers, 1, memory_order_relaxed) + 1;
    atomic_store_explicit(&entry->number, number, memory_order_release);
    return entry;
}

void flight_end(FlightEntry *entry) {
    atomic_store_explicit(&entry->end_ns, (int64_t)(clock_wall_s() * 1e9), memory_order_release);
}

void flight_path(char *path, size_t capacity, const char *dir, int rank) {
    str_format(path, capacity, "%s/rank-%05d.bin", dir, rank);
}

Status flight_open(const char *dir, int rank, int size, const char *host) {
    char path[1200];
    flight_path(path, sizeof path, dir, rank);
    TRY(file_make_dirs(dir, STATUS_CONFIG));
    const int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0)
        return STATUS_FAIL(STATUS_CONFIG, "%s: %s (the flight record; choose another run.dir)", path, strerror(errno));
    FlightHeader *header = &own_memory.header;
    header->rank = rank;
    header->size = size;
    header->pid = getpid();
    copy_name(header->host, sizeof header->host, host);
    /* Written, not only sized: a full disk shows here, not as a SIGBUS later. */
    const Status status = file_pwrite(fd, &own_memory, sizeof own_memory, 0, path, STATUS_CONFIG);
    void *at = MAP_FAILED;
    if (status == STATUS_OK)
        at = mmap(NULL, sizeof own_memory, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    const int reason = errno;
    close(fd);
    if (status == STATUS_OK && at == MAP_FAILED)
        return STATUS_FAIL(STATUS_CONFIG, "%s: %s (the flight record is a memory-mapped file; choose another run.dir)",
                           path, strerror(reason));
    if (status == STATUS_OK)
        atomic_store_explicit(&record, at, memory_order_release);
    return status;
}

static void set_state(FlightState state) {
    atomic_store_explicit(&atomic_load_explicit(&record, memory_order_acquire)->header.state, (int32_t)state,
                          memory_order_release);
}

void flight_close(void) {
    FlightFile *file = atomic_load_explicit(&record, memory_order_acquire);
    if (file == &own_memory)
        return;
    set_state(FLIGHT_CLOSED);
    atomic_store_explicit(&record, &own_memory, memory_order_release);
    munmap(file, sizeof *file);
}

void flight_failed(void) {
    set_state(FLIGHT_FAILED);
}

static const FlightEntry *newest(const FlightFile *file, int *ring) {
    const FlightEntry *best = NULL;
    uint64_t best_number = 0;
    bool best_open = false;
    for (int r = 0; r < FLIGHT_RINGS; r++)
        for (int i = 0; i < FLIGHT_SLOTS; i++) {
            const FlightEntry *entry = &file->entry[r][i];
            const uint64_t number = atomic_load(&entry->number);
            const bool is_open = atomic_load(&entry->end_ns) == 0;
            if (number == 0 || (best != NULL && (is_open != best_open ? !is_open : number < best_number)))
                continue;
            best = entry;
            best_number = number;
            best_open = is_open;
            *ring = r;
        }
    return best;
}

static void describe(const FlightEntry *entry, int ring, char *text, size_t capacity) {
    char step[32] = "", unit[24] = "";
    if (entry->step >= 0)
        str_format(step, sizeof step, "step %" PRId64 " ", entry->step);
    if (entry->unit >= 0)
        str_format(unit, sizeof unit, "unit %d ", entry->unit);
    str_format(text, capacity, "%s%sstream %s: %.16s '%.48s' on axis %.16s, %" PRId64 " bytes (%s)", step, unit,
               ring < STREAM_COUNT ? stream_name((StreamKind)ring) : "host", entry->op, entry->what, entry->axis,
               entry->nbytes, atomic_load(&entry->end_ns) == 0 ? "under way" : "finished");
}

int flight_last(const char *path, char *text, size_t capacity) {
    FlightFile *file = HEAP_ALLOC(FlightFile, 1);
    int state = -1, ring = 0;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        if (pread(fd, file, sizeof *file, 0) == (ssize_t)sizeof *file &&
            memcmp(file->header.magic, own_memory.header.magic, sizeof file->header.magic) == 0)
            state = atomic_load(&file->header.state);
        close(fd);
    }
    const FlightEntry *entry = state >= 0 ? newest(file, &ring) : NULL;
    if (entry != NULL)
        describe(entry, ring, text, capacity);
    else
        str_format(text, capacity, "no operation");
    heap_free(file);
    return state;
}
