/* Which unit is fetched ahead, and when. The order of acquires is a pure function of the program, so every rank fetches
 * the same units in the same order. Z2 keeps a unit until the step ends; Z3 frees it on release and fetches it again
 * for the backward. */
#include "base/fatal.h"
#include "parallel/internal.h"

static bool unit_has(const Parallel *p, CacheKind kind, int unit) {
    const PlanUnit *u = &p->plan->unit[unit];
    return kind == CACHE_MUON ? u->group_count > 0 : u->blocks > 0;
}

static CacheSlot *cache_find(Cache *cache, int unit) {
    for (int s = 0; s < cache->nslots; s++)
        if (cache->slot[s].unit == unit)
            return &cache->slot[s];
    return NULL;
}

static CacheSlot *cache_take(Cache *cache, int unit) {
    CacheSlot *slot = cache->keep ? &cache->slot[unit] : cache_find(cache, -1);
    DM_ASSERT(slot != NULL && slot->unit == -1);
    slot->unit = unit;
    return slot;
}

/* Queues the gather of one kind of a unit's weights, behind its publish and behind the last reader of the slot. */
static CacheSlot *fetch(Parallel *p, CacheKind kind, int unit) {
    CacheSlot *slot = cache_take(&p->cache[kind], unit);
    event_wait(p->gather, slot->released);
    if (p->unit[unit].publish == PUBLISH_PENDING)
        event_wait(p->gather, p->unit[unit].published);
    if (kind == CACHE_ADAMW)
        event_wait(p->gather, p->adamw_done);
    if (kind == CACHE_MUON)
        owner_gather(p, unit, slot);
    else
        fsdp_gather(p, unit, slot);
    event_record(slot->ready, p->gather);
    return slot;
}

/* The acquire after (unit, backward): forward up, backward down, then the next leaf. False when nothing follows before
 * weights change. */
static bool next_acquire(const Parallel *p, int *unit, bool *backward, int64_t *round) {
    const int last = p->plan->params->nunits - 1;
    if (!*backward && *unit < last) {
        (*unit)++;
    } else if (!*backward) {
        if (p->forward_only)
            return false;
        *backward = true;
    } else if (*unit > 0) {
        (*unit)--;
    } else {
        if (++*round >= p->plan->per_rank)
            return false;
        *backward = false;
    }
    return true;
}

static void look_ahead(Parallel *p, int unit, bool backward) {
    int64_t round = p->round;
    /* a tied embedding's backward is acquired before the head's, where the forward ended */
    if (backward && unit == 0 && p->plan->params->shape->tied) {
        unit = p->plan->params->nunits - 1;
        backward = false;
    }
    for (int i = 0; i < p->config->parallel.prefetch; i++) {
        if (!next_acquire(p, &unit, &backward, &round))
            return;
        for (CacheKind kind = 0; kind < CACHE_COUNT; kind++) {
            Cache *cache = &p->cache[kind];
            if (unit_has(p, kind, unit) && !cache_find(cache, unit) && (cache->keep || cache_find(cache, -1)))
                fetch(p, kind, unit);
        }
    }
}

/* The first reader of a published unit waits for it, and the wait is what the async publish did not hide. */
static void wait_published(Parallel *p, int unit) {
    UnitState *state = &p->unit[unit];
    if (state->publish == PUBLISH_IDLE)
        return;
    const double us = event_sync(state->published);
    p->wait_us[p->wait_count++ % WAIT_SAMPLES] = us;
    state->publish = PUBLISH_IDLE;
}

/* The 16 bits of what lies in a slot; a tensor copied together from its blocks has none. */
static void bind_bits(Parallel *p, int unit, CacheSlot *const slot[CACHE_COUNT]) {
    for (int row = 0; row < p->plan->params->count; row++) {
        const Param *param = &p->plan->params->row[row];
        const bool muon = param->role == ROLE_MUON;
        const CacheSlot *own = slot[muon ? CACHE_MUON : CACHE_ADAMW];
        if (param->unit != unit)
            continue;
        p->bits[row] = NULL;
        if (own != NULL && own->wire != NULL && (muon || p->plan->param[row].dense))
            p->bits[row] = own->wire + (p->value[row] - own->base);
    }
}

void prefetch_acquire(Parallel *p, int unit, bool backward) {
    CacheSlot *slot[CACHE_COUNT] = {NULL};
    for (CacheKind kind = 0; kind < CACHE_COUNT; kind++) {
        if (!unit_has(p, kind, unit))
            continue;
        slot[kind] = cache_find(&p->cache[kind], unit);
        if (!slot[kind])
            slot[kind] = fetch(p, kind, unit);
    }
    wait_published(p, unit);
    for (CacheKind kind = 0; kind < CACHE_COUNT; kind++)
        if (slot[kind])
            event_wait(p->compute, slot[kind]->ready);
    if (slot[CACHE_MUON])
        owner_bind_values(p, unit, slot[CACHE_MUON]);
    if (slot[CACHE_ADAMW])
        fsdp_bind_values(p, unit, slot[CACHE_ADAMW]);
    bind_bits(p, unit, slot);
    look_ahead(p, unit, backward);
}

static void free_slot(Parallel *p, CacheSlot *slot) {
    event_record(slot->released, p->compute);
    slot->unit = -1;
}

void prefetch_release(Parallel *p, int unit) {
    for (CacheKind kind = 0; kind < CACHE_COUNT; kind++) {
        CacheSlot *slot = cache_find(&p->cache[kind], unit);
        if (slot && !p->cache[kind].keep)
            free_slot(p, slot);
    }
}

void prefetch_invalidate(Parallel *p) {
    for (CacheKind kind = 0; kind < CACHE_COUNT; kind++)
        for (int s = 0; s < p->cache[kind].nslots; s++)
            if (p->cache[kind].slot[s].unit >= 0)
                free_slot(p, &p->cache[kind].slot[s]);
}
