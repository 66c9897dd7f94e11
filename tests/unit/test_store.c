/* A rank's share of the state: pieces in memory of their own, and blocks where the gathered unit wants them. */
#include "tests/unit/plan_fixture.h"

#include "base/arena.h"
#include "parallel/store.h"

/* A store in real memory, with every element of which it holds a weight numbered by its place in the tensor. */
typedef struct Placed {
    Planned *p;
    Store store;
    Arena arena;
    unsigned char *taken; /* [bytes of the arena / 4] */
    StatePiece *piece;    /* in the order of the visit */
    int count, capacity;
} Placed;

static void note_piece(Placed *placed, const StatePiece *piece) {
    if (placed->count == placed->capacity) {
        placed->capacity = 2 * placed->capacity + 64;
        placed->piece = realloc(placed->piece, (size_t)placed->capacity * sizeof *placed->piece);
        assert_non_null(placed->piece);
    }
    placed->piece[placed->count++] = *piece;
}

static void place_piece(void *arg, const StatePiece *piece) {
    Placed *placed = arg;
    const int64_t at = piece->ptr - (float *)placed->arena.base;
    assert_non_null(piece->ptr);
    assert_true(at >= 0 && (size_t)(at + piece->count) * sizeof(float) <= placed->arena.used);
    for (int64_t e = 0; e < piece->count; e++) {
        assert_int_equal(placed->taken[at + e], 0);
        placed->taken[at + e] = 1;
        piece->ptr[e] = (float)(piece->first + e);
    }
    note_piece(placed, piece);
}

static void placed_init(Placed *placed, Planned *p, MeshCoord coord) {
    *placed = (Placed){.p = p};
    Arena measure = {0};
    store_create(&placed->store, &p->plan, coord, &measure);
    store_destroy(&placed->store);
    assert_int_equal(arena_init(&placed->arena, measure.used, "store"), STATUS_OK);
    placed->taken = calloc(measure.used / sizeof(float) + 1, 1);
    assert_non_null(placed->taken);
    store_create(&placed->store, &p->plan, coord, &placed->arena);
    assert_int_equal(placed->arena.used, measure.used);
    store_visit(&placed->store, place_piece, placed);
}

static void placed_deinit(Placed *placed) {
    store_destroy(&placed->store);
    arena_deinit(&placed->arena);
    free(placed->taken);
    free(placed->piece);
}

static void check_pieces(Planned *p) {
    for (int r = 0; r < mesh_size(p->plan.mesh); r++) {
        Placed placed;
        placed_init(&placed, p, mesh_coord(p->plan.mesh, r));
        assert_true(placed.count > 0);
        placed_deinit(&placed);
    }
}

static void test_pieces_lie_apart_in_the_memory_that_was_measured(void **state) {
    (void)state;
    for_each_planned(check_pieces);
}

/* The plan's list without memory, compared with the store's. */
typedef struct Follow {
    const Placed *placed;
    int at;
} Follow;

static void follow_piece(void *arg, const StatePiece *piece) {
    Follow *follow = arg;
    assert_true(follow->at < follow->placed->count);
    const StatePiece *other = &follow->placed->piece[follow->at++];
    assert_int_equal(piece->kind, other->kind);
    assert_int_equal(piece->param, other->param);
    assert_int_equal(piece->first, other->first);
    assert_int_equal(piece->count, other->count);
    assert_int_equal(piece->primary, other->primary);
    assert_null(piece->ptr);
}

static void check_same_list(Planned *p) {
    for (int r = 0; r < mesh_size(p->plan.mesh); r++) {
        Placed placed;
        placed_init(&placed, p, mesh_coord(p->plan.mesh, r));
        Follow follow = {.placed = &placed};
        plan_visit_pieces(&p->plan, mesh_coord(p->plan.mesh, r), follow_piece, &follow);
        assert_int_equal(follow.at, placed.count);
        placed_deinit(&placed);
    }
}

static void test_any_rank_knows_the_pieces_of_every_rank(void **state) {
    (void)state;
    for_each_planned(check_same_list);
}

/* Place in the tensor of element e of segment seg, counted over the tensor: rows when tp cuts dim 0, columns when it
 * cuts dim 1. */
static int64_t place_of(const Param *row, const PlanParam *p, int seg, int64_t e) {
    if (row->tp_dim != 1)
        return seg * p->seg_nelem + e;
    const int64_t width = p->local_dim[1] / p->nseg;
    return e / width * row->dim[1] + seg * width + e % width;
}

static void check_flat_param(const Planned *p, int row, int tp, const float *flat) {
    const PlanParam *pp = &p->plan.param[row];
    const int first = p->params.row[row].tp_dim >= 0 ? tp * pp->nseg : 0;
    const int64_t numel = param_numel(&p->params.row[row]);
    for (int seg = 0; seg < pp->nseg; seg++)
        for (int64_t e = 0; e < pp->seg_blocks * PLAN_BLOCK; e++) {
            const int64_t place = place_of(&p->params.row[row], pp, first + seg, e);
            const bool real = e < pp->seg_nelem && place < numel;
            const float value = flat[pp->offset + seg * pp->seg_blocks * PLAN_BLOCK + e];
            if (bits_of_f32(value) != bits_of_f32(real ? (float)place : 0.0F))
                fail_msg("%s segment %d element %lld: %g", p->params.row[row].name, seg, (long long)e, (double)value);
        }
}

/* The runs of the shard ranks, one after the other, are the unit's flat buffer of their tp slice; padding is zero. With
 * ddp one rank has all of it. */
static void check_gathered_slice(Planned *p, int tp) {
    const int G = p->plan.adamw_shards;
    Placed placed[8];
    for (int g = 0; g < G; g++)
        placed_init(&placed[g], p, (MeshCoord){.shard = p->plan.ddp ? p->plan.mesh.shard - 1 : g, .tp = tp});
    for (int u = 0; u < p->params.nunits; u++) {
        const int64_t run = p->plan.unit[u].run * PLAN_BLOCK;
        float *flat = calloc((size_t)(run * G) + 1, sizeof *flat);
        assert_non_null(flat);
        for (int g = 0; g < G && run > 0; g++)
            memcpy(flat + g * run, placed[g].store.shard[u], (size_t)run * sizeof *flat);
        for (int i = 0; i < p->params.count; i++)
            if (p->params.row[i].unit == u && p->params.row[i].role == ROLE_ADAMW)
                check_flat_param(p, i, tp, flat);
        free(flat);
    }
    for (int g = 0; g < G; g++)
        placed_deinit(&placed[g]);
}

static void check_gathered(Planned *p) {
    for (int tp = 0; tp < p->plan.mesh.tp; tp++)
        check_gathered_slice(p, tp);
}

static void test_runs_of_the_shard_ranks_are_the_gathered_unit(void **state) {
    (void)state;
    for_each_planned(check_gathered);
}

/* Momentum is at the tp owner, or with every slice of a matrix that stays cut. */
static bool has_momentum(const Planned *p, const PlanGroup *group, MeshCoord at) {
    if (at.shard != group->owner_shard || at.replicate != group->owner_replicate)
        return false;
    for (int i = group->first; i < group->first + group->count; i++) {
        const PlanParam *pp = &p->plan.param[p->plan.member[i]];
        if (pp->distributed || pp->owner_tp == at.tp)
            return true;
    }
    return false;
}

static void check_master_copies(Planned *p) {
    for (int r = 0; r < mesh_size(p->plan.mesh); r++) {
        Placed placed;
        const MeshCoord at = mesh_coord(p->plan.mesh, r);
        placed_init(&placed, p, at);
        for (int g = 0; g < p->plan.ngroups; g++) {
            const PlanGroup *group = &p->plan.group[g];
            const bool column = at.shard == group->owner_shard;
            assert_int_equal(placed.store.master[g] != NULL, column || p->plan.ddp);
            assert_int_equal(placed.store.momentum[g] != NULL, has_momentum(p, group, at));
            assert_int_equal(store_in_column(&placed.store, group), column);
        }
        placed_deinit(&placed);
    }
}

static void test_the_owners_column_has_weights_and_the_owner_alone_momentum(void **state) {
    (void)state;
    for_each_planned(check_master_copies);
}

static void test_each_role_has_its_kinds_of_state(void **state) {
    (void)state;
    static const bool muon[STATE_KIND_COUNT] = {true, true, false, false};
    static const bool adamw[STATE_KIND_COUNT] = {true, false, true, true};
    static const char *const prefix[STATE_KIND_COUNT] = {"", "momentum.", "exp_avg.", "exp_avg_sq."};
    for (StateKind kind = 0; kind < STATE_KIND_COUNT; kind++) {
        assert_int_equal(state_exists(ROLE_MUON, kind), muon[kind]);
        assert_int_equal(state_exists(ROLE_ADAMW, kind), adamw[kind]);
        assert_string_equal(state_prefix(kind), prefix[kind]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces_lie_apart_in_the_memory_that_was_measured),
        cmocka_unit_test(test_any_rank_knows_the_pieces_of_every_rank),
        cmocka_unit_test(test_runs_of_the_shard_ranks_are_the_gathered_unit),
        cmocka_unit_test(test_the_owners_column_has_weights_and_the_owner_alone_momentum),
        cmocka_unit_test(test_each_role_has_its_kinds_of_state),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
