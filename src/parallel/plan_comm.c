/* Bytes of a step. Each function mirrors the collectives of one file: owner.c, fsdp.c, update.c. */
#include "parallel/plan_comm.h"

#include <string.h>

#include "parallel/plan.h"

/* What an axis of one rank moves is not counted. */
typedef struct Traffic {
    CommOp op;
    int64_t size;    /* ranks of a group                   */
    int64_t calls;   /* in all groups together             */
    int64_t payload; /* bytes of one call                  */
} Traffic;

static void add(CommCount counts[COMM_OP_COUNT], Traffic t) {
    if (t.size == 1 || t.payload <= 0)
        return;
    int64_t bus = (t.size - 1) * t.payload;
    if (t.op == COMM_ALL_REDUCE)
        bus *= 2;
    counts[t.op].calls += t.calls;
    counts[t.op].payload_bytes += t.calls * t.payload;
    counts[t.op].bus_bytes += t.calls * bus;
}

static int64_t bytes_of(int64_t nelem) {
    return nelem * (int64_t)sizeof(float);
}

/* How often a step makes a unit's weights whole. Z3: for each forward and again for each backward; a tied embedding
 * stays from the one to the other. */
static int64_t gathers(const Plan *plan, int unit, bool reshard) {
    const bool stays = unit == 0 && plan->params->shape->tied;
    if (!reshard)
        return 1;
    return plan->per_rank * (stays ? 1 : 2);
}

/* How often a step reduces a gradient over the shard axis. */
static int64_t reductions(const Plan *plan) {
    return plan->local ? 1 : plan->per_rank;
}

static void count_muon(const Plan *plan, bool reshard, CommCount out[AXIS_COUNT][COMM_OP_COUNT]) {
    const int64_t R = plan->mesh.replicate, G = plan->mesh.shard;
    for (int g = 0; g < plan->ngroups; g++) {
        const PlanGroup *group = &plan->group[g];
        const int64_t payload = bytes_of(group->payload);
        add(out[AXIS_SHARD], (Traffic){COMM_BROADCAST, G, R * gathers(plan, group->unit, reshard), payload});
        add(out[AXIS_SHARD], (Traffic){COMM_REDUCE, G, R * reductions(plan), payload});
        add(out[AXIS_REPLICATE], (Traffic){COMM_REDUCE, R, 1, payload});
        add(out[AXIS_REPLICATE], (Traffic){COMM_BROADCAST, R, 1, payload});
    }
}

static void count_adamw(const Plan *plan, bool reshard, CommCount out[AXIS_COUNT][COMM_OP_COUNT]) {
    const int64_t R = plan->mesh.replicate, G = plan->mesh.shard;
    for (int unit = 0; unit < plan->params->nunits; unit++) {
        const PlanUnit *u = &plan->unit[unit];
        const int64_t payload = bytes_of(u->payload);
        if (u->blocks == 0)
            continue;
        add(out[AXIS_SHARD], (Traffic){COMM_ALL_GATHER, G, R * gathers(plan, unit, reshard), payload});
        add(out[AXIS_SHARD], (Traffic){COMM_REDUCE_SCATTER, G, R * reductions(plan), payload});
        for (int64_t shard = 0; shard < G; shard++) {
            const int64_t first = shard * u->run * PLAN_BLOCK, end = first + u->run * PLAN_BLOCK;
            const int64_t share = u->payload * end / u->flat_nelem - u->payload * first / u->flat_nelem;
            add(out[AXIS_REPLICATE], (Traffic){COMM_ALL_REDUCE, R, 1, bytes_of(share)});
        }
    }
}

/* The leaf losses with the wish to stop, and the binary64 sums of squares, of every rank to every rank. */
static void count_world(const Plan *plan, CommCount counts[COMM_OP_COUNT]) {
    const int64_t world = mesh_size(plan->mesh);
    add(counts, (Traffic){COMM_ALL_GATHER, world, 1, bytes_of((plan->per_rank + 1) * world)});
    add(counts, (Traffic){COMM_ALL_GATHER, world, 1, plan->sums_nelem * world * (int64_t)sizeof(double)});
}

void plan_comm_bytes(const Plan *plan, const Config *config, CommCount out[AXIS_COUNT][COMM_OP_COUNT]) {
    memset(out, 0, AXIS_COUNT * sizeof out[0]);
    count_muon(plan, config->parallel.reshard_muon, out);
    count_adamw(plan, config->parallel.reshard_adamw, out);
    count_world(plan, out[AXIS_DATA]);
}
