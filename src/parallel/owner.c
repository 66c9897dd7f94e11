/* Muon matrices: one owner each. Its shard column holds a copy to broadcast from; gradients are reduced to the column's member
 * of each replicate row, then to the owner; the owner updates and publishes to its column. */
#include "base/fatal.h"
#include "optim/muon.h"
#include "parallel/internal.h"
#include "tensor/ops.h"

/* One broadcast per packed buffer over the shard axis, rooted at the owner's column; all of a unit's in flight together. The column reads its own copy. */
void owner_gather(Parallel *p, int unit, const CacheSlot *slot) {
    const PlanUnit *u = &p->plan->unit[unit];
    for (int g = u->first_group; g < u->first_group + u->group_count; g++) {
        const PlanGroup *group = &p->plan->group[g];
        float *buf = p->store.master[g] ? p->store.master[g] : slot->base + group->unit_offset;
        comm_broadcast(p->mesh->axis[AXIS_SHARD], p->gather, buf, group->nelem, DTYPE_F32, group->owner_shard,
                       (CommTag){.what = group->what, .unit = unit, .payload = counted(p, group->payload)});
    }
}

void owner_bind_values(Parallel *p, int unit, const CacheSlot *slot) {
    const PlanUnit *u = &p->plan->unit[unit];
    for (int g = u->first_group; g < u->first_group + u->group_count; g++) {
        const PlanGroup *group = &p->plan->group[g];
        float *buf = p->store.master[g] ? p->store.master[g] : slot->base + group->unit_offset;
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

/* The owner's matrices of one unit: momentum, Newton-Schulz, decay, step. */
void owner_update_unit(Parallel *p, int unit, const UpdateStep *step, const GradNorm *norm) {
    const MuonStep muon = muon_step(p, step, norm);
    const PlanUnit *u = &p->plan->unit[unit];
    for (int g = u->first_group; g < u->first_group + u->group_count; g++) {
        const PlanGroup *group = &p->plan->group[g];
        if (!store_is_owner(&p->store, group))
            continue;
        for (int i = group->first; i < group->first + group->count; i++) {
            const PlanParam *param = &p->plan->param[p->plan->member[i]];
            muon_update(&muon, &param->ns, p->compute, p->store.master[g] + param->offset,
                        p->store.momentum[g] + param->offset, p->muon_final[g] + param->offset, p->ns_scratch);
            p->ns_calls++;
        }
    }
}

/* The new weights go to the owner's column over the replicate axis, packed per unit and owner, on the publish stream. */
void owner_publish_unit(Parallel *p, int unit) {
    const PlanUnit *u = &p->plan->unit[unit];
    UnitState *state = &p->unit[unit];
    DM_ASSERT(state->publish == PUBLISH_IDLE);
    event_wait(p->publish, state->updated);
    for (int g = u->first_group; g < u->first_group + u->group_count; g++) {
        const PlanGroup *group = &p->plan->group[g];
        if (!store_in_column(&p->store, group))
            continue;
        comm_broadcast(p->mesh->axis[AXIS_REPLICATE], p->publish, p->store.master[g], group->nelem, DTYPE_F32,
                       group->owner_replicate,
                       (CommTag){.what = group->what, .unit = unit, .payload = counted(p, group->payload)});
    }
    event_record(state->published, p->publish);
    state->publish = PUBLISH_PENDING;
}
