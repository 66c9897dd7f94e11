/* Matrices cut by tensor parallelism: after the data-parallel reduction each of the cell's T ranks holds its averaged
 * slice. The slices of one unit and one tp owner travel in one message to it and, as slices of the update, in one
 * message back. */
#include "base/fatal.h"
#include "optim/muon.h"
#include "parallel/internal.h"
#include "tensor/ops.h"

static bool mine(const Parallel *p, const PlanTpPart *part) {
    return store_in_cell(&p->store, &p->plan->group[part->group]);
}

/* Scratch that is not kept is taken at its first use in a step, on the stream of that use. */
static float *take(const Parallel *p, Stream *stream, float **buffer, const PlanTpPart *part) {
    if (!*buffer)
        *buffer = device_alloc(stream, (size_t)(part->nelem * p->plan->mesh.tp) * sizeof(float));
    return *buffer;
}

static void release(const Parallel *p, float **buffers, BufferReuse kept) {
    const BufferReuse reuse = p->config->parallel.tp_buffer_reuse;
    if (reuse == REUSE_ALL || reuse == kept)
        return;
    for (int i = 0; i < p->plan->nparts; i++) {
        device_free(p->compute, buffers[i]); /* which has waited for all that used it */
        buffers[i] = NULL;
    }
}

void tp_release_gathered(Parallel *p) {
    release(p, p->tp_gathered, REUSE_GATHER);
}

void tp_release_scattered(Parallel *p) {
    release(p, p->tp_scattered, REUSE_SCATTER);
}

/* Queued on the reduce stream one unit behind the shard reductions, so that the rest of the backward goes on meanwhile.
 */
void tp_gather_unit(Parallel *p, int unit) {
    const PlanUnit *u = &p->plan->unit[unit];
    event_wait(p->reduce, p->unit[unit].final);
    for (int g = u->first_group; g < u->first_group + u->group_count; g++) {
        const PlanGroup *group = &p->plan->group[g];
        for (int i = group->first_part; i < group->first_part + group->part_count; i++) {
            const PlanTpPart *part = &p->plan->tp_part[i];
            if (!mine(p, part))
                continue;
            const bool owner = part->owner_tp == p->store.coord.tp;
            comm_gather(p->mesh->axis[AXIS_TP], p->reduce, p->muon_final[g] + part->offset,
                        owner ? take(p, p->reduce, &p->tp_gathered[i], part) : NULL, part->nelem, DTYPE_F32,
                        part->owner_tp,
                        (CommTag){.what = group->what, .unit = unit, .payload = counted(p, part->payload)});
        }
    }
    event_record(p->unit[unit].gathered, p->reduce);
}

/* Copies one rank's slice of a matrix between the whole matrix and the part's buffer. */
static void copy_slice(Parallel *p, int row, int rank, float *whole, float *slice, bool to_whole) {
    const Param *param = &p->plan->params->row[row];
    const PlanParam *plan = &p->plan->param[row];
    const int64_t rows = plan->local_dim[0], cols = plan->local_dim[1], in = param->dim[1];
    float *at = whole + (param->tp_dim == 0 ? rank * rows * in : rank * cols);
    ops_copy(p->compute, (Copy){.dst = to_whole ? at : slice,
                                .src = to_whole ? slice : at,
                                .rows = rows,
                                .cols = cols,
                                .dst_stride = to_whole ? in : cols,
                                .src_stride = to_whole ? cols : in});
}

static int part_index(const Parallel *p, const PlanTpPart *part) {
    return (int)(part - p->plan->tp_part);
}

void tp_assemble(Parallel *p, const PlanTpPart *part, int row, float *whole) {
    float *gathered = p->tp_gathered[part_index(p, part)];
    for (int t = 0; t < p->plan->mesh.tp; t++)
        copy_slice(p, row, t, whole, gathered + t * part->nelem + p->plan->param[row].gathered_offset, true);
}

void tp_distribute(Parallel *p, const PlanTpPart *part, int row, float *whole) {
    float *scattered = take(p, p->compute, &p->tp_scattered[part_index(p, part)], part);
    for (int t = 0; t < p->plan->mesh.tp; t++)
        copy_slice(p, row, t, whole, scattered + t * part->nelem + p->plan->param[row].gathered_offset, false);
}

/* This rank's slices of the part's matrices take their step. */
static void apply_part(Parallel *p, const PlanTpPart *part, const UpdateStep *step) {
    const MuonStep muon = {.lr = step->lr_muon,
                           .weight_decay = p->config->optimizer.muon.weight_decay,
                           .scale = p->config->optimizer.muon.scale};
    for (int i = part->first; i < part->first + part->count; i++) {
        const PlanParam *param = &p->plan->param[p->plan->member[i]];
        muon_apply(&muon, &param->ns, p->publish, p->store.master[part->group] + param->offset,
                   p->muon_final[part->group] + param->offset, param->local_nelem);
    }
}

/* The gradient's slices are done with: their storage receives the update's. */
void tp_scatter_unit(Parallel *p, int unit, const UpdateStep *step) {
    const PlanUnit *u = &p->plan->unit[unit];
    for (int g = u->first_group; g < u->first_group + u->group_count; g++) {
        const PlanGroup *group = &p->plan->group[g];
        for (int i = group->first_part; i < group->first_part + group->part_count; i++) {
            const PlanTpPart *part = &p->plan->tp_part[i];
            if (!mine(p, part))
                continue;
            comm_scatter(p->mesh->axis[AXIS_TP], p->publish, p->tp_scattered[i], p->muon_final[g] + part->offset,
                         part->nelem, DTYPE_F32, part->owner_tp,
                         (CommTag){.what = group->what, .unit = unit, .payload = counted(p, part->payload)});
            apply_part(p, part, step);
        }
    }
}
