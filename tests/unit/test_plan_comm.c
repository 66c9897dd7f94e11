/* Bytes of a step by the formulas of the definition (README, "Log"), written here once more and without the plan's
 * tables. */
#include "tests/unit/plan_fixture.h"

#include "parallel/plan_comm.h"

typedef CommCount Counts[AXIS_COUNT][COMM_OP_COUNT];

static int64_t role_bytes(const Planned *p, Role role) {
    return params_total(&p->params, role) * (int64_t)sizeof(float);
}

/* Bytes of AdamW parameters on the ranks of one replica that hold different ones or tp copies: what tp does not cut is
 * on each of its ranks. */
static int64_t adamw_bytes(const Planned *p) {
    int64_t nelem = 0;
    for (int i = 0; i < p->params.count; i++)
        if (p->params.row[i].role == ROLE_ADAMW)
            nelem += param_numel(&p->params.row[i]) * (p->params.row[i].tp_dim < 0 ? p->plan.mesh.tp : 1);
    return nelem * (int64_t)sizeof(float);
}

/* Bytes of one role's parameters in the embedding's unit. */
static int64_t embedding_bytes(const Planned *p, Role role) {
    int64_t nelem = 0;
    for (int i = 0; i < p->params.count; i++)
        if (p->params.row[i].unit == 0 && p->params.row[i].role == role)
            nelem += param_numel(&p->params.row[i]);
    return nelem * (int64_t)sizeof(float);
}

/* Bytes of weights that become whole in a step at one replica: Z2 all once, Z3 all twice per leaf, a tied embedding
 * once per leaf. */
static int64_t gathered_bytes(const Planned *p, Role role, bool reshard) {
    const int64_t all = role == ROLE_MUON ? role_bytes(p, role) : adamw_bytes(p), k = p->plan.per_rank;
    if (!reshard)
        return all;
    return 2 * k * all - (p->shape.tied ? k * embedding_bytes(p, role) : 0);
}

static void check_totals(Planned *p) {
    Counts c;
    const int64_t R = p->plan.mesh.replicate, G = p->plan.mesh.shard, k = p->plan.per_rank;
    const int64_t r = p->plan.local ? 1 : k;
    const bool muon_z3 = p->config.parallel.reshard_muon, adamw_z3 = p->config.parallel.reshard_adamw;
    plan_comm_bytes(&p->plan, &p->config, c);
    assert_int_equal(c[AXIS_SHARD][COMM_BROADCAST].bus_bytes, R * (G - 1) * gathered_bytes(p, ROLE_MUON, muon_z3));
    assert_int_equal(c[AXIS_SHARD][COMM_REDUCE].bus_bytes, R * (G - 1) * r * role_bytes(p, ROLE_MUON));
    assert_int_equal(c[AXIS_REPLICATE][COMM_REDUCE].bus_bytes, (R - 1) * role_bytes(p, ROLE_MUON));
    assert_int_equal(c[AXIS_REPLICATE][COMM_BROADCAST].bus_bytes, (R - 1) * role_bytes(p, ROLE_MUON));
    assert_int_equal(c[AXIS_SHARD][COMM_ALL_GATHER].bus_bytes, R * (G - 1) * gathered_bytes(p, ROLE_ADAMW, adamw_z3));
    assert_int_equal(c[AXIS_SHARD][COMM_REDUCE_SCATTER].bus_bytes, R * (G - 1) * r * adamw_bytes(p));
    assert_int_equal(c[AXIS_REPLICATE][COMM_ALL_REDUCE].bus_bytes, 2 * (R - 1) * adamw_bytes(p));
}

/* ddp: each gradient to its owner, each weight from there to all; the rest all-reduced over both axes. */
static void check_ddp_totals(const Planned *p) {
    Counts c;
    const int64_t R = p->plan.mesh.replicate, G = p->plan.mesh.shard;
    plan_comm_bytes(&p->plan, &p->config, c);
    for (int i = 0; i < 2; i++) {
        const CommOp op = i ? COMM_BROADCAST : COMM_REDUCE;
        assert_int_equal(c[AXIS_SHARD][op].bus_bytes + c[AXIS_REPLICATE][op].bus_bytes,
                         (R * G - 1) * role_bytes(p, ROLE_MUON));
    }
    assert_int_equal(c[AXIS_SHARD][COMM_ALL_REDUCE].bus_bytes, 2 * R * (G - 1) * adamw_bytes(p));
    assert_int_equal(c[AXIS_REPLICATE][COMM_ALL_REDUCE].bus_bytes, 2 * G * (R - 1) * adamw_bytes(p));
    assert_int_equal(c[AXIS_SHARD][COMM_ALL_GATHER].bus_bytes + c[AXIS_SHARD][COMM_REDUCE_SCATTER].bus_bytes, 0);
}

/* Each matrix once to its tp owner and once back, or S_f rounds of a factor in each direction. */
static void check_tp_totals(const Planned *p) {
    Counts c;
    const int64_t T = p->plan.mesh.tp;
    int64_t gathered = 0, squares = 0;
    for (int i = 0; i < p->params.count; i++) {
        const PlanParam *pp = &p->plan.param[i];
        if (p->params.row[i].role == ROLE_MUON && pp->distributed)
            squares += (pp->ns.gram ? 2 : 5) * pp->ns.m * pp->ns.m;
        else if (p->params.row[i].role == ROLE_MUON)
            gathered += param_numel(&p->params.row[i]);
    }
    plan_comm_bytes(&p->plan, &p->config, c);
    assert_int_equal(c[AXIS_TP][COMM_GATHER].bus_bytes * T, (T - 1) * 4 * gathered);
    assert_int_equal(c[AXIS_TP][COMM_SCATTER].bus_bytes * T, (T - 1) * 4 * gathered);
    assert_int_equal(c[AXIS_TP][COMM_REDUCE].bus_bytes, (T - 1) * 4 * squares);
    assert_int_equal(c[AXIS_TP][COMM_BROADCAST].bus_bytes, (T - 1) * 4 * squares);
}

static void check_totals_of_strategy(Planned *p) {
    if (p->plan.ddp)
        check_ddp_totals(p);
    check_tp_totals(p);
}

static void test_totals_of_ddp_and_tp_are_those_of_the_formulas(void **state) {
    (void)state;
    for_each_planned(check_totals_of_strategy);
}

static void test_totals_are_those_of_the_formulas(void **state) {
    (void)state;
    for (int kind = 0; kind < FIXTURE_KINDS; kind++)
        for (int m = 0; m < FIXTURE_MESHES; m++)
            for (int mode = 0; mode < 8; mode++) {
                Config c = fixture_kind_on(kind, fixture_meshes[m]);
                c.parallel.reshard_muon = mode & 1;
                c.parallel.reshard_adamw = mode & 2;
                c.parallel.accumulate = mode & 4 ? ACCUMULATE_LOCAL : ACCUMULATE_REDUCE;
                Planned *p = planned_create(c, fixture_meshes[m]);
                check_totals(p);
                planned_destroy(p);
            }
}

/* On the shard axis, untied and Z2 or Z3, Muon moves R*(G-1)*f*4*P_M bytes with f = 1 + r or 2k + r. */
static void test_muon_moves_f_times_its_elements_over_the_shard_axis(void **state) {
    (void)state;
    for (int reshard = 0; reshard < 2; reshard++)
        for (int local = 0; local < 2; local++) {
            Counts counts;
            Config c = fixture_config();
            c.parallel.reshard_muon = reshard;
            c.parallel.accumulate = local ? ACCUMULATE_LOCAL : ACCUMULATE_REDUCE;
            Planned *p = planned_create(c, (MeshShape){2, 4, 1});
            plan_comm_bytes(&p->plan, &p->config, counts);
            const int64_t k = 240 / 8, r = local ? 1 : k, f = reshard ? 2 * k + r : 1 + r;
            assert_int_equal(counts[AXIS_SHARD][COMM_BROADCAST].bus_bytes + counts[AXIS_SHARD][COMM_REDUCE].bus_bytes,
                             2 * 3 * f * 4 * params_total(&p->params, ROLE_MUON));
            planned_destroy(p);
        }
}

static void test_one_rank_moves_nothing(void **state) {
    (void)state;
    Counts counts;
    static const Counts zero;
    Planned *p = planned_create(fixture_config(), (MeshShape){1, 1, 1});
    plan_comm_bytes(&p->plan, &p->config, counts);
    assert_memory_equal(counts, zero, sizeof zero);
    planned_destroy(p);
}

/* Losses and sums of squares: each rank's list to every other rank. */
static void test_world_gathers_losses_and_sums_of_squares(void **state) {
    (void)state;
    Counts counts;
    Planned *p = planned_create(fixture_config(), (MeshShape){2, 2, 1});
    plan_comm_bytes(&p->plan, &p->config, counts);
    const int64_t list = (p->plan.per_rank + 1) * 4 + p->plan.sums_nelem * 8;
    assert_int_equal(counts[AXIS_DATA][COMM_ALL_GATHER].calls, 2);
    assert_int_equal(counts[AXIS_DATA][COMM_ALL_GATHER].payload_bytes, 4 * list);
    assert_int_equal(counts[AXIS_DATA][COMM_ALL_GATHER].bus_bytes, 3 * 4 * list);
    for (int op = 0; op < COMM_OP_COUNT; op++)
        assert_int_equal(counts[AXIS_TP][op].calls, 0);
    planned_destroy(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_totals_are_those_of_the_formulas),
        cmocka_unit_test(test_totals_of_ddp_and_tp_are_those_of_the_formulas),
        cmocka_unit_test(test_muon_moves_f_times_its_elements_over_the_shard_axis),
        cmocka_unit_test(test_one_rank_moves_nothing),
        cmocka_unit_test(test_world_gathers_losses_and_sums_of_squares),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
