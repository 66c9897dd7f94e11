/* Collecting whole tensors at their writers. */
#include "checkpoint/snapshot.h"

#include <string.h>

#include "base/arena.h"
#include "base/fatal.h"

#define TAG_PIECES 11

void snapshot_create(Snapshot *snapshot, const SetTensors *set, int rank) {
    *snapshot = (Snapshot){.set = set, .data = HEAP_ALLOC(float *, set->count)};
    int64_t nelem = 0;
    for (int t = 0; t < set->count; t++)
        nelem += set->tensor[t].writer == rank ? set->tensor[t].numel : 0;
    snapshot->block = HEAP_ALLOC(float, nelem);
    snapshot->nbytes = (size_t)nelem * sizeof(float);
    nelem = 0;
    for (int t = 0; t < set->count; t++)
        if (set->tensor[t].writer == rank) {
            snapshot->data[t] = snapshot->block + nelem;
            nelem += set->tensor[t].numel;
        }
}

void snapshot_destroy(Snapshot *snapshot) {
    heap_free(snapshot->data);
    heap_free(snapshot->block);
    *snapshot = (Snapshot){0};
}

/* One walk over the primary pieces of one rank: counting, copying out (sender) or placing (writer). */
typedef struct Walk {
    Snapshot *snapshot;
    Stream *compute;
    int writer;     /* pieces of tensors that this rank writes */
    float *message; /* concatenated pieces, NULL while counting */
    int64_t at;     /* elements so far */
    bool place;     /* message -> snapshot, else device -> message */
} Walk;

static void walk_piece(void *arg, const StatePiece *piece) {
    Walk *walk = arg;
    const int t = set_tensors_find(walk->snapshot->set, piece->kind, piece->param);
    if (!piece->primary || walk->snapshot->set->tensor[t].writer != walk->writer)
        return;
    const size_t nbytes = (size_t)piece->count * sizeof(float);
    if (walk->message && walk->place)
        memcpy(walk->snapshot->data[t] + piece->first, walk->message + walk->at, nbytes);
    else if (walk->message)
        device_copy_to_host(walk->compute, walk->message + walk->at, piece->ptr, nbytes);
    walk->at += piece->count;
}

static void copy_own_piece(void *arg, const StatePiece *piece) {
    Walk *walk = arg;
    const int t = set_tensors_find(walk->snapshot->set, piece->kind, piece->param);
    if (piece->primary && walk->snapshot->set->tensor[t].writer == walk->writer)
        device_copy_to_host(walk->compute, walk->snapshot->data[t] + piece->first, piece->ptr,
                            (size_t)piece->count * sizeof(float));
}

/* One message from `from` to `to`, with all pieces that `from` holds of tensors that `to` writes. */
static void exchange(Walk walk, Parallel *parallel, const Plan *plan, Comm *comm, int from, int to) {
    const int me = comm_rank(comm);
    const MeshCoord coord = mesh_coord(plan->mesh, from);
    walk.writer = to;
    plan_visit_pieces(plan, coord, walk_piece, &walk);
    if (walk.at == 0)
        return;
    const int64_t nelem = walk.at;
    walk.at = 0;
    walk.message = HEAP_ALLOC(float, nelem);
    if (me == from) {
        store_visit(parallel_store(parallel), walk_piece, &walk);
        host_send(comm, walk.message, nelem * (int64_t)sizeof(float), to, TAG_PIECES);
    } else {
        host_recv(comm, walk.message, nelem * (int64_t)sizeof(float), from, TAG_PIECES);
        walk.place = true;
        plan_visit_pieces(plan, coord, walk_piece, &walk);
    }
    heap_free(walk.message);
}

void snapshot_take(Snapshot *snapshot, Parallel *parallel, const Plan *plan, Stream *compute, Comm *comm) {
    const int me = comm_rank(comm), size = comm_size(comm);
    Walk walk = {.snapshot = snapshot, .compute = compute, .writer = me};
    parallel_drain(parallel);
    store_visit(parallel_store(parallel), copy_own_piece, &walk);
    for (int from = 0; from < size; from++) {
        for (int to = 0; to < size; to++)
            if (to != from && (me == from || me == to))
                exchange(walk, parallel, plan, comm, from, to);
    }
}
