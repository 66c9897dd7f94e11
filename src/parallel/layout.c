/* Memory of the strategy: one layout function, run on an arena without memory for --plan and on the real one for a run.
 */
#include "base/arena.h"
#include "base/fatal.h"
#include "mesh/extent.h"
#include "parallel/internal.h"

static int64_t max64(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* Elements that a slot for this unit holds: the packed buffers this rank has no copy of, or the flat and side buffers;
 * rounded weights always. */
static int64_t slot_nelem(const Parallel *p, CacheKind kind, int unit) {
    const PlanUnit *u = &p->plan->unit[unit];
    const bool filled = wire_fetches(p) || config_rounds_weights(p->config);
    if (kind == CACHE_ADAMW)
        return (filled ? u->flat_nelem : 0) + u->side_nelem;
    return filled ? u->muon_nelem : 0;
}

/* Elements of it that are there as bf16 too. */
static int64_t slot_wire_nelem(const Parallel *p, CacheKind kind, int unit) {
    const PlanUnit *u = &p->plan->unit[unit];
    const bool travels = wire_fetches(p) && wire_dtype(p->config) == DTYPE_BF16;
    if (!travels && !config_keeps_bits(p->config))
        return 0;
    return kind == CACHE_ADAMW ? u->flat_nelem : u->muon_nelem;
}

static void layout_cache(Parallel *p, CacheKind kind) {
    const int nunits = p->plan->params->nunits;
    Cache *cache = &p->cache[kind];
    cache->keep = kind == CACHE_MUON ? !p->config->parallel.reshard_muon : !p->config->parallel.reshard_adamw;
    /* one in use, those fetched ahead, and a tied embedding that stays from forward to the end of backward */
    const int pool = p->config->parallel.prefetch + 1 + p->plan->params->shape->tied;
    cache->nslots = cache->keep || pool > nunits ? nunits : pool;
    cache->slot = HEAP_ALLOC(CacheSlot, cache->nslots);
    int64_t largest = 0, largest_wire = 0;
    for (int u = 0; u < nunits; u++) {
        largest = max64(largest, slot_nelem(p, kind, u));
        largest_wire = max64(largest_wire, slot_wire_nelem(p, kind, u));
    }
    for (int s = 0; s < cache->nslots; s++) {
        CacheSlot *slot = &cache->slot[s];
        slot->unit = -1;
        slot->base = ARENA_PUSH(&p->arena, float, cache->keep ? slot_nelem(p, kind, s) : largest);
        const int64_t wire = cache->keep ? slot_wire_nelem(p, kind, s) : largest_wire;
        slot->wire = wire > 0 ? ARENA_PUSH(&p->arena, uint16_t, wire) : NULL;
    }
}

/* accumulate reduce: a pool for the gradients in flight, and counters only where reduced gradients are held. */
static void layout_reduce(Parallel *p, ParallelBytes *bytes) {
    const Plan *plan = p->plan;
    int64_t largest = 0;
    for (int u = 0; u < plan->params->nunits; u++)
        largest = max64(largest, unit_grad_nelem(&plan->unit[u]));
    const size_t before = p->arena.used;
    p->grad_nslots = 2 + plan->params->shape->tied;
    p->grad_slot = HEAP_ALLOC(GradSlot, p->grad_nslots);
    for (int s = 0; s < p->grad_nslots; s++)
        p->grad_slot[s].base = ARENA_PUSH(&p->arena, float, largest);
    const size_t pool = p->arena.used;
    for (int g = 0; g < plan->ngroups; g++) {
        if (!store_in_column(&p->store, &plan->group[g]))
            continue;
        leaf_stack_layout(&p->muon_held[g], &p->arena, plan->group[g].nelem, plan->per_rank);
        p->muon_final[g] = p->muon_held[g].base;
    }
    for (int u = 0; u < plan->params->nunits; u++) {
        leaf_stack_layout(&p->adamw_held[u], &p->arena, plan->unit[u].run * PLAN_BLOCK, plan->per_rank);
        p->adamw_final[u] = p->adamw_held[u].base;
    }
    const size_t depth = (size_t)plan_stack_depth(plan->per_rank);
    const size_t held = p->arena.used - pool;
    bytes->gradients = pool - before + held / depth;
    bytes->leaf_trees = held - held / depth;
}

/* accumulate local: every rank counts whole gradients; the reductions run in place. */
static void layout_local(Parallel *p, ParallelBytes *bytes) {
    const Plan *plan = p->plan;
    const size_t before = p->arena.used;
    for (int u = 0; u < plan->params->nunits; u++) {
        const PlanUnit *unit = &plan->unit[u];
        leaf_stack_layout(&p->unit_grads[u], &p->arena, unit_grad_nelem(unit), plan->per_rank);
        float *base = p->unit_grads[u].base;
        if (!base)
            continue;
        for (int g = unit->first_group; g < unit->first_group + unit->group_count; g++)
            if (store_in_column(&p->store, &plan->group[g]))
                p->muon_final[g] = base + plan->group[g].unit_offset;
        p->adamw_final[u] = base + unit->muon_nelem + store_run_index(plan, p->store.coord) * unit->run * PLAN_BLOCK;
    }
    const size_t all = p->arena.used - before;
    bytes->gradients = all / (size_t)plan_stack_depth(plan->per_rank);
    bytes->leaf_trees = all - bytes->gradients;
}

/* Of the whole matrices of one batch. */
static int64_t largest_whole(const Parallel *p) {
    int64_t largest = 0;
    for (int b = 0; b < p->nbatches; b++)
        if (p->batch[b].part >= 0)
            largest = max64(largest, owner_whole_end(p, &p->batch[b], p->batch[b].count));
    return largest;
}

/* Between a cell's slices and its tp owners: kept buffers in the arena; the others are taken in the step and counted
 * here all the same. */
static void layout_tp(Parallel *p, ParallelBytes *bytes) {
    const Plan *plan = p->plan;
    const BufferReuse reuse = p->config->parallel.tp_buffer_reuse;
    const size_t before = p->arena.used;
    for (int i = 0; i < plan->nparts; i++) {
        const PlanTpPart *part = &plan->tp_part[i];
        if (!store_in_cell(&p->store, &plan->group[part->group]) || part->owner_tp != p->store.coord.tp)
            continue;
        const int64_t nelem = part->nelem * plan->mesh.tp;
        if (reuse == REUSE_ALL || reuse == REUSE_GATHER)
            p->tp_gathered[i] = ARENA_PUSH(&p->arena, float, nelem);
        else
            bytes->tp_buffers += (size_t)nelem * sizeof(float);
        if (reuse == REUSE_ALL || reuse == REUSE_SCATTER)
            p->tp_scattered[i] = ARENA_PUSH(&p->arena, float, nelem);
        else
            bytes->tp_buffers += (size_t)nelem * sizeof(float);
    }
    p->tp_whole = ARENA_PUSH(&p->arena, float, largest_whole(p));
    bytes->tp_buffers += p->arena.used - before;
}

/* Of any run of Newton-Schulz on this rank: a batch, or its part of a matrix that stays in slices. */
static int64_t largest_ns_scratch(const Parallel *p) {
    const Plan *plan = p->plan;
    int64_t largest = 0;
    for (int b = 0; b < p->nbatches; b++)
        largest = max64(largest, ns_scratch_nelem(&plan->param[p->batch[b].row[0]].ns, p->batch[b].count));
    for (int i = 0; i < plan->params->count; i++)
        if (plan->param[i].distributed && store_in_cell(&p->store, &plan->group[plan->param[i].group]))
            largest = max64(largest, ns_scratch_nelem(&plan->param[i].ns, 1));
    return largest;
}

/* The publish stream packs, sends and unpacks one packed buffer after the other. */
static void layout_publish(Parallel *p) {
    const Plan *plan = p->plan;
    int64_t largest = 0;
    const bool published = plan->mesh.replicate > 1 || (plan->ddp && plan->mesh.shard > 1);
    if (!published || wire_dtype(p->config) == DTYPE_F32)
        return;
    for (int g = 0; g < plan->ngroups; g++)
        if (plan->ddp || store_in_column(&p->store, &plan->group[g]))
            largest = max64(largest, plan->group[g].nelem);
    p->wire = ARENA_PUSH(&p->arena, uint16_t, largest);
}

static void layout_scratch(Parallel *p) {
    const Plan *plan = p->plan;
    const int world = mesh_size(plan->mesh);
    p->ns_scratch = ARENA_PUSH(&p->arena, float, largest_ns_scratch(p));
    for (int u = 0; u < plan->params->nunits; u++)
        p->block_size[u] = ARENA_PUSH(&p->arena, int32_t, plan->unit[u].run);
    p->sums = ARENA_PUSH(&p->arena, double, plan->sums_nelem);
    p->all_sums = ARENA_PUSH(&p->arena, double, plan->sums_nelem *world);
    p->loss = ARENA_PUSH(&p->arena, float, plan->per_rank + 1);
    p->all_losses = ARENA_PUSH(&p->arena, float, (plan->per_rank + 1) * world);
}

void parallel_layout(Parallel *p, MeshCoord coord, ParallelBytes *bytes) {
    const Plan *plan = p->plan;
    const int nunits = plan->params->nunits;
    *bytes = (ParallelBytes){0};
    p->value = HEAP_ALLOC(float *, plan->params->count);
    p->grad = HEAP_ALLOC(float *, plan->params->count);
    p->bits = HEAP_ALLOC(uint16_t *, plan->params->count);
    p->unit = HEAP_ALLOC(UnitState, nunits);
    p->muon_held = HEAP_ALLOC(LeafStack, plan->ngroups);
    p->adamw_held = HEAP_ALLOC(LeafStack, nunits);
    p->unit_grads = HEAP_ALLOC(LeafStack, nunits);
    p->muon_final = HEAP_ALLOC(float *, plan->ngroups);
    p->adamw_final = HEAP_ALLOC(float *, nunits);
    p->block_size = HEAP_ALLOC(int32_t *, nunits);
    p->tp_gathered = HEAP_ALLOC(float *, plan->nparts);
    p->tp_scattered = HEAP_ALLOC(float *, plan->nparts);
    store_create(&p->store, plan, coord, &p->arena);
    owner_batches(p);
    for (int g = 0; g < plan->ngroups; g++)
        bytes->momentum += (size_t)store_momentum_nelem(plan, &plan->group[g], coord) * sizeof(float);
    for (int u = 0; u < nunits; u++)
        bytes->moments += 2 * (size_t)plan->unit[u].run * PLAN_BLOCK * sizeof(float);
    bytes->weights = p->arena.used - bytes->momentum - bytes->moments;
    size_t mark = p->arena.used;
    for (CacheKind kind = 0; kind < CACHE_COUNT; kind++)
        layout_cache(p, kind);
    bytes->gathered = p->arena.used - mark;
    if (plan->local)
        layout_local(p, bytes);
    else
        layout_reduce(p, bytes);
    layout_tp(p, bytes);
    mark = p->arena.used;
    layout_publish(p);
    layout_scratch(p);
    bytes->scratch = p->arena.used - mark;
}

void parallel_release_tables(Parallel *p) {
    store_destroy(&p->store);
    for (CacheKind kind = 0; kind < CACHE_COUNT; kind++)
        heap_free(p->cache[kind].slot);
    heap_free(p->value);
    heap_free(p->grad);
    heap_free(p->bits);
    heap_free(p->unit);
    heap_free(p->muon_held);
    heap_free(p->adamw_held);
    heap_free(p->unit_grads);
    heap_free(p->muon_final);
    heap_free(p->adamw_final);
    heap_free(p->block_size);
    heap_free(p->tp_gathered);
    heap_free(p->tp_scattered);
    heap_free(p->grad_slot);
    heap_free(p->batch);
}

ParallelBytes parallel_measure(const Plan *plan, const Config *config, MeshCoord coord) {
    Parallel p = {.plan = plan, .config = config};
    ParallelBytes bytes;
    parallel_layout(&p, coord, &bytes);
    parallel_release_tables(&p);
    return bytes;
}
