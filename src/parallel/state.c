/* Whole-state operations through the list of pieces: initial weights and the hash. */
#include <string.h>

#include "base/fatal.h"
#include "base/hash.h"
#include "model/init.h"
#include "parallel/internal.h"

#define BOUNCE 65536 /* elements that pass through the host at a time */

typedef struct Walk {
    Parallel *p;
    uint64_t seed, sum;
    float *bounce; /* [BOUNCE] host */
} Walk;

static void init_piece(void *arg, const StatePiece *piece) {
    Walk *walk = arg;
    for (int64_t at = 0; at < piece->count; at += BOUNCE) {
        const int64_t n = piece->count - at < BOUNCE ? piece->count - at : BOUNCE;
        if (piece->kind == STATE_WEIGHT)
            init_fill(walk->p->plan->params, piece->param, walk->seed, piece->first + at, n, walk->bounce);
        else
            memset(walk->bounce, 0, (size_t)n * sizeof(float));
        device_copy_from_host(walk->p->compute, piece->ptr + at, walk->bounce, (size_t)n * sizeof(float));
    }
}

void parallel_init_weights(Parallel *p, uint64_t seed) {
    Walk walk = {.p = p, .seed = seed, .bounce = HEAP_ALLOC(float, BOUNCE)};
    store_visit(&p->store, init_piece, &walk);
    heap_free(walk.bounce);
}

static void hash_piece(void *arg, const StatePiece *piece) {
    Walk *walk = arg;
    if (!piece->primary)
        return;
    const char *name = walk->p->plan->params->row[piece->param].name;
    const char *prefix = state_prefix(piece->kind);
    const uint64_t name_hash = hash_bytes(name, strlen(name), hash_bytes(prefix, strlen(prefix), 0));
    for (int64_t at = 0; at < piece->count; at += BOUNCE) {
        const int64_t n = piece->count - at < BOUNCE ? piece->count - at : BOUNCE;
        device_copy_to_host(walk->p->compute, walk->bounce, piece->ptr + at, (size_t)n * sizeof(float));
        walk->sum += hash_elements(name_hash, piece->first + at, walk->bounce, n);
    }
}

uint64_t parallel_hash(Parallel *p, int64_t step, int64_t adamw_t) {
    Walk walk = {.p = p, .bounce = HEAP_ALLOC(float, BOUNCE)};
    parallel_drain(p);
    store_visit(&p->store, hash_piece, &walk);
    host_sum_u64(p->mesh->world, &walk.sum, 1);
    heap_free(walk.bounce);
    return walk.sum + hash_mix64((uint64_t)step) + hash_mix64(hash_mix64((uint64_t)adamw_t));
}
