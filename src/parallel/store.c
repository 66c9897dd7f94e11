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

int64_t store_momentum_nelem(const Plan *plan, const PlanGroup *group, MeshCoord coord) {
    int64_t nelem = 0;
    if (coord.shard != group->owner_shard || coord.replicate != group->owner_replicate)
        return 0;
    for (int i = group->first; i < group->first + group->count; i++) {
        const PlanParam *p = &plan->param[plan->member[i]];
        if (p->distributed)
            nelem += round_up(p->local_nelem, PLAN_ALIGN);
        else if (p->owner_tp == coord.tp)
            nelem += round_up(param_numel(&plan->params->row[plan->member[i]]), PLAN_ALIGN);
    }
    return nelem;
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
        const int64_t momentum = store_momentum_nelem(plan, group, coord);
        if (plan->ddp || store_in_column(store, group))
            store->master[g] = ARENA_PUSH(arena, float, group->nelem);
        if (momentum > 0)
            store->momentum[g] = ARENA_PUSH(arena, float, momentum);
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

/* Elements [e, e + count) of a part of a tensor whose rows are `width` wide and lie at columns [column, column + width)
 * of the tensor's rows, in storage at piece.ptr: one piece when the part is whole rows, else one per row. Rows of
 * vocabulary padding are not part of the logical tensor. */
static void visit_rows(const Visitor *v, StatePiece piece, Extent part, int64_t column, int64_t width) {
    const Param *row = &v->plan->params->row[piece.param];
    const int64_t numel = param_numel(row), in = row->ndim == 2 ? row->dim[1] : 1;
    float *ptr = piece.ptr;
    while (part.count > 0) {
        int64_t n = part.count;
        if (width < in) {
            piece.first = part.first / width * in + column + part.first % width;
            n = width - part.first % width < n ? width - part.first % width : n;
        } else {
            piece.first = part.first;
        }
        piece.count = extent_overlap((Extent){piece.first, n}, (Extent){0, numel}).count;
        piece.ptr = ptr;
        if (piece.count > 0)
            v->visit(v->arg, &piece);
        part.first += n;
        part.count -= n;
        ptr = ptr ? ptr + n : NULL;
    }
}

/* A tp rank's slice of a Muon matrix. */
static void visit_slice(const Visitor *v, StatePiece piece) {
    const Param *row = &v->plan->params->row[piece.param];
    const PlanParam *p = &v->plan->param[piece.param];
    const bool by_columns = row->tp_dim == 1;
    const int64_t first = row->tp_dim == 0 ? v->coord.tp * p->local_nelem : 0;
    visit_rows(v, piece, (Extent){first, p->local_nelem}, by_columns ? v->coord.tp * p->local_dim[1] : 0,
               p->local_dim[1]);
}

static void visit_muon(const Visitor *v, int row, StateKind kind) {
    const PlanParam *p = &v->plan->param[row];
    const bool column = v->coord.shard == p->owner_shard;
    const bool cell = column && v->coord.replicate == p->owner_replicate;
    float *base = NULL;
    StatePiece piece = {.kind = kind, .param = row, .primary = cell};
    if (kind == STATE_WEIGHT ? !(column || v->plan->ddp) : !cell)
        return;
    if (v->store)
        base = (kind == STATE_WEIGHT ? v->store->master : v->store->momentum)[p->group];
    if (kind == STATE_WEIGHT || p->distributed) {
        piece.ptr = base ? base + (kind == STATE_WEIGHT ? p->offset : p->momentum_offset) : NULL;
        visit_slice(v, piece);
    } else if (v->coord.tp == p->owner_tp) {
        piece.count = param_numel(&v->plan->params->row[row]);
        piece.ptr = base ? base + p->momentum_offset : NULL;
        v->visit(v->arg, &piece);
    }
}

/* Elements [e, e + count) of segment `seg` (counted over the whole tensor) of an AdamW tensor. */
static void visit_segment(const Visitor *v, StatePiece piece, int64_t seg, int64_t e, int64_t count) {
    const Param *row = &v->plan->params->row[piece.param];
    const PlanParam *p = &v->plan->param[piece.param];
    const int64_t in = row->ndim == 2 ? row->dim[1] : 1;
    if (row->tp_dim == 1) {
        const int64_t width = p->local_dim[1] / p->nseg;
        visit_rows(v, piece, (Extent){e, count}, seg * width, width);
    } else {
        visit_rows(v, piece, (Extent){seg * p->seg_nelem + e, count}, 0, in);
    }
}

static void visit_adamw(const Visitor *v, int row, StateKind kind) {
    const Plan *plan = v->plan;
    const PlanParam *p = &plan->param[row];
    const int unit = plan->params->row[row].unit;
    const int64_t run = plan->unit[unit].run * PLAN_BLOCK;
    const Extent mine = {store_run_index(plan, v->coord) * run, run};
    const bool cut = plan->params->row[row].tp_dim >= 0;
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
                                  .primary = v->coord.replicate == 0 && (cut || v->coord.tp == 0) &&
                                             (!plan->ddp || v->coord.shard == 0),
                                  .ptr = base ? base + (part.first - mine.first) : NULL};
        visit_segment(v, piece, (cut ? v->coord.tp * p->nseg : 0) + seg, part.first - start, part.count);
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
