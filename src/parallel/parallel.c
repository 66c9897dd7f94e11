/* Ties the strategies to the model's Residency. */
#include "parallel/parallel.h"

#include <string.h>

#include "base/fatal.h"
#include "parallel/internal.h"
#include "tensor/ops.h"

/* Where the unit's backward of this leaf writes. */
static float *take_grad_base(Parallel *p, int unit) {
    UnitState *state = &p->unit[unit];
    if (p->plan->local)
        return leaf_stack_next(&p->unit_grads[unit]);
    GradSlot *slot;
    do
        slot = &p->grad_slot[p->grad_next++ % p->grad_nslots];
    while (slot->busy);
    slot->busy = true;
    state->grad_slot = slot;
    event_wait(p->compute, slot->consumed);
    return slot->base;
}

static void residency_acquire(void *self, int unit, bool backward) {
    Parallel *p = self;
    prefetch_acquire(p, unit, backward);
    UnitState *state = &p->unit[unit];
    if (!backward || state->grad_base)
        return;
    state->grad_base = take_grad_base(p, unit);
    owner_bind_grads(p, unit, state->grad_base);
    fsdp_bind_grads(p, unit, state->grad_base);
}

static void residency_release(void *self, int unit, bool backward) {
    (void)backward;
    prefetch_release(self, unit);
}

/* Over the shard axis on the reduce stream, then, after the step's last leaf, over the replicate axis on the publish
 * stream. */
static void reduce_unit(Parallel *p, int unit, float *base, bool last) {
    UnitState *state = &p->unit[unit];
    const PlanUnit *u = &p->plan->unit[unit];
    event_record(state->grads_ready, p->compute);
    event_wait(p->reduce, state->grads_ready);
    owner_reduce_shard(p, unit, base);
    fsdp_reduce_shard(p, unit, base);
    if (!last)
        return;
    if (!p->plan->local) {
        for (int g = u->first_group; g < u->first_group + u->group_count; g++)
            if (store_in_column(&p->store, &p->plan->group[g]))
                leaf_stack_fold(&p->muon_held[g], p->reduce);
        leaf_stack_fold(&p->adamw_held[unit], p->reduce);
    }
    event_record(state->shard_done, p->reduce);
    event_wait(p->publish, state->shard_done);
    owner_reduce_replicate(p, unit);
    fsdp_reduce_replicate(p, unit);
    event_record(state->final, p->publish);
    if (unit < p->gather_next)
        tp_gather_unit(p, p->gather_next--);
}

static void residency_grads_done(void *self, int unit) {
    Parallel *p = self;
    UnitState *state = &p->unit[unit];
    const bool last = p->round == p->plan->per_rank - 1;
    fsdp_pack_grads(p, unit, state->grad_base);
    if (p->plan->local) {
        leaf_stack_push(&p->unit_grads[unit], p->compute);
        if (last) {
            leaf_stack_fold(&p->unit_grads[unit], p->compute);
            reduce_unit(p, unit, p->unit_grads[unit].base, true);
        }
    } else {
        reduce_unit(p, unit, state->grad_base, last);
        event_record(state->grad_slot->consumed, p->reduce);
        state->grad_slot->busy = false;
    }
    state->grad_base = NULL;
}

static void create_events(Parallel *p) {
    for (int u = 0; u < p->plan->params->nunits; u++) {
        UnitState *s = &p->unit[u];
        s->grads_ready = event_create(p->device);
        s->shard_done = event_create(p->device);
        s->final = event_create(p->device);
        s->gathered = event_create(p->device);
        s->updated = event_create(p->device);
        s->published = event_create(p->device);
    }
    for (CacheKind kind = 0; kind < CACHE_COUNT; kind++)
        for (int s = 0; s < p->cache[kind].nslots; s++) {
            p->cache[kind].slot[s].ready = event_create(p->device);
            p->cache[kind].slot[s].released = event_create(p->device);
        }
    for (int s = 0; s < p->grad_nslots; s++)
        p->grad_slot[s].consumed = event_create(p->device);
    p->adamw_done = event_create(p->device);
    p->watch = stopwatch_create(p->device);
    for (int b = 0; b < p->nbatches; b++)
        p->batch[b].repeat = repeat_create(p->device);
}

static void destroy_events(Parallel *p) {
    for (int u = 0; u < p->plan->params->nunits; u++) {
        UnitState *s = &p->unit[u];
        event_destroy(s->grads_ready);
        event_destroy(s->shard_done);
        event_destroy(s->final);
        event_destroy(s->gathered);
        event_destroy(s->updated);
        event_destroy(s->published);
    }
    for (CacheKind kind = 0; kind < CACHE_COUNT; kind++)
        for (int s = 0; s < p->cache[kind].nslots; s++) {
            event_destroy(p->cache[kind].slot[s].ready);
            event_destroy(p->cache[kind].slot[s].released);
        }
    for (int s = 0; s < p->grad_nslots; s++)
        event_destroy(p->grad_slot[s].consumed);
    event_destroy(p->adamw_done);
    stopwatch_destroy(p->watch);
    for (int b = 0; b < p->nbatches; b++)
        repeat_destroy(p->batch[b].repeat);
}

/* Sizes of the blocks in this rank's runs; a block beyond the unit's last one has none. */
static void upload_block_sizes(Parallel *p) {
    const Plan *plan = p->plan;
    for (int u = 0; u < plan->params->nunits; u++) {
        const PlanUnit *unit = &plan->unit[u];
        int32_t *size = HEAP_ALLOC(int32_t, unit->run * plan->adamw_shards);
        for (int i = unit->first_adamw; i < unit->first_adamw + unit->adamw_count; i++) {
            const PlanParam *param = &plan->param[plan->adamw_member[i]];
            for (int64_t b = 0; b < param->nseg * param->seg_blocks; b++)
                size[param->offset / PLAN_BLOCK + b] = plan_block_size(param, b % param->seg_blocks);
        }
        device_copy_from_host(p->compute, p->block_size[u], size + store_run_index(plan, p->store.coord) * unit->run,
                              (size_t)unit->run * sizeof *size);
        heap_free(size);
    }
}

Status parallel_create(Parallel **parallel, const Plan *plan, const Config *config, const Mesh *mesh, Device *device) {
    Parallel measure = {.plan = plan, .config = config};
    ParallelBytes bytes;
    parallel_layout(&measure, mesh->coord, &bytes);
    const size_t nbytes = measure.arena.used;
    parallel_release_tables(&measure);

    Parallel *p = HEAP_ALLOC(Parallel, 1);
    *p = (Parallel){.plan = plan, .config = config, .mesh = mesh, .device = device};
    p->compute = device_stream(device, STREAM_COMPUTE);
    p->gather = device_stream(device, STREAM_GATHER);
    p->reduce = device_stream(device, STREAM_REDUCE);
    p->publish = device_stream(device, STREAM_PUBLISH);
    const Status status = device_arena_init(device, &p->arena, nbytes, "weights, optimizer state and gradients");
    if (status != STATUS_OK) {
        heap_free(p);
        return status;
    }
    parallel_layout(p, mesh->coord, &bytes);
    p->host_sums = HEAP_ALLOC(double, plan->sums_nelem *mesh_size(plan->mesh));
    create_events(p);
    upload_block_sizes(p);
    p->residency = (Residency){.self = p,
                               .acquire = residency_acquire,
                               .release = residency_release,
                               .grads_done = residency_grads_done,
                               .value = p->value,
                               .bits = p->bits,
                               .grad = p->grad};
    *parallel = p;
    return STATUS_OK;
}

void parallel_connect(Parallel *p) {
    Comm *const *axis = p->mesh->axis;
    comm_prepare(p->mesh->world, p->compute);
    comm_prepare(axis[AXIS_SHARD], p->gather);
    comm_prepare(axis[AXIS_SHARD], p->reduce);
    if (p->plan->ddp)
        comm_prepare(axis[AXIS_SHARD], p->publish);
    comm_prepare(axis[AXIS_REPLICATE], p->publish);
    comm_prepare(axis[AXIS_TP], p->compute);
    comm_prepare(axis[AXIS_TP], p->reduce);
    comm_prepare(axis[AXIS_TP], p->publish);
}

void parallel_destroy(Parallel *p) {
    if (!p)
        return;
    parallel_drain(p);
    tp_release_gathered(p);
    tp_release_scattered(p);
    destroy_events(p);
    heap_free(p->host_sums);
    parallel_release_tables(p);
    device_arena_deinit(p->device, &p->arena);
    heap_free(p);
}

const Residency *parallel_residency(Parallel *p) {
    return &p->residency;
}

const Store *parallel_store(Parallel *p) {
    return &p->store;
}

size_t parallel_nbytes(const Parallel *p) {
    return p->arena.used;
}

void parallel_begin_step(Parallel *p) {
    p->in_step = true;
    p->round = 0;
    p->gather_next = p->plan->params->nunits - 1;
}

void parallel_begin_leaf(Parallel *p, int64_t round) {
    DM_ASSERT(round < p->plan->per_rank);
    p->round = round;
}

void parallel_begin_forward_only(Parallel *p) {
    p->in_step = false;
    p->forward_only = true;
}

void parallel_end_forward_only(Parallel *p) {
    prefetch_invalidate(p);
    p->forward_only = false;
}

void parallel_drain(Parallel *p) {
    for (int u = 0; u < p->plan->params->nunits; u++)
        if (p->unit[u].publish == PUBLISH_PENDING) {
            event_sync(p->unit[u].published);
            p->unit[u].publish = PUBLISH_IDLE;
        }
    stream_sync(p->gather);
    stream_sync(p->reduce);
    stream_sync(p->publish);
}

int parallel_take_publish_waits(Parallel *p, double *wait_us, int capacity) {
    int count = p->wait_count < WAIT_SAMPLES ? p->wait_count : WAIT_SAMPLES;
    count = count < capacity ? count : capacity;
    memcpy(wait_us, p->wait_us, (size_t)count * sizeof *wait_us);
    p->wait_count = 0;
    return count;
}

int64_t parallel_take_ns_calls(Parallel *p) {
    const int64_t calls = p->ns_calls;
    p->ns_calls = 0;
    return calls;
}
