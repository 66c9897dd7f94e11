/* Weights in flight. With precision.wire bf16 they travel packed; with it or with precision.compute bf16 every reader
 * gets them rounded, in a cache slot, the rank that holds the master too, so that no result depends on who holds it. A
 * master is never rounded: it is read where it is updated, and the other copies of a matrix hold what travelled. In f32
 * a publish sends the masters themselves. */
#include "parallel/internal.h"
#include "tensor/ops.h"

static bool packed(const Parallel *p) {
    return wire_dtype(p->config) == DTYPE_BF16;
}

/* x into the slot from element `first` on. */
static void round_to(Parallel *p, const CacheSlot *slot, int64_t first, const float *x, int64_t n) {
    ops_round_bf16(
        p->gather,
        (RoundBf16){.y = slot->base + first, .bits = slot->wire ? slot->wire + first : NULL, .x = x, .n = n});
}

void wire_gather_group(Parallel *p, int g, const CacheSlot *slot) {
    const PlanGroup *group = &p->plan->group[g];
    Comm *shard = p->mesh->axis[AXIS_SHARD];
    float *master = p->store.master[g], *whole = slot->base + group->unit_offset;
    const CommTag tag = {.what = group->what, .unit = group->unit, .payload = counted_weights(p, group->payload)};
    if (!wire_fetches(p)) {
        round_to(p, slot, group->unit_offset, master, group->nelem);
    } else if (packed(p)) {
        uint16_t *wire = slot->wire + group->unit_offset;
        if (master)
            ops_pack_bf16(p->gather, (PackBf16){.y = wire, .x = master, .n = group->nelem});
        comm_broadcast(shard, p->gather, wire, group->nelem, DTYPE_BF16, group->owner_shard, tag);
        ops_unpack_bf16(p->gather, (UnpackBf16){.y = whole, .x = wire, .n = group->nelem});
    } else {
        float *buf = master ? master : whole;
        comm_broadcast(shard, p->gather, buf, group->nelem, DTYPE_F32, group->owner_shard, tag);
        round_to(p, slot, group->unit_offset, buf, group->nelem);
    }
}

void wire_gather_blocks(Parallel *p, int unit, const CacheSlot *slot, CommTag tag) {
    const PlanUnit *u = &p->plan->unit[unit];
    Comm *shard = p->mesh->axis[AXIS_SHARD];
    const int64_t run = u->run * PLAN_BLOCK;
    const float *mine = p->store.shard[unit];
    if (!wire_fetches(p)) {
        round_to(p, slot, 0, mine, run);
    } else if (packed(p)) {
        uint16_t *wire = slot->wire + p->store.coord.shard * run;
        ops_pack_bf16(p->gather, (PackBf16){.y = wire, .x = mine, .n = run});
        comm_all_gather(shard, p->gather, wire, slot->wire, run, DTYPE_BF16, tag);
        ops_unpack_bf16(p->gather, (UnpackBf16){.y = slot->base, .x = slot->wire, .n = u->flat_nelem});
    } else {
        comm_all_gather(shard, p->gather, mine, slot->base, run, DTYPE_F32, tag);
        round_to(p, slot, 0, slot->base, u->flat_nelem);
    }
}

void wire_publish_begin(Parallel *p, int g) {
    if (p->wire && store_in_cell(&p->store, &p->plan->group[g]))
        ops_pack_bf16(p->publish, (PackBf16){.y = p->wire, .x = p->store.master[g], .n = p->plan->group[g].nelem});
}

void wire_publish_over(Parallel *p, Axis axis, int g, int root) {
    const PlanGroup *group = &p->plan->group[g];
    void *buf = p->wire ? (void *)p->wire : p->store.master[g];
    comm_broadcast(p->mesh->axis[axis], p->publish, buf, group->nelem, p->wire ? DTYPE_BF16 : DTYPE_F32, root,
                   (CommTag){.what = group->what, .unit = group->unit, .payload = counted_weights(p, group->payload)});
}

void wire_publish_end(Parallel *p, int g) {
    if (p->wire && p->store.master[g] && !store_in_cell(&p->store, &p->plan->group[g]))
        ops_unpack_bf16(p->publish, (UnpackBf16){.y = p->store.master[g], .x = p->wire, .n = p->plan->group[g].nelem});
}
