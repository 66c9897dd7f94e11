/* A tp rank's slices: where they lie in memory, how they meet in the whole matrix, and Newton-Schulz on them. */
#include "tests/unit/plan_fixture.h"

#include "base/arena.h"
#include "comm/comm.h"
#include "optim/newton_schulz.h"
#include "parallel/store.h"
#include "tests/fixtures/newton_schulz.h"

/* The store of one rank, every element numbered by its place in the whole tensor. */
typedef struct Slices {
    Store store;
    Arena arena;
} Slices;

static void number_piece(void *arg, const StatePiece *piece) {
    (void)arg;
    for (int64_t e = 0; e < piece->count; e++)
        piece->ptr[e] = (float)(piece->first + e);
}

static void slices_init(Slices *s, const Planned *p, MeshCoord at) {
    Arena measure = {0};
    *s = (Slices){0};
    store_create(&s->store, &p->plan, at, &measure);
    store_destroy(&s->store);
    assert_int_equal(arena_init(&s->arena, measure.used, "store"), STATUS_OK);
    store_create(&s->store, &p->plan, at, &s->arena);
    store_visit(&s->store, number_piece, NULL);
}

static void slices_deinit(Slices *s) {
    store_destroy(&s->store);
    arena_deinit(&s->arena);
}

/* x is the slice of tp rank `tp`, row by row; rows beyond the logical ones are zero. */
static void check_slice(const Planned *p, int row, int tp, const float *x, const char *what) {
    const Param *param = &p->params.row[row];
    const PlanParam *pp = &p->plan.param[row];
    const int64_t rows = pp->local_dim[0], cols = pp->local_dim[1];
    const int64_t top = param->tp_dim == 0 ? tp * rows : 0, left = param->tp_dim == 1 ? tp * cols : 0;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) {
            const float want = top + i < param->dim[0] ? (float)((top + i) * param->dim[1] + left + j) : 0.0F;
            if (bits_of_f32(x[i * cols + j]) != bits_of_f32(want))
                fail_msg("%s%s, tp rank %d: element (%lld, %lld) is number %g, not %g", what, param->name, tp,
                         (long long)i, (long long)j, (double)x[i * cols + j], (double)want);
        }
}

static void check_whole(const Planned *p, int row, const float *x) {
    for (int64_t e = 0; e < param_numel(&p->params.row[row]); e++)
        assert_int_equal(bits_of_f32(x[e]), bits_of_f32((float)e));
}

static void check_rank(Planned *p, MeshCoord at) {
    Slices s;
    slices_init(&s, p, at);
    for (int row = 0; row < p->params.count; row++) {
        const PlanParam *pp = &p->plan.param[row];
        if (p->params.row[row].role != ROLE_MUON)
            continue;
        const bool column = at.shard == pp->owner_shard, cell = column && at.replicate == pp->owner_replicate;
        if (column || p->plan.ddp)
            check_slice(p, row, at.tp, s.store.master[pp->group] + pp->offset, "");
        if (cell && pp->distributed)
            check_slice(p, row, at.tp, s.store.momentum[pp->group] + pp->momentum_offset, "momentum.");
        else if (cell && pp->owner_tp == at.tp)
            check_whole(p, row, s.store.momentum[pp->group] + pp->momentum_offset);
    }
    slices_deinit(&s);
}

static void check_all_ranks(Planned *p) {
    for (int r = 0; r < mesh_size(p->plan.mesh) && p->plan.mesh.tp > 1; r++)
        check_rank(p, mesh_coord(p->plan.mesh, r));
}

static void test_a_slice_is_rows_or_columns_of_the_whole_matrix(void **state) {
    (void)state;
    for_each_planned(check_all_ranks);
}

/* With padding: what the plan stores and what Newton-Schulz counts are the same elements. */
static void check_slice_sizes(Planned *p) {
    for (int row = 0; row < p->params.count; row++)
        if (p->params.row[row].role == ROLE_MUON && p->params.row[row].tp_dim >= 0)
            assert_int_equal(ns_slice_nelem(&p->plan.param[row].ns, p->plan.mesh.tp), p->plan.param[row].local_nelem);
}

static void test_slices_have_the_elements_that_the_plan_stores(void **state) {
    (void)state;
    for_each_planned(check_slice_sizes);
}

/* ---- the distributed path on a cell of one rank ---- */

static void check_one_slice(const NsConfig *config, int64_t out, int64_t in, int tp_dim) {
    Device *device;
    Stream *stream = ns_stream(&device, 2);
    Comm *tp = comm_self_create("tp");
    const NsPlan plan = ns_plan(config, out, in, tp_dim, 8);
    const NsSlice slice = {.tp = tp, .owner = 0, .what = "matrix", .unit = -1};
    const int64_t n = ns_slice_nelem(&plan, 1);
    float *whole = ns_floats(n), *cut = ns_floats(n), *scratch = ns_floats(ns_scratch_nelem(&plan, 1));
    assert_true(plan.gram_segmented);
    for (int64_t e = 0; e < out * in; e++)
        whole[e] = cut[e] = (float)ns_input(e / in, e % in, 1);
    ns_run_one(&plan, stream, whole, scratch);
    ns_run_slice(&plan, &slice, stream, cut, scratch);
    stream_sync(stream);
    assert_bits_equal_f32(cut, whole, n, plan.gram ? "gram" : "direct");
    free(whole);
    free(cut);
    free(scratch);
    comm_destroy(tp);
    device_destroy(device);
}

static void test_one_slice_is_the_whole_matrix(void **state) {
    (void)state;
    for (int gram = 0; gram < 2; gram++) {
        const NsConfig config = ns_default_config(gram ? NS_GRAM : NS_DIRECT);
        check_one_slice(&config, 16, 40, 1);
        check_one_slice(&config, 24, 24, 1);
        check_one_slice(&config, 40, 16, 0);
        check_one_slice(&config, 61, 16, 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_slice_is_rows_or_columns_of_the_whole_matrix),
        cmocka_unit_test(test_slices_have_the_elements_that_the_plan_stores),
        cmocka_unit_test(test_one_slice_is_the_whole_matrix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
