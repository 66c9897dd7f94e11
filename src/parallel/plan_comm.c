/* Bytes of a step. Each function mirrors the collectives of one file: owner.c, fsdp.c, update.c. */
#include "parallel/plan_comm.h"

#include <string.h>

#include "parallel/internal.h"

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
    if (t.op == COMM_GATHER || t.op == COMM_SCATTER)
        bus /= t.size;
    counts[t.op].calls += t.calls;
    counts[t.op].payload_bytes += t.calls * t.payload;
    counts[t.op].bus_bytes += t.calls * bus;
}

static int64_t bytes_of(int64_t nelem) {
    return nelem * (int64_t)sizeof(float);
}

/* Of weights in flight. */
static int64_t weight_bytes_of(const Config *config, int64_t nelem) {
    return nelem * (int64_t)dtype_nbytes(wire_dtype(config));
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

static void count_muon(const Plan *plan, const Config *config, CommCount out[AXIS_COUNT][COMM_OP_COUNT]) {
    const int64_t R = plan->mesh.replicate, G = plan->mesh.shard, T = plan->mesh.tp;
    for (int g = 0; g < plan->ngroups; g++) {
        const PlanGroup *group = &plan->group[g];
        const int64_t gradient = bytes_of(group->payload), weight = weight_bytes_of(config, group->payload);
        /* with ddp the new weight crosses the shard axis once, behind the publish */
        const int64_t gathered = plan->ddp ? 1 : gathers(plan, group->unit, config->parallel.reshard_muon);
        add(out[AXIS_SHARD], (Traffic){COMM_BROADCAST, G, R * T * gathered, weight});
        add(out[AXIS_SHARD], (Traffic){COMM_REDUCE, G, R * T * reductions(plan), gradient});
        add(out[AXIS_REPLICATE], (Traffic){COMM_REDUCE, R, T, gradient});
        add(out[AXIS_REPLICATE], (Traffic){COMM_BROADCAST, R, T, weight});
    }
}

/* Between the slices of a cell and its tp owners, f32 whatever the wire (gradients; updates, which masters take), and
 * the rounds of the matrices that stay cut. */
static void count_muon_tp(const Plan *plan, CommCount counts[COMM_OP_COUNT]) {
    const int64_t T = plan->mesh.tp, S = plan->params->shape->segments;
    for (int i = 0; i < plan->nparts; i++) {
        add(counts, (Traffic){COMM_GATHER, T, 1, bytes_of(plan->tp_part[i].payload)});
        add(counts, (Traffic){COMM_SCATTER, T, 1, bytes_of(plan->tp_part[i].payload)});
    }
    for (int row = 0; row < plan->params->count; row++) {
        const PlanParam *p = &plan->param[row];
        if (!p->distributed)
            continue;
        const int64_t rounds = plan_gram_rounds(&p->ns), square = bytes_of(p->ns.m * p->ns.m);
        add(counts, (Traffic){COMM_REDUCE, T, rounds, square});
        add(counts, (Traffic){COMM_BROADCAST, T, rounds, square});
        add(counts, (Traffic){COMM_ALL_GATHER, T, 1, bytes_of(T)});
        add(counts, (Traffic){COMM_ALL_GATHER, T, 1, S * (int64_t)sizeof(double)});
    }
}

static void count_adamw_unit(const Plan *plan, const Config *config, int unit, int tp,
                             CommCount out[AXIS_COUNT][COMM_OP_COUNT]) {
    const int64_t R = plan->mesh.replicate, G = plan->mesh.shard;
    const PlanUnit *u = &plan->unit[unit];
    const int64_t all = plan_adamw_payload(plan, unit, tp);
    if (plan->ddp) {
        add(out[AXIS_SHARD], (Traffic){COMM_ALL_REDUCE, G, R, bytes_of(all)});
        add(out[AXIS_REPLICATE], (Traffic){COMM_ALL_REDUCE, R, G, bytes_of(all)});
        return;
    }
    const int64_t gathered = gathers(plan, unit, config->parallel.reshard_adamw);
    add(out[AXIS_SHARD], (Traffic){COMM_ALL_GATHER, G, R * gathered, weight_bytes_of(config, all)});
    add(out[AXIS_SHARD], (Traffic){COMM_REDUCE_SCATTER, G, R * reductions(plan), bytes_of(all)});
    for (int64_t shard = 0; shard < G; shard++) {
        const int64_t first = shard * u->run * PLAN_BLOCK, end = first + u->run * PLAN_BLOCK;
        const int64_t share = all * end / u->flat_nelem - all * first / u->flat_nelem;
        add(out[AXIS_REPLICATE], (Traffic){COMM_ALL_REDUCE, R, 1, bytes_of(share)});
    }
}

static void count_adamw(const Plan *plan, const Config *config, CommCount out[AXIS_COUNT][COMM_OP_COUNT]) {
    for (int unit = 0; unit < plan->params->nunits; unit++)
        for (int tp = 0; tp < plan->mesh.tp && plan->unit[unit].blocks > 0; tp++)
            count_adamw_unit(plan, config, unit, tp, out);
}

/* The partial sums of the network itself: one all-reduce per block half and direction, the looked-up rows, the head's
 * input gradient, what the loss needs of a cut vocabulary, and the gains of q_norm and k_norm. */
static void count_model_tp(const Plan *plan, const Config *config, CommCount counts[COMM_OP_COUNT]) {
    const ModelShape *shape = plan->params->shape;
    const int64_t T = plan->mesh.tp, tokens = config->batch.micro * config->batch.seq_len;
    const int64_t width = bytes_of(tokens * shape->C);
    /* recomputed layers sum their attention once more; the second half's output is kept as the next layer's input */
    const int64_t layer = config->parallel.recompute == RECOMPUTE_LAYER ? 5 : 4;
    add(counts, (Traffic){COMM_ALL_REDUCE, T, plan->leaves * (layer * shape->L + 2), width});
    add(counts, (Traffic){COMM_ALL_GATHER, T, plan->leaves, bytes_of(2 * T * tokens)});
    add(counts, (Traffic){COMM_ALL_REDUCE, T, plan->leaves, bytes_of(tokens)});
    if (shape->qk_norm)
        add(counts, (Traffic){COMM_ALL_REDUCE, T, plan->leaves * 2 * shape->L, bytes_of(shape->D)});
}

/* The leaf losses with the wish to stop, and the binary64 sums of squares, of every rank to every rank. */
static void count_world(const Plan *plan, CommCount counts[COMM_OP_COUNT]) {
    const int64_t world = mesh_size(plan->mesh);
    add(counts, (Traffic){COMM_ALL_GATHER, world, 1, bytes_of((plan->per_rank + 1) * world)});
    add(counts, (Traffic){COMM_ALL_GATHER, world, 1, plan->sums_nelem * world * (int64_t)sizeof(double)});
}

void plan_comm_bytes(const Plan *plan, const Config *config, CommCount out[AXIS_COUNT][COMM_OP_COUNT]) {
    memset(out, 0, AXIS_COUNT * sizeof out[0]);
    count_muon(plan, config, out);
    count_adamw(plan, config, out);
    count_muon_tp(plan, out[AXIS_TP]);
    count_model_tp(plan, config, out[AXIS_TP]);
    count_world(plan, out[AXIS_DATA]);
}
