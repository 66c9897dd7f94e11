/* Bump allocation by lifetime: run, step, scratch. An arena without memory measures: the same layout function runs
 * once to learn the size and once to place the pointers. Blocks are 64-byte aligned; gaps are poisoned under ASan. */
#ifndef DMUON_BASE_ARENA_H
#define DMUON_BASE_ARENA_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

#define ARENA_ALIGN 64

typedef struct Arena {
    char *base;      /* owned when made by arena_init; NULL while measuring  */
    size_t capacity; /* bytes                                                */
    size_t used;     /* bytes, always a multiple of ARENA_ALIGN              */
    size_t high;     /* highest `used` so far                                */
} Arena;

/* Allocates `capacity` bytes, zeroed (fresh pages). STATUS_NO_MEMORY names the bytes and `what`. */
DM_NODISCARD Status arena_init(Arena *arena, size_t capacity, const char *what);
void arena_deinit(Arena *arena);

/* The next `nbytes`, 64-byte aligned, not cleared. NULL while measuring (base == NULL); running over is our bug.
 * A request of 0 bytes is legal. */
void *arena_push(Arena *arena, size_t nbytes);
#define ARENA_PUSH(arena, type, count) ((type *)arena_push((arena), (size_t)(count) * sizeof(type)))

/* Mark and rewind. */
size_t arena_mark(const Arena *arena);
void arena_rewind(Arena *arena, size_t mark);

/* Heap blocks for what has no arena (setup-time tables, strings). Zeroed; out of memory is fatal. The only malloc
 * of the tree. heap_free accepts NULL. */
void *heap_alloc(size_t nbytes);
void *heap_realloc(void *block, size_t nbytes);
char *heap_strdup(const char *text);
void heap_free(void *block);
#define HEAP_ALLOC(type, count) ((type *)heap_alloc((size_t)(count) * sizeof(type)))

#endif
