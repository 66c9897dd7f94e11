/* What this rank keeps from step to step: its share of weights, momentum and moments, and the list of contiguous pieces
 * of logical tensors that it consists of. Initial weights, hashes, saving and loading all go through that list, so that
 * none of them knows the mesh. */
#ifndef DMUON_PARALLEL_STORE_H
#define DMUON_PARALLEL_STORE_H

#include "parallel/plan.h"

typedef enum StateKind { STATE_WEIGHT, STATE_MOMENTUM, STATE_EXP_AVG, STATE_EXP_AVG_SQ, STATE_KIND_COUNT } StateKind;

/* Prefix of the tensor's name in checkpoints and hashes: "", "momentum.", "exp_avg.", "exp_avg_sq.". */
const char *state_prefix(StateKind kind);
/* Does a parameter of this role have this kind of state? */
bool state_exists(Role role, StateKind kind);

typedef struct Store {
    const Plan *plan; /* borrowed */
    MeshCoord coord;
    float **master;   /* [ngroups][group nelem] f32 device: this rank's slices; the owner's shard column, with ddp every
                         rank; else NULL */
    float **momentum; /* [ngroups]: in the owner's cell, whole at the tp owner, sliced when distributed; else NULL */
    float **shard;    /* [nunits][run * PLAN_BLOCK]: this rank's run of AdamW blocks            */
    float **exp_avg;  /* as shard */
    float **exp_avg_sq; /* as shard */
} Store;

/* Tables on the heap; `arena` places (or measures) the tensors. */
void store_create(Store *store, const Plan *plan, MeshCoord coord, Arena *arena);
void store_destroy(Store *store);
static inline bool store_in_column(const Store *store, const PlanGroup *group) {
    return store->coord.shard == group->owner_shard;
}
/* The T ranks of the owner's cell. */
static inline bool store_in_cell(const Store *store, const PlanGroup *group) {
    return store->coord.shard == group->owner_shard && store->coord.replicate == group->owner_replicate;
}
/* Elements of a group's momentum on the rank at `coord`: 0 outside the cell. */
int64_t store_momentum_nelem(const Plan *plan, const PlanGroup *group, MeshCoord coord);
/* Index of this rank's run of AdamW blocks. */
static inline int store_run_index(const Plan *plan, MeshCoord coord) {
    return plan->ddp ? 0 : coord.shard;
}

/* A contiguous run of a logical tensor. */
typedef struct StatePiece {
    StateKind kind;
    int param;            /* row                                                                         */
    int64_t first, count; /* logical elements [first, first + count) of the flattened tensor             */
    bool primary;         /* over all ranks each element lies in exactly one primary piece               */
    float *ptr;           /* device memory, or NULL when the store has none (pieces of another rank)     */
} StatePiece;

/* Visits every piece that the rank at store->coord holds, in a fixed order (registry order of the parameters within a
 * kind). */
void store_visit(const Store *store, void (*visit)(void *arg, const StatePiece *piece), void *arg);
/* The same for any rank, from the plan alone: ptr is NULL. */
void plan_visit_pieces(const Plan *plan, MeshCoord coord, void (*visit)(void *arg, const StatePiece *piece), void *arg);

#endif
