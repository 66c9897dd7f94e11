/* After the last leaf: average, norm and clip factors, the update, the publish. */
#include <math.h>

#include "base/clock.h"
#include "base/trace.h"
#include "optim/clip.h"
#include "parallel/internal.h"
#include "tensor/ops.h"

/* This rank's list of binary64 sums: its AdamW blocks, unit by unit, then the segments of its slices of the matrices
 * that its cell owns. */
static void local_sums(Parallel *p) {
    const Plan *plan = p->plan;
    for (int u = 0; u < plan->params->nunits; u++)
        ops_sum_squares_blocks(p->compute, (SumSquaresBlocks){.out = p->sums + plan->unit[u].sum_first,
                                                              .x = p->adamw_final[u],
                                                              .size = p->block_size[u],
                                                              .nblocks = plan->unit[u].run});
    for (int row = 0; row < plan->params->count; row++) {
        const PlanParam *pp = &plan->param[row];
        if (pp->group < 0 || !store_in_cell(&p->store, &plan->group[pp->group]))
            continue;
        ops_sum_squares_rows(p->compute, (SumSquaresRows){.out = p->sums + pp->sum_first,
                                                          .x = p->muon_final[pp->group] + pp->offset,
                                                          .rows = pp->local_dim[0],
                                                          .cols = pp->local_dim[1],
                                                          .dim = plan->params->row[row].tp_dim == 1,
                                                          .nsegments = pp->nseg});
    }
}

/* Sum of one local segment of a tensor's slice on tp rank `tp`. AdamW blocks are taken from replicate row 0, whose bits
 * all rows share. */
static double segment_sum(Parallel *p, int row, int tp, int seg) {
    const Plan *plan = p->plan;
    const PlanParam *pp = &plan->param[row];
    MeshCoord at = {.replicate = pp->owner_replicate, .shard = pp->owner_shard, .tp = tp};
    if (plan->params->row[row].role == ROLE_MUON)
        return p->host_sums[mesh_rank(plan->mesh, at) * plan->sums_nelem + pp->sum_first + seg];
    const PlanUnit *u = &plan->unit[plan->params->row[row].unit];
    double *blocks = HEAP_ALLOC(double, pp->seg_blocks);
    for (int64_t b = 0; b < pp->seg_blocks; b++) {
        const int64_t block = pp->offset / PLAN_BLOCK + seg * pp->seg_blocks + b;
        at = (MeshCoord){.shard = (int)(block / u->run), .tp = tp};
        blocks[b] = p->host_sums[mesh_rank(plan->mesh, at) * plan->sums_nelem + u->sum_first + block % u->run];
    }
    const double sum = clip_tree_f64(blocks, pp->seg_blocks);
    heap_free(blocks);
    return sum;
}

/* The sum of one tensor from everybody's lists: the tree over its segments, in the order in which tp cuts them. */
static double tensor_sum(Parallel *p, int row) {
    const int nseg = p->plan->param[row].nseg;
    const int ranks = p->plan->params->row[row].tp_dim >= 0 ? p->plan->mesh.tp : 1;
    double segments[64];
    for (int tp = 0; tp < ranks; tp++)
        for (int seg = 0; seg < nseg; seg++)
            segments[tp * nseg + seg] = segment_sum(p, row, tp, seg);
    return clip_tree_f64(segments, ranks * nseg);
}

static void clip_roles(const Parallel *p, GradNorm *norm, double muon_sumsq, double adamw_sumsq) {
    const double both = p->config->optimizer.clip.max_norm;
    const double muon_max = p->config->optimizer.clip.muon_max_norm;
    const double adamw_max = p->config->optimizer.clip.adamw_max_norm;
    const ClipResult muon = both > 0 ? clip_factor(norm->sumsq, both) : clip_factor(muon_sumsq, muon_max);
    const ClipResult adamw = both > 0 ? clip_factor(norm->sumsq, both) : clip_factor(adamw_sumsq, adamw_max);
    norm->clip_muon = muon.clipped;
    norm->factor_muon = muon.factor;
    norm->clip_adamw = adamw.clipped;
    norm->factor_adamw = adamw.factor;
}

static GradNorm global_norm(Parallel *p) {
    const ParamTable *params = p->plan->params;
    double *sums = HEAP_ALLOC(double, params->count);
    double *picked = HEAP_ALLOC(double, params->count);
    GradNorm norm = {.bad_param = -1};
    double role_sum[2];
    for (int row = 0; row < params->count; row++) {
        sums[row] = tensor_sum(p, row);
        if (norm.bad_param < 0 && !isfinite(sums[row]))
            norm.bad_param = row;
    }
    for (Role role = ROLE_MUON; role <= ROLE_ADAMW; role++) {
        int n = 0;
        for (int row = 0; row < params->count; row++)
            if (params->row[row].role == role)
                picked[n++] = sums[row];
        role_sum[role] = clip_tree_f64(picked, n);
    }
    norm.sumsq = clip_tree_f64(sums, params->count);
    norm.norm = clip_factor(norm.sumsq, 0).norm;
    clip_roles(p, &norm, role_sum[ROLE_MUON], role_sum[ROLE_ADAMW]);
    heap_free(picked);
    heap_free(sums);
    return norm;
}

GradNorm parallel_finish_gradients(Parallel *p, double *reduce_wait_ms) {
    stopwatch_mark(p->watch, MARK_GRADS);
    for (int u = p->plan->params->nunits - 1; u >= 0; u--)
        event_wait(p->compute, p->unit[u].final);
    stopwatch_mark(p->watch, MARK_REDUCED);
    tp_release_scattered(p); /* the forward has acquired every unit */
    while (p->gather_next >= 0)
        tp_gather_unit(p, p->gather_next--);
    local_sums(p);
    const int64_t n = p->plan->sums_nelem;
    comm_all_gather(
        p->mesh->world, p->compute, p->sums, p->all_sums, n, DTYPE_F64,
        (CommTag){.what = "gradient norm", .unit = -1, .payload = 2 * counted(p, n * mesh_size(p->plan->mesh))});
    device_copy_to_host(p->compute, p->host_sums, p->all_sums, (size_t)(n * mesh_size(p->plan->mesh)) * sizeof(double));
    (void)stopwatch_ms(p->watch, MARK_GRADS, MARK_REDUCED, reduce_wait_ms);
    return global_norm(p);
}

/* The newest update that has run. */
static void time_update(Parallel *p) {
    if (p->update_timed && stopwatch_ms(p->watch, MARK_UPDATE, MARK_UPDATED, &p->optimizer_ms))
        p->update_timed = false;
}

double parallel_optimizer_ms(const Parallel *p) {
    return p->optimizer_ms;
}

void parallel_update(Parallel *p, const UpdateStep *step, const GradNorm *norm, bool apply, double *publish_wait_ms) {
    const int nunits = p->plan->params->nunits;
    const bool async = p->config->optimizer.muon.replicate_async;
    time_update(p);
    stopwatch_mark(p->watch, MARK_UPDATE);
    prefetch_invalidate(p);
    *publish_wait_ms = 0;
    if (apply) {
        for (int u = 0; u < nunits; u++) {
            event_wait(p->compute, p->unit[u].gathered);
            const int64_t begin = clock_ns();
            owner_update_unit(p, u, step, norm);
            trace_add("muon", STREAM_COMPUTE, u, begin, clock_ns());
            event_record(p->unit[u].updated, p->compute);
            if (async)
                owner_publish_unit(p, u, step);
        }
        const int64_t adamw = clock_ns();
        for (int u = 0; u < nunits; u++)
            fsdp_update_unit(p, u, step, norm);
        event_record(p->adamw_done, p->compute);
        const int64_t start = clock_ns();
        trace_add("adamw", STREAM_COMPUTE, -1, adamw, start);
        for (int u = 0; u < nunits && !async; u++)
            owner_publish_unit(p, u, step);
        for (int u = 0; u < nunits && !async; u++) {
            event_sync(p->unit[u].published);
            p->unit[u].publish = PUBLISH_IDLE;
        }
        *publish_wait_ms = clock_ms_since(start);
    }
    for (int u = 0; u < nunits; u++)
        event_wait(p->compute, p->unit[u].gathered);
    tp_release_gathered(p);
    stopwatch_mark(p->watch, MARK_UPDATED);
    p->update_timed = true;
    time_update(p);
    p->in_step = false;
}

void parallel_gather_losses(Parallel *p, const float *mine, float *all, bool flag, bool *any) {
    const int64_t k = p->plan->per_rank;
    const int world = mesh_size(p->plan->mesh);
    const float own_flag = flag ? 1.0F : 0.0F;
    float *host = HEAP_ALLOC(float, (k + 1) * world);
    device_copy_from_host(p->compute, p->loss, mine, (size_t)k * sizeof *mine);
    device_copy_from_host(p->compute, p->loss + k, &own_flag, sizeof own_flag);
    comm_all_gather(p->mesh->world, p->compute, p->loss, p->all_losses, k + 1, DTYPE_F32,
                    (CommTag){.what = "losses", .unit = -1, .payload = counted(p, (k + 1) * world)});
    device_copy_to_host(p->compute, host, p->all_losses, (size_t)((k + 1) * world) * sizeof *host);
    *any = false;
    for (int r = 0; r < world; r++) {
        const MeshCoord c = mesh_coord(p->plan->mesh, r);
        const int d = c.replicate * p->plan->mesh.shard + c.shard;
        for (int64_t j = 0; j < k; j++)
            all[plan_leaf(p->plan, d, j)] = host[r * (k + 1) + j];
        *any = *any || host[r * (k + 1) + k] != 0.0F;
    }
    heap_free(host);
}
