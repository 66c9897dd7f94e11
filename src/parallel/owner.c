/* Muon matrices: one owner each. Its shard column holds a copy to broadcast from; gradients are reduced to the column's
 * member of each replicate row, then to the owner; the owner updates and publishes to its column. */
#include "base/arena.h"
#include "base/fatal.h"
#include "mesh/extent.h"
#include "optim/muon.h"
#include "parallel/internal.h"
#include "tensor/ops.h"

/* ---- which matrices are updated together ---- */

/* The batch with room for the matrix among those from `first` on; a new one if there is none. */
static OwnerBatch *batch_for(Parallel *p, int first, int row) {
    const int most = p->config->numerics.fast ? NS_BATCH_MAX : 1;
    for (int b = first; b < p->nbatches; b++) {
        OwnerBatch *batch = &p->batch[b];
        if (batch->count < most && ns_same_shape(&p->plan->param[batch->row[0]].ns, &p->plan->param[row].ns))
            return batch;
    }
    return &p->batch[p->nbatches++];
}

/* Deals Plan.member [begin, begin + count), of one packed buffer or of one part of it. */
static void deal(Parallel *p, int group, int part, int begin, int count) {
    const int first = p->nbatches;
    for (int i = begin; i < begin + count; i++) {
        const int row = p->plan->member[i];
        OwnerBatch *batch = batch_for(p, first, row);
        batch->group = group;
        batch->part = part;
        batch->row[batch->count++] = row;
    }
}

void owner_batches(Parallel *p) {
    const Plan *plan = p->plan;
    p->batch = HEAP_ALLOC(OwnerBatch, plan->params->count);
    for (int g = 0; g < plan->ngroups; g++) {
        const PlanGroup *group = &plan->group[g];
        if (!store_in_cell(&p->store, group))
            continue;
        if (plan->mesh.tp == 1)
            deal(p, g, -1, group->first, group->count);
        for (int i = group->first_part; i < group->first_part + group->part_count; i++)
            if (plan->tp_part[i].owner_tp == p->store.coord.tp)
                deal(p, g, i, plan->tp_part[i].first, plan->tp_part[i].count);
    }
}

int64_t owner_whole_end(const Parallel *p, const OwnerBatch *batch, int count) {
    int64_t end = 0;
    for (int i = 0; i < count; i++)
        end = round_up(end, PLAN_ALIGN) + p->plan->param[batch->row[i]].local_nelem * p->plan->mesh.tp;
    return end;
}

/* ---- weights and gradients ---- */

/* Where a packed buffer is read: the column reads its own copy, unless weights are rounded for all. */
static float *group_base(const Parallel *p, int g, const CacheSlot *slot) {
    if (p->store.master[g] && !config_rounds_weights(p->config))
        return p->store.master[g];
    return slot->base + p->plan->group[g].unit_offset;
}

/* One broadcast per packed buffer over the shard axis, rooted at the owner's column; all of a unit's in flight
 * together. */
void owner_gather(Parallel *p, int unit, const CacheSlot *slot) {
    const PlanUnit *u = &p->plan->unit[unit];
    const bool rounded = config_rounds_weights(p->config);
    if (!rounded && p->plan->ddp) /* every rank's copy is whole */
        return;
    for (int g = u->first_group; g < u->first_group + u->group_count; g++) {
        const PlanGroup *group = &p->plan->group[g];
        if (rounded) {
            wire_gather_group(p, g, slot);
            continue;
        }
        float *buf = group_base(p, g, slot);
        comm_broadcast(p->mesh->axis[AXIS_SHARD], p->gather, buf, group->nelem, DTYPE_F32, group->owner_shard,
                       (CommTag){.what = group->what, .unit = unit, .payload = counted(p, group->payload)});
    }
}

void owner_bind_values(Parallel *p, int unit, const CacheSlot *slot) {
    const PlanUnit *u = &p->plan->unit[unit];
    for (int g = u->first_group; g < u->first_group + u->group_count; g++) {
        const PlanGroup *group = &p->plan->group[g];
        float *buf = group_base(p, g, slot);
        for (int i = group->first; i < group->first + group->count; i++) {
            const int row = p->plan->member[i];
            p->value[row] = buf + p->plan->param[row].offset;
        }
    }
}

void owner_bind_grads(Parallel *p, int unit, float *base) {
    const PlanUnit *u = &p->plan->unit[unit];
    for (int g = u->first_group; g < u->first_group + u->group_count; g++) {
        const PlanGroup *group = &p->plan->group[g];
        for (int i = group->first; i < group->first + group->count; i++) {
            const int row = p->plan->member[i];
            p->grad[row] = base + group->unit_offset + p->plan->param[row].offset;
        }
    }
}

/* Stage one, on the reduce stream: over the shard axis to the column. In reduce mode the column counts leaves. */
void owner_reduce_shard(Parallel *p, int unit, const float *base) {
    const PlanUnit *u = &p->plan->unit[unit];
    for (int g = u->first_group; g < u->first_group + u->group_count; g++) {
        const PlanGroup *group = &p->plan->group[g];
        const bool column = store_in_column(&p->store, group);
        const bool stacked = column && !p->plan->local;
        float *dst = stacked ? leaf_stack_next(&p->muon_held[g]) : p->muon_final[g];
        comm_reduce(p->mesh->axis[AXIS_SHARD], p->reduce, base + group->unit_offset, dst, group->nelem, DTYPE_F32,
                    group->owner_shard,
                    (CommTag){.what = group->what, .unit = unit, .payload = counted(p, group->payload)});
        if (stacked)
            leaf_stack_push(&p->muon_held[g], p->reduce);
    }
}

/* Stage two, once per step, on the publish stream: over the replicate axis to the owner. */
void owner_reduce_replicate(Parallel *p, int unit) {
    const PlanUnit *u = &p->plan->unit[unit];
    for (int g = u->first_group; g < u->first_group + u->group_count; g++) {
        const PlanGroup *group = &p->plan->group[g];
        if (!store_in_column(&p->store, group))
            continue;
        comm_reduce(p->mesh->axis[AXIS_REPLICATE], p->publish, p->muon_final[g], p->muon_final[g], group->nelem,
                    DTYPE_F32, group->owner_replicate,
                    (CommTag){.what = group->what, .unit = unit, .payload = counted(p, group->payload)});
        if (store_in_cell(&p->store, group))
            ops_scale(p->publish, (Scale){.x = p->muon_final[g], .n = group->nelem, .factor = leaf_factor(p)});
    }
}

static MuonStep muon_step(const Parallel *p, const UpdateStep *step, const GradNorm *norm) {
    const Config *c = p->config;
    return (MuonStep){.lr = step->lr_muon,
                      .weight_decay = c->optimizer.muon.weight_decay,
                      .momentum = c->optimizer.muon.momentum,
                      .nesterov = c->optimizer.muon.nesterov,
                      .scale = c->optimizer.muon.scale,
                      .clipped = norm->clip_muon,
                      .grad_factor = norm->factor_muon};
}

/* Where a batch is brought together: a gradient in its packed buffer, or assembled from the tp ranks' slices. */
static void gather_batch(Parallel *p, const OwnerBatch *batch, float **grad) {
    for (int i = 0; i < batch->count; i++) {
        const int row = batch->row[i];
        if (batch->part < 0) {
            grad[i] = p->muon_final[batch->group] + p->plan->param[row].offset;
            continue;
        }
        grad[i] = p->tp_whole + round_up(owner_whole_end(p, batch, i), PLAN_ALIGN);
        tp_assemble(p, &p->plan->tp_part[batch->part], row, grad[i]);
    }
}

/* Matrices that this rank has whole, or whose gathered gradients it has as their tp owner: then the updates go back as
 * slices. */
static void update_batch(Parallel *p, const MuonStep *muon, const OwnerBatch *batch) {
    const NsPlan *plan[NS_BATCH_MAX];
    float *momentum[NS_BATCH_MAX], *grad[NS_BATCH_MAX];
    gather_batch(p, batch, grad);
    for (int i = 0; i < batch->count; i++) {
        const PlanParam *param = &p->plan->param[batch->row[i]];
        plan[i] = &param->ns;
        momentum[i] = p->store.momentum[batch->group] + param->momentum_offset;
    }
    muon_direction(muon, &(NsBatch){.count = batch->count, .plan = plan, .x = grad}, momentum, p->compute,
                   p->ns_scratch, batch->repeat);
    for (int i = 0; i < batch->count; i++) {
        const PlanParam *param = &p->plan->param[batch->row[i]];
        if (batch->part >= 0)
            tp_distribute(p, &p->plan->tp_part[batch->part], batch->row[i], grad[i]);
        else
            muon_apply(muon, &param->ns, p->compute, p->store.master[batch->group] + param->offset, grad[i],
                       param->local_nelem);
    }
    p->ns_calls += batch->count;
}

/* A matrix that stays in slices: only Gram partials and factors travel over tp. */
static void update_distributed(Parallel *p, const MuonStep *muon, int g, int row) {
    const PlanParam *param = &p->plan->param[row];
    float *grad = p->muon_final[g] + param->offset;
    const NsSlice slice = {.tp = p->mesh->axis[AXIS_TP],
                           .owner = param->owner_tp,
                           .what = p->plan->params->row[row].name,
                           .unit = p->plan->params->row[row].unit,
                           .counted = p->in_step};
    muon_direction_slice(muon, &param->ns, &slice, p->compute, p->store.momentum[g] + param->momentum_offset, grad,
                         p->ns_scratch);
    muon_apply(muon, &param->ns, p->compute, p->store.master[g] + param->offset, grad, param->local_nelem);
    p->ns_calls += slice.owner == p->store.coord.tp;
}

/* The owner's matrices of one unit: momentum, Newton-Schulz, decay, step. */
void owner_update_unit(Parallel *p, int unit, const UpdateStep *step, const GradNorm *norm) {
    const MuonStep muon = muon_step(p, step, norm);
    const PlanUnit *u = &p->plan->unit[unit];
    for (int b = 0; b < p->nbatches; b++)
        if (p->plan->group[p->batch[b].group].unit == unit)
            update_batch(p, &muon, &p->batch[b]);
    for (int g = u->first_group; g < u->first_group + u->group_count; g++) {
        const PlanGroup *group = &p->plan->group[g];
        if (!store_in_cell(&p->store, group))
            continue;
        for (int i = group->first; i < group->first + group->count; i++)
            if (p->plan->param[p->plan->member[i]].distributed)
                update_distributed(p, &muon, g, p->plan->member[i]);
    }
}

/* The new weights go to the owner's column over the replicate axis, packed per unit and owner; with ddp from there to
 * all ranks of each replica. */
void owner_publish_unit(Parallel *p, int unit, const UpdateStep *step) {
    const PlanUnit *u = &p->plan->unit[unit];
    UnitState *state = &p->unit[unit];
    DM_ASSERT(state->publish == PUBLISH_IDLE);
    event_wait(p->publish, state->updated);
    tp_scatter_unit(p, unit, step);
    for (int g = u->first_group; g < u->first_group + u->group_count; g++) {
        const PlanGroup *group = &p->plan->group[g];
        wire_publish_begin(p, g);
        if (store_in_column(&p->store, group))
            wire_publish_over(p, AXIS_REPLICATE, g, group->owner_replicate);
        if (p->plan->ddp)
            wire_publish_over(p, AXIS_SHARD, g, group->owner_shard);
        wire_publish_end(p, g);
    }
    event_record(state->published, p->publish);
    state->publish = PUBLISH_PENDING;
}
