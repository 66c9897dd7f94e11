/* Hashes of this rank's pieces, by tensor, beside those of the other replicate rows. */
#include "train/replicas.h"

#include <inttypes.h>

#include "base/arena.h"
#include "base/hash.h"

#define BOUNCE 65536 /* elements that pass through the host at a time */

typedef struct Walk {
    const Session *session;
    float *bounce;  /* [BOUNCE] host                 */
    uint64_t *hash; /* [kinds][parameters], 0 if none */
} Walk;

static void hash_piece(void *arg, const StatePiece *piece) {
    const Walk *walk = arg;
    if (piece->kind == STATE_MOMENTUM) /* at the owner alone */
        return;
    Stream *compute = device_stream(walk->session->device, STREAM_COMPUTE);
    uint64_t *hash = &walk->hash[(int)piece->kind * walk->session->params.count + piece->param];
    for (int64_t at = 0; at < piece->count; at += BOUNCE) {
        const int64_t n = piece->count - at < BOUNCE ? piece->count - at : BOUNCE;
        device_copy_to_host(compute, walk->bounce, piece->ptr + at, (size_t)n * sizeof(float));
        *hash += hash_elements(0, piece->first + at, walk->bounce, n);
    }
}

/* all [rows][n]: the hashes of every replicate row of this shard. */
static Status compare(const Session *s, const uint64_t *all, int n) {
    const int count = s->params.count;
    for (int row = 1; row < s->mesh.shape.replicate; row++)
        for (int i = 0; i < n; i++)
            if (all[(int64_t)row * n + i] != all[i])
                return STATUS_FAIL(STATUS_COMM,
                                   "step %" PRId64
                                   ": tensor %s%s differs between the replicate rows 0 and %d of shard %d: memory or "
                                   "network of one of them is not to be trusted; resume from a checkpoint before it",
                                   s->progress.step, state_prefix((StateKind)(i / count)),
                                   s->params.row[i % count].name, row, s->mesh.coord.shard);
    return STATUS_OK;
}

Status replicas_check(Session *s) {
    const int n = STATE_KIND_COUNT * s->params.count, rows = s->mesh.shape.replicate;
    Walk walk = {.session = s, .bounce = HEAP_ALLOC(float, BOUNCE), .hash = HEAP_ALLOC(uint64_t, n)};
    uint64_t *all = HEAP_ALLOC(uint64_t, (int64_t)rows * n);
    parallel_drain(s->parallel);
    store_visit(parallel_store(s->parallel), hash_piece, &walk);
    host_all_gather(s->mesh.axis[AXIS_REPLICATE], walk.hash, all, n * (int64_t)sizeof *all);
    const Status status = comm_agree(s->world->comm, compare(s, all, n));
    heap_free(all);
    heap_free(walk.hash);
    heap_free(walk.bounce);
    return status;
}
