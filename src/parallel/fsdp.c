/* AdamW parameters: blocks of 1024 elements dealt to the shard axis in equal runs; one all-gather of a unit before use,
 * one reduce-scatter after. */
#include "mesh/extent.h"
#include "optim/adamw.h"
#include "parallel/internal.h"
#include "tensor/ops.h"

static int64_t run_nelem(const Parallel *p, int unit) {
    return p->plan->unit[unit].run * PLAN_BLOCK;
}

/* Elements of this tp rank's slices, without padding. */
static int64_t payload(const Parallel *p, int unit) {
    return plan_adamw_payload(p->plan, unit, p->store.coord.tp);
}

/* Where this rank's run lies in the unit's flat buffer. */
static Extent my_run(const Parallel *p, int unit) {
    return (Extent){store_run_index(p->plan, p->store.coord) * run_nelem(p, unit), run_nelem(p, unit)};
}

/* With one shard rank the store itself is whole; rounded weights never are the store's. */
static bool reads_store(const Parallel *p) {
    return p->plan->adamw_shards == 1 && !config_rounds_weights(p->config);
}

/* The unit's flat buffer. */
static float *flat_base(const Parallel *p, int unit, const CacheSlot *slot) {
    return reads_store(p) ? p->store.shard[unit] : slot->base;
}

static float *side_base(const Parallel *p, int unit, const CacheSlot *slot) {
    return slot->base + (reads_store(p) ? 0 : p->plan->unit[unit].flat_nelem);
}

/* Copies a tensor between its blocks and a contiguous buffer, segment by segment. */
static void copy_segments(Parallel *p, Stream *stream, int row, float *flat, float *whole, bool to_whole) {
    const Param *param = &p->plan->params->row[row];
    const PlanParam *plan = &p->plan->param[row];
    const bool by_columns = param->tp_dim == 1;
    const int64_t rows = by_columns ? plan->local_dim[0] : 1;
    const int64_t cols = plan->seg_nelem / rows;
    const int64_t stride = by_columns ? plan->local_dim[1] : cols;
    for (int seg = 0; seg < plan->nseg; seg++) {
        float *blocks = flat + plan->offset + seg * plan->seg_blocks * PLAN_BLOCK;
        float *part = whole + seg * cols;
        ops_copy(stream, (Copy){.dst = to_whole ? part : blocks,
                                .src = to_whole ? blocks : part,
                                .rows = rows,
                                .cols = cols,
                                .dst_stride = to_whole ? stride : cols,
                                .src_stride = to_whole ? cols : stride});
    }
}

void fsdp_gather(Parallel *p, int unit, const CacheSlot *slot) {
    const PlanUnit *u = &p->plan->unit[unit];
    const CommTag tag = {.what = u->what, .unit = unit, .payload = counted_weights(p, payload(p, unit))};
    if (config_rounds_weights(p->config))
        wire_gather_blocks(p, unit, slot, tag);
    else if (p->plan->adamw_shards > 1 && u->blocks > 0)
        comm_all_gather(p->mesh->axis[AXIS_SHARD], p->gather, p->store.shard[unit], slot->base, run_nelem(p, unit),
                        DTYPE_F32, tag);
    for (int i = u->first_adamw; i < u->first_adamw + u->adamw_count; i++) {
        const int row = p->plan->adamw_member[i];
        if (!p->plan->param[row].dense)
            copy_segments(p, p->gather, row, flat_base(p, unit, slot),
                          side_base(p, unit, slot) + p->plan->param[row].side_offset, true);
    }
}

/* Binds value (or gradient) pointers of the unit to a flat and a side buffer. */
static void bind(const Parallel *p, int unit, float **pointers, float *flat, float *side) {
    const PlanUnit *u = &p->plan->unit[unit];
    for (int i = u->first_adamw; i < u->first_adamw + u->adamw_count; i++) {
        const int row = p->plan->adamw_member[i];
        const PlanParam *param = &p->plan->param[row];
        pointers[row] = param->dense ? flat + param->offset : side + param->side_offset;
    }
}

void fsdp_bind_values(Parallel *p, int unit, const CacheSlot *slot) {
    bind(p, unit, p->value, flat_base(p, unit, slot), side_base(p, unit, slot));
}

void fsdp_bind_grads(Parallel *p, int unit, float *base) {
    const PlanUnit *u = &p->plan->unit[unit];
    bind(p, unit, p->grad, base + u->muon_nelem, base + u->muon_nelem + u->flat_nelem);
}

/* Gradients written contiguously go to their blocks, on compute. */
void fsdp_pack_grads(Parallel *p, int unit, float *base) {
    const PlanUnit *u = &p->plan->unit[unit];
    for (int i = u->first_adamw; i < u->first_adamw + u->adamw_count; i++) {
        const int row = p->plan->adamw_member[i];
        if (!p->plan->param[row].dense)
            copy_segments(p, p->compute, row, base + u->muon_nelem, p->grad[row], false);
    }
}

void fsdp_reduce_shard(Parallel *p, int unit, float *base) {
    const PlanUnit *u = &p->plan->unit[unit];
    if (u->blocks == 0)
        return;
    const CommTag tag = {.what = u->what, .unit = unit, .payload = counted(p, payload(p, unit))};
    Comm *shard = p->mesh->axis[AXIS_SHARD];
    if (p->plan->ddp) {
        comm_all_reduce(shard, p->reduce, base + u->muon_nelem, p->adamw_final[unit], run_nelem(p, unit), DTYPE_F32,
                        tag);
        return;
    }
    float *dst = p->plan->local ? p->adamw_final[unit] : leaf_stack_next(&p->adamw_held[unit]);
    comm_reduce_scatter(shard, p->reduce, base + u->muon_nelem, dst, run_nelem(p, unit), DTYPE_F32, tag);
    if (!p->plan->local)
        leaf_stack_push(&p->adamw_held[unit], p->reduce);
}

/* Each row's run is its share of the unit; counted once per column, so that the columns add up to the unit. */
void fsdp_reduce_replicate(Parallel *p, int unit) {
    const PlanUnit *u = &p->plan->unit[unit];
    if (u->blocks == 0)
        return;
    const Extent mine = my_run(p, unit);
    const int64_t all = payload(p, unit);
    const int64_t share = all * (mine.first + mine.count) / u->flat_nelem - all * mine.first / u->flat_nelem;
    comm_all_reduce(p->mesh->axis[AXIS_REPLICATE], p->publish, p->adamw_final[unit], p->adamw_final[unit], mine.count,
                    DTYPE_F32, (CommTag){.what = u->what, .unit = unit, .payload = counted(p, share)});
    ops_scale(p->publish, (Scale){.x = p->adamw_final[unit], .n = mine.count, .factor = leaf_factor(p)});
}

/* AdamW on the part of each parameter that lies in this rank's run. Padding inside a run stays zero. */
void fsdp_update_unit(Parallel *p, int unit, const UpdateStep *step, const GradNorm *norm) {
    const Config *c = p->config;
    const PlanUnit *u = &p->plan->unit[unit];
    const Extent mine = my_run(p, unit);
    for (int i = u->first_adamw; i < u->first_adamw + u->adamw_count; i++) {
        const int row = p->plan->adamw_member[i];
        const PlanParam *param = &p->plan->param[row];
        const Extent part = extent_overlap(mine, (Extent){param->offset, param->nseg * param->seg_blocks * PLAN_BLOCK});
        if (part.count == 0)
            continue;
        const int64_t at = part.first - mine.first;
        const AdamwStep adamw = {.lr = step->lr_adamw,
                                 .beta1 = c->optimizer.adamw.beta1,
                                 .beta2 = c->optimizer.adamw.beta2,
                                 .eps = c->optimizer.adamw.eps,
                                 .weight_decay =
                                     p->plan->params->row[row].decay ? c->optimizer.adamw.weight_decay : 0.0,
                                 .t = step->adamw_t,
                                 .clipped = norm->clip_adamw,
                                 .grad_factor = norm->factor_adamw};
        adamw_update(&adamw, p->compute, p->store.shard[unit] + at, p->store.exp_avg[unit] + at,
                     p->store.exp_avg_sq[unit] + at, p->adamw_final[unit] + at, part.count);
    }
}
