/* The strategy of a run: who makes a unit's weights whole, where its gradients go, who updates what. Fills the model's
 * Residency and runs the update on what this rank holds. Two streams of every rank's calls are the same on all ranks:
 * the list of collectives is static. */
#ifndef DMUON_PARALLEL_PARALLEL_H
#define DMUON_PARALLEL_PARALLEL_H

#include "base/arena.h"
#include "device/device.h"
#include "mesh/mesh.h"
#include "model/residency.h"
#include "parallel/plan.h"
#include "parallel/store.h"

typedef struct Parallel Parallel; /* opaque, owned by the session */

/* Bytes of one rank by kind, for --plan and the memory check. */
typedef struct ParallelBytes {
    size_t weights, momentum, moments, gathered, gradients, leaf_trees, tp_buffers, scratch;
} ParallelBytes;
/* The same layout function on an arena without memory. */
ParallelBytes parallel_measure(const Plan *plan, const Config *config, MeshCoord coord);

/* All three pointers are borrowed for the life of the result. Allocates the rank's memory. Not collective. */
DM_NODISCARD Status parallel_create(Parallel **parallel, const Plan *plan, const Config *config, const Mesh *mesh,
                                    Device *device);
/* Makes ready the communicators on the streams that use them. Collective, after all ranks have created theirs. */
void parallel_connect(Parallel *parallel);
void parallel_destroy(Parallel *parallel);

const Residency *parallel_residency(Parallel *parallel);
const Store *parallel_store(Parallel *parallel);

/* What one update uses; lr with the schedule applied. */
typedef struct UpdateStep {
    double lr_muon, lr_adamw;
    int64_t adamw_t; /* applied updates, this one included: from 1 */
} UpdateStep;

typedef struct GradNorm {
    double sumsq;  /* binary64, over every parameter, of the averaged gradient */
    float norm;    /* binary32(sqrt(sumsq))                                     */
    int bad_param; /* first row with a non-finite sum, or -1                    */
    bool clip_muon, clip_adamw;
    float factor_muon, factor_adamw;
} GradNorm;

/* A step begins: collectives count from here, `leaves` rounds follow. */
void parallel_begin_step(Parallel *parallel);
/* The next leaf of the step is number `round` of k: the last one's gradients are reduced over the replicate axis too.
 */
void parallel_begin_leaf(Parallel *parallel, int64_t round);
/* Forward passes outside a step (evaluation, sampling) stand between these. Their collectives are not counted. */
void parallel_begin_forward_only(Parallel *parallel);
void parallel_end_forward_only(Parallel *parallel);
/* Waits for the reductions, averages, and gives the norm and the clip factors, the same on every rank. Collective over
 * the world. */
GradNorm parallel_finish_gradients(Parallel *parallel, double *reduce_wait_ms);
/* Owners run Muon in the forward order of the units and publish; every rank runs AdamW on its run of blocks. apply
 * false: gradients are dropped (a skipped step). Collective. */
void parallel_update(Parallel *parallel, const UpdateStep *step, const GradNorm *norm, bool apply,
                     double *publish_wait_ms);
/* Of the newest update that has run, publish waits included: on a device that works on while the host goes on, the one
 * before. */
double parallel_optimizer_ms(const Parallel *parallel);
/* Every pending publish is over, on every communication stream: before any other reader of weights. */
void parallel_drain(Parallel *parallel);
/* Gives the losses of all leaves of the step [L] in leaf order, and ORs `flag` over all ranks into *any. Collective. */
void parallel_gather_losses(Parallel *parallel, const float *mine, float *all, bool flag, bool *any);

/* Sum mod 2^64 of all weights, momentum and moments (README, "Hashes"), with adamw_t and step mixed in. Collective;
 * drains first. */
uint64_t parallel_hash(Parallel *parallel, int64_t step, int64_t adamw_t);
/* Initial weights; momentum and moments zero. */
void parallel_init_weights(Parallel *parallel, uint64_t seed);

/* Microseconds that acquire waited for pending publishes since the last take: at most `capacity` newest; gives the
 * count. */
int parallel_take_publish_waits(Parallel *parallel, double *wait_us, int capacity);
/* Newton-Schulz runs of this rank since the last take. */
int64_t parallel_take_ns_calls(Parallel *parallel);
/* Memory of this rank in bytes. */
size_t parallel_nbytes(const Parallel *parallel);

#endif
