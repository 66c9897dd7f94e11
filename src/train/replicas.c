/* Hashes of this rank's pieces, by tensor, beside those of the ranks that must hold the same. */
#include "train/replicas.h"

#include <inttypes.h>

#include "base/arena.h"
#include "base/hash.h"
#include "kernels/exact_math.h"

#define BOUNCE 65536 /* elements that pass through the host at a time */

typedef struct Walk {
    const Session *session;
    float *bounce;  /* [BOUNCE] host                 */
    uint64_t *hash; /* [kinds][parameters], 0 if none */
} Walk;

/* Copies of an owner's matrix hold what travelled: where that was bf16, the owner's is looked at in the same way. */
static bool compared_rounded(const Session *s, const StatePiece *piece) {
    return s->config.precision.wire == WIRE_BF16 && piece->kind == STATE_WEIGHT &&
           s->params.row[piece->param].role == ROLE_MUON;
}

static void hash_piece(void *arg, const StatePiece *piece) {
    const Walk *walk = arg;
    if (piece->kind == STATE_MOMENTUM) /* at the owner alone */
        return;
    Stream *compute = device_stream(walk->session->device, STREAM_COMPUTE);
    uint64_t *hash = &walk->hash[(int)piece->kind * walk->session->params.count + piece->param];
    for (int64_t at = 0; at < piece->count; at += BOUNCE) {
        const int64_t n = piece->count - at < BOUNCE ? piece->count - at : BOUNCE;
        device_copy_to_host(compute, walk->bounce, piece->ptr + at, (size_t)n * sizeof(float));
        for (int64_t i = 0; i < n && compared_rounded(walk->session, piece); i++)
            walk->bounce[i] = exact_from_bf16(exact_bf16(walk->bounce[i]));
        *hash += hash_elements(0, piece->first + at, walk->bounce, n);
    }
}

/* all [size][n]: the hashes of every rank of an axis. Over tp only tensors that it does not cut are alike. */
static Status compare(const Session *s, Axis axis, const uint64_t *all, int n) {
    const int count = s->params.count;
    const MeshCoord at = s->mesh.coord;
    for (int rank = 1; rank < comm_size(s->mesh.axis[axis]); rank++)
        for (int i = 0; i < n; i++) {
            const bool alike = axis != AXIS_TP || s->params.row[i % count].tp_dim < 0;
            if (alike && all[(int64_t)rank * n + i] != all[i])
                return STATUS_FAIL(
                    STATUS_COMM,
                    "step %" PRId64
                    ": tensor %s%s differs between the %s ranks 0 and %d beside (replicate %d, shard %d, tp "
                    "%d): memory or network of one of them is not to be trusted; resume from a checkpoint "
                    "before it",
                    s->progress.step, state_prefix((StateKind)(i / count)), s->params.row[i % count].name,
                    axis_name(axis), rank, at.replicate, at.shard, at.tp);
        }
    return STATUS_OK;
}

/* Keeps the first failure. Collective over the axis. */
static void compare_over(const Session *s, Axis axis, const uint64_t *hash, int n, Status *status) {
    uint64_t *all = HEAP_ALLOC(uint64_t, (int64_t)comm_size(s->mesh.axis[axis]) * n);
    host_all_gather(s->mesh.axis[axis], hash, all, n * (int64_t)sizeof *all);
    if (*status == STATUS_OK)
        *status = compare(s, axis, all, n);
    heap_free(all);
}

Status replicas_check(Session *s) {
    const int n = STATE_KIND_COUNT * s->params.count;
    Walk walk = {.session = s, .bounce = HEAP_ALLOC(float, BOUNCE), .hash = HEAP_ALLOC(uint64_t, n)};
    Status status = STATUS_OK;
    parallel_drain(s->parallel);
    store_visit(parallel_store(s->parallel), hash_piece, &walk);
    compare_over(s, AXIS_REPLICATE, walk.hash, n, &status);
    compare_over(s, AXIS_TP, walk.hash, n, &status);
    if (s->plan.ddp)
        compare_over(s, AXIS_SHARD, walk.hash, n, &status);
    heap_free(walk.hash);
    heap_free(walk.bounce);
    return comm_agree(s->world->comm, status);
}
