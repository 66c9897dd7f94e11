/* The rank's share of the state, and its pieces. */
#include "parallel/store.h"

#include "base/arena.h"
#include "base/fatal.h"
#include "mesh/extent.h"

const char *state_prefix(StateKind kind) {
    static const char *const prefix[STATE_KIND_COUNT] = {"", "momentum.", "exp_avg.", "exp_avg_sq."};
    return prefix[kind];
}

bool state_exists(Role role, StateKind kind) {
    return kind == STATE_WEIGHT || (role == ROLE_MUON) == (kind == STATE_MOMENTUM);
}

void store_create(Store *store, const Plan *plan, MeshCoord coord, Arena *arena) {
    const int nunits = plan->params->nunits;
    *store = (Store){.plan = plan,
                     .coord = coord,
                     .master = HEAP_ALLOC(float *, plan->ngroups),
                     .momentum = HEAP_ALLOC(float *, plan->ngroups),
                     .shard = HEAP_ALLOC(float *, nunits),
                     .exp_avg = HEAP_ALLOC(float *, nunits),
                     .exp_avg_sq = HEAP_ALLOC(float *, nunits)};
    for (int g = 0; g < plan->ngroups; g++) {
        const PlanGroup *group = &plan->group[g];
        if (store_in_column(store, group))
            store->master[g] = ARENA_PUSH(arena, float, group->nelem);
        if (store_is_owner(store, group))
            store->momentum[g] = ARENA_PUSH(arena, float, group->nelem);
    }
    for (int u = 0; u < nunits; u++) {
        const int64_t nelem = plan->unit[u].run * PLAN_BLOCK;
        store->shard[u] = ARENA_PUSH(arena, float, nelem);
        store->exp_avg[u] = ARENA_PUSH(arena, float, nelem);
        store->exp_avg_sq[u] = ARENA_PUSH(arena, float, nelem);
    }
}

void store_destroy(Store *store) {
    heap_free(store->master);
    heap_free(store->momentum);
    heap_free(store->shard);
    heap_free(store->exp_avg);
    heap_free(store->exp_avg_sq);
    *store = (Store){0};
}

typedef struct Visitor {
    const Plan *plan;
    const Store *store; /* NULL: no pointers */
    MeshCoord coord;
    void (*visit)(void *arg, const StatePiece *piece);
    void *arg;
} Visitor;

static void visit_muon(const Visitor *v, int row, StateKind kind) {
    const PlanParam *p = &v->plan->param[row];
    const bool owner = v->coord.shard == p->owner_shard && v->coord.replicate == p->owner_replicate;
    if (v->coord.shard != p->owner_shard || (kind == STATE_MOMENTUM && !owner))
        return;
    float *base = NULL;
    if (v->store)
        base = (kind == STATE_WEIGHT ? v->store->master : v->store->momentum)[p->group];
    const StatePiece piece = {.kind = kind,
                              .param = row,
                              .first = 0,
                              .count = param_numel(&v->plan->params->row[row]),
                              .primary = owner,
                              .ptr = base ? base + p->offset : NULL};
    v->visit(v->arg, &piece);
}

/* Elements [e, e + count) of segment `seg` of an AdamW tensor, in flat storage at ptr: contiguous in the tensor when the segments are rows;
 * otherwise cut at the ends of the segment's rows. Rows of vocabulary padding are not part of the logical tensor. */
static void visit_segment(const Visitor *v, StatePiece piece, int seg, int64_t e, int64_t count) {
    const Param *row = &v->plan->params->row[piece.param];
    const PlanParam *p = &v->plan->param[piece.param];
    const int64_t numel = param_numel(row);
    const bool by_columns = p->nseg > 1 && row->tp_dim == 1;
    const int64_t width = by_columns ? row->dim[1] / p->nseg : count;
    float *ptr = piece.ptr;
    while (count > 0) {
        int64_t n = count;
        if (by_columns) {
            piece.first = e / width * row->dim[1] + seg * width + e % width;
            n = width - e % width < n ? width - e % width : n;
        } else {
            piece.first = seg * p->seg_nelem + e;
        }
        piece.count = extent_overlap((Extent){piece.first, n}, (Extent){0, numel}).count;
        piece.ptr = ptr;
        if (piece.count > 0)
            v->visit(v->arg, &piece);
        e += n;
        count -= n;
        ptr = ptr ? ptr + n : NULL;
    }
}

static void visit_adamw(const Visitor *v, int row, StateKind kind) {
    const Plan *plan = v->plan;
    const PlanParam *p = &plan->param[row];
    const int unit = plan->params->row[row].unit;
    const int64_t run = plan->unit[unit].run * PLAN_BLOCK;
    const Extent mine = {v->coord.shard * run, run};
    float *base = NULL;
    if (v->store)
        base = (kind == STATE_WEIGHT    ? v->store->shard
                : kind == STATE_EXP_AVG ? v->store->exp_avg
                                        : v->store->exp_avg_sq)[unit];
    for (int seg = 0; seg < p->nseg; seg++) {
        const int64_t start = p->offset + seg * p->seg_blocks * PLAN_BLOCK;
        const Extent part = extent_overlap(mine, (Extent){start, p->seg_nelem});
        if (part.count == 0)
            continue;
        const StatePiece piece = {.kind = kind,
                                  .param = row,
                                  .primary = v->coord.replicate == 0,
                                  .ptr = base ? base + (part.first - mine.first) : NULL};
        visit_segment(v, piece, seg, part.first - start, part.count);
    }
}

static void visit_all(const Visitor *v) {
    const ParamTable *params = v->plan->params;
    for (StateKind kind = 0; kind < STATE_KIND_COUNT; kind++)
        for (int row = 0; row < params->count; row++) {
            if (!state_exists(params->row[row].role, kind))
                continue;
            if (params->row[row].role == ROLE_MUON)
                visit_muon(v, row, kind);
            else
                visit_adamw(v, row, kind);
        }
}

void store_visit(const Store *store, void (*visit)(void *arg, const StatePiece *piece), void *arg) {
    visit_all(&(Visitor){.plan = store->plan, .store = store, .coord = store->coord, .visit = visit, .arg = arg});
}

void plan_visit_pieces(const Plan *plan, MeshCoord coord, void (*visit)(void *arg, const StatePiece *piece),
                       void *arg) {
    visit_all(&(Visitor){.plan = plan, .coord = coord, .visit = visit, .arg = arg});
}
