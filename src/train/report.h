/* --plan: what a run will be on its mesh, before it is. No MPI, no device, no memory of the run's size. */
#ifndef DMUON_TRAIN_REPORT_H
#define DMUON_TRAIN_REPORT_H

#include "base/str.h"
#include "config/config.h"
#include "parallel/plan.h"

/* What follows from a configuration alone. Large: keep it on the heap or static. The plan borrows from it: do not move.
 */
typedef struct Blueprint {
    Config config;
    ModelShape shape;
    ParamTable params;
    Plan plan;
    Str warnings; /* of the configuration, one per line */
} Blueprint;

/* Reads the file and the overrides, resolves the mesh for `ranks` (0: the mesh's own product), plans. On failure
 * nothing is kept but the warnings; call blueprint_destroy in any case. */
DM_NODISCARD Status blueprint_create(Blueprint *blueprint, const char *path, char *const *overrides, int override_count,
                                     int ranks);
void blueprint_destroy(Blueprint *blueprint);

/* For people, and the same as one JSON object:
 *   mesh            {replicate, shard, tp}
 *   parameters      [{name, shape, role, owner: {shard, replicate, tp}, tp_dim, local_shape, algorithm, cost}] in
 * registry order; owner and algorithm null for role ADAMW, tp_dim null where tp cuts nothing; local_shape with the
 * padded vocabulary; cost in FLOPs load            {max, mean, bound} FLOPs per rank, bound = max(mean, largest matrix)
 *   bytes_per_rank  [{weights, momentum, ..., total}] by rank
 *   comm_bytes      {axis: {op: {calls, payload_bytes, bus_bytes}}} of one step, as the log's `comm`
 *   flops           {model, newton_schulz, total} of one step, all ranks */
void report_text(const Blueprint *blueprint, Str *out);
void report_json(const Blueprint *blueprint, Str *out);

#endif
