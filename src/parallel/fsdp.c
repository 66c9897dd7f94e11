/* AdamW parameters: blocks of 1024 elements dealt to the shard axis in equal runs; one all-gather of a unit before use, one reduce-scatter after. */
#include "mesh/extent.h"
#include "optim/adamw.h"
#include "parallel/internal.h"
#include "tensor/ops.h"

static int64_t run_nelem(const Parallel *p, int unit) {
    return p->plan->unit[unit].run * PLAN_BLOCK;
}

/* The unit's flat buffer: with one shard rank the store itself is whole. */
static float *flat_base(const Parallel *p, int unit, const CacheSlot *slot) {
    return p->plan->mesh.shard == 1 ? p->store.shard[unit] : slot->base;
}

static float *side_base(const Parallel *p, int unit, const CacheSlot *slot) {
    return slot->base + (p->plan->mesh.shard == 1 ? 0 : p->plan->unit[unit].flat_nelem);
}

/* Copies a tensor between its blocks and a contiguous buffer, segment by segment. */
static void copy_segments(Parallel *p, Stream *stream, int row, float *flat, float *whole, bool to_whole) {
    const Param *param = &p->plan->params->row[row];
    const PlanParam *plan = &p->plan->param[row];
    const bool by_columns = param->tp_dim == 1;
    const int64_t rows = by_columns ? param->dim[0] : 1;
    const int64_t cols = plan->seg_nelem / rows;
    const int64_t stride = by_columns ? param->dim[1] : cols;
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
    if (p->plan->mesh.shard > 1 && u->blocks > 0)
        comm_all_gather(p->mesh->axis[AXIS_SHARD], p->gather, p->store.shard[unit], slot->base, run_nelem(p, unit),
                        DTYPE_F32, (CommTag){.what = u->what, .unit = unit, .payload = counted(p, u->payload)});
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
    float *dst = p->plan->local ? p->adamw_final[unit] : leaf_stack_next(&p->adamw_held[unit]);
    comm_reduce_scatter(p->mesh->axis[AXIS_SHARD], p->reduce, base + u->muon_nelem, dst, run_nelem(p, unit), DTYPE_F32,
                        (CommTag){.what = u->what, .unit = unit, .payload = counted(p, u->payload)});
    if (!p->plan->local)
        leaf_stack_push(&p->adamw_held[unit], p->reduce);
}

void fsdp_reduce_replicate(Parallel *p, int unit) {
    const PlanUnit *u = &p->plan->unit[unit];
    if (u->blocks == 0)
        return;
    /* each row's run is 1/G of the unit; counted once per column, so that the columns add up to the unit */
    const int64_t first = p->store.coord.shard * run_nelem(p, unit);
    const int64_t share =
        u->payload * (first + run_nelem(p, unit)) / u->flat_nelem - u->payload * first / u->flat_nelem;
    comm_all_reduce(p->mesh->axis[AXIS_REPLICATE], p->publish, p->adamw_final[unit], p->adamw_final[unit],
                    run_nelem(p, unit), DTYPE_F32, (CommTag){.what = u->what, .unit = unit, .payload = counted(p, share)});
}

/* AdamW on the part of each parameter that lies in this rank's run. Padding inside a run stays zero. */
void fsdp_update_unit(Parallel *p, int unit, const UpdateStep *step, const GradNorm *norm) {
    const Config *c = p->config;
    const PlanUnit *u = &p->plan->unit[unit];
    const Extent mine = {p->store.coord.shard * run_nelem(p, unit), run_nelem(p, unit)};
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
                                 .weight_decay = p->plan->params->row[row].decay ? c->optimizer.adamw.weight_decay : 0.0,
                                 .t = step->adamw_t,
                                 .clipped = norm->clip_adamw,
                                 .grad_factor = norm->factor_adamw};
        adamw_update(&adamw, p->compute, p->store.shard[unit] + at, p->store.exp_avg[unit] + at,
                     p->store.exp_avg_sq[unit] + at, p->adamw_final[unit] + at, part.count);
    }
}
