/* Hashes of this rank's pieces, by tensor, beside those of the ranks that hold copies of them. */
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

/* The rank in the world of a member of one of this rank's axes. */
static int rank_on(const Mesh *mesh, Axis axis, int member) {
    MeshCoord at = mesh->coord;
    if (axis == AXIS_TP)
        at.tp = member;
    if (axis == AXIS_REPLICATE)
        at.replicate = member;
    if (axis == AXIS_DATA)
        at = (MeshCoord){.replicate = member / mesh->shape.shard, .shard = member % mesh->shape.shard, .tp = at.tp};
    return mesh_rank(mesh->shape, at);
}

/* all [members][n]: everybody's hashes. Over tp only what it does not cut is the same. */
static Status compare(const Session *s, Axis axis, const uint64_t *all, int n) {
    const int count = s->params.count, members = comm_size(s->mesh.axis[axis]);
    for (int m = 1; m < members; m++)
        for (int i = 0; i < n; i++) {
            const Param *param = &s->params.row[i % count];
            if (all[(int64_t)m * n + i] == all[i] || (axis == AXIS_TP && param->tp_dim >= 0))
                continue;
            return STATUS_FAIL(
                STATUS_COMM,
                "step %" PRId64 ": tensor %s%s differs between rank %d and rank %d, which hold copies of it (axis %s): "
                "memory or network of one of them is not to be trusted; resume from a checkpoint before it",
                s->progress.step, state_prefix((StateKind)(i / count)), param->name, rank_on(&s->mesh, axis, 0),
                rank_on(&s->mesh, axis, m), axis_name(axis));
        }
    return STATUS_OK;
}

static Status check_axis(const Session *s, Axis axis, const uint64_t *mine, int n) {
    Comm *comm = s->mesh.axis[axis];
    uint64_t *all = HEAP_ALLOC(uint64_t, (int64_t)comm_size(comm) * n);
    host_all_gather(comm, mine, all, n * (int64_t)sizeof *all);
    const Status status = compare(s, axis, all, n);
    heap_free(all);
    return comm_agree(s->world->comm, status);
}

Status replicas_check(Session *s) {
    const int n = STATE_KIND_COUNT * s->params.count;
    Walk walk = {.session = s, .bounce = HEAP_ALLOC(float, BOUNCE), .hash = HEAP_ALLOC(uint64_t, n)};
    parallel_drain(s->parallel);
    store_visit(parallel_store(s->parallel), hash_piece, &walk);
    Status status = check_axis(s, s->plan.ddp ? AXIS_DATA : AXIS_REPLICATE, walk.hash, n);
    if (status == STATUS_OK)
        status = check_axis(s, AXIS_TP, walk.hash, n);
    heap_free(walk.hash);
    heap_free(walk.bounce);
    return status;
}
