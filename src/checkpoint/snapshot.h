/* A host copy of the tensors that this rank writes, whole and logical. */
#ifndef DMUON_CHECKPOINT_SNAPSHOT_H
#define DMUON_CHECKPOINT_SNAPSHOT_H

#include "checkpoint/tensors.h"
#include "parallel/parallel.h"

typedef struct Snapshot {
    const SetTensors *set; /* borrowed */
    float **data;          /* [set->count] host [numel]; NULL where another rank writes */
    float *block;          /* owned: all of them */
    size_t nbytes;
} Snapshot;

/* Allocates the host memory once; it is reused by every save. */
void snapshot_create(Snapshot *snapshot, const SetTensors *set, int rank);
void snapshot_destroy(Snapshot *snapshot);
/* Copies the state: pieces that other ranks hold are sent to the tensor's writer. Collective over `comm` (all ranks,
 * host calls); drains first. */
void snapshot_take(Snapshot *snapshot, Parallel *parallel, const Plan *plan, Stream *compute, Comm *comm);

#endif
