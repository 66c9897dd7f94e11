/* Owners under tensor parallelism: the tp owners of a cell share its work, and the busiest of all ranks stays near the
 * bound. */
#include "tests/unit/plan_fixture.h"

#include "config/load.h"
#include "parallel/store.h"

/* A configuration of models/ on a mesh; only the plan is made. */
static Planned *plan_of(const char *model, MeshShape mesh) {
    Config *c = calloc(1, sizeof *c);
    assert_non_null(c);
    Str warnings = {0};
    char model_key[64], replicate[32], shard[32], tp[32];
    (void)snprintf(model_key, sizeof model_key, "model=%s", model);
    (void)snprintf(replicate, sizeof replicate, "mesh.replicate=%d", mesh.replicate);
    (void)snprintf(shard, sizeof shard, "mesh.shard=%d", mesh.shard);
    (void)snprintf(tp, sizeof tp, "mesh.tp=%d", mesh.tp);
    char global[] = "batch.global=128";
    char *const overrides[] = {model_key, replicate, shard, tp, global};
    if (config_load(c, "configs/kjv-one.yaml", overrides, 5, &warnings) != STATUS_OK)
        fail_msg("%s", status_trail());
    Planned *p = planned_create(*c, mesh);
    str_deinit(&warnings);
    free(c);
    return p;
}

static double cost_of(const Planned *p, int row) {
    return p->params.row[row].role == ROLE_MUON ? p->plan.param[row].cost : 0;
}

static void test_four_tp_ranks_share_eight_layers_within_a_tenth(void **state) {
    (void)state;
    Planned *p = plan_of("models/llama-60m.yaml", (MeshShape){1, 1, 4});
    double load[4] = {0}, mean = 0;
    assert_int_equal(p->shape.L, 8);
    for (int row = 0; row < p->params.count; row++) {
        load[p->plan.param[row].owner_tp] += cost_of(p, row);
        mean += cost_of(p, row) / 4;
    }
    for (int tp = 0; tp < 4; tp++)
        assert_true(load[tp] >= 0.9 * mean && load[tp] <= 1.1 * mean);
    planned_destroy(p);
}

static void test_the_busiest_of_all_ranks_stays_near_the_bound(void **state) {
    (void)state;
    static const struct {
        MeshShape mesh;
        double limit;
    } cases[] = {{{1, 8, 1}, 1.10}, {{4, 8, 1}, 1.10}, {{2, 8, 4}, 1.15}, {{8, 8, 8}, 1.15}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const MeshShape mesh = cases[i].mesh;
        Planned *p = plan_of("models/llama-7b.yaml", mesh);
        const PlanLoad load = plan_load(&p->plan);
        if (load.max > cases[i].limit * load.bound)
            fail_msg("(%d, %d, %d): busiest %g, bound %g", mesh.replicate, mesh.shard, mesh.tp, load.max, load.bound);
        planned_destroy(p);
    }
}

/* Matrices of one cost are dealt round the cell, and a cell begins at its own number. */
static void test_cells_begin_at_different_tp_ranks(void **state) {
    (void)state;
    Config c = fixture_config();
    fixture_glob(&c, "model.layers.*.mlp.up_proj.weight"); /* one matrix for each of two cells */
    Planned *p = planned_create(c, (MeshShape){1, 2, 2});
    int owners = 0;
    for (int row = 0; row < p->params.count; row++)
        if (p->params.row[row].role == ROLE_MUON) {
            assert_int_equal(p->plan.param[row].owner_tp, p->plan.param[row].owner_shard % 2);
            owners |= 1 << p->plan.param[row].owner_tp;
        }
    assert_int_equal(owners, 3);
    planned_destroy(p);
}

/* The matrices that are gathered lie in exactly one part, with their tp owner, apart from each other. */
static void check_parts(const Planned *p) {
    const Plan *plan = &p->plan;
    int in_parts = 0, gathered = 0;
    for (int i = 0; i < plan->nparts; i++) {
        const PlanTpPart *part = &plan->tp_part[i];
        int64_t at = 0, payload = 0;
        assert_true(part->count > 0);
        for (int m = part->first; m < part->first + part->count; m++) {
            const int row = plan->member[m];
            const PlanParam *pp = &plan->param[row];
            assert_int_equal(pp->group, part->group);
            assert_int_equal(pp->owner_tp, part->owner_tp);
            assert_false(pp->distributed);
            assert_int_equal(pp->offset, part->offset + pp->gathered_offset);
            assert_true(pp->gathered_offset >= at);
            at = pp->gathered_offset + pp->local_nelem;
            payload += param_numel(&p->params.row[row]);
        }
        assert_true(at <= part->nelem);
        assert_int_equal(payload, part->payload);
        in_parts += part->count;
    }
    for (int row = 0; row < p->params.count; row++)
        gathered += p->params.row[row].role == ROLE_MUON && !plan->param[row].distributed;
    assert_int_equal(in_parts, plan->mesh.tp > 1 ? gathered : 0);
}

typedef struct Held {
    const Planned *p;
    int64_t *elements[STATE_KIND_COUNT];  /* [rows] primary elements of all ranks   */
    int64_t *index_sum[STATE_KIND_COUNT]; /* [rows] and the sum of their positions */
} Held;

static void hold(void *arg, const StatePiece *piece) {
    Held *held = arg;
    if (!piece->primary)
        return;
    held->elements[piece->kind][piece->param] += piece->count;
    held->index_sum[piece->kind][piece->param] += piece->count * (2 * piece->first + piece->count - 1) / 2;
}

/* Every element of every kind of state has one home: their number and the sum of their positions say so. */
static void check_homes(const Planned *p) {
    const int count = p->params.count;
    Held held = {.p = p};
    for (StateKind kind = 0; kind < STATE_KIND_COUNT; kind++) {
        held.elements[kind] = calloc((size_t)count, sizeof(int64_t));
        held.index_sum[kind] = calloc((size_t)count, sizeof(int64_t));
        assert_true(held.elements[kind] && held.index_sum[kind]);
    }
    for (int r = 0; r < mesh_size(p->plan.mesh); r++)
        plan_visit_pieces(&p->plan, mesh_coord(p->plan.mesh, r), hold, &held);
    for (StateKind kind = 0; kind < STATE_KIND_COUNT; kind++) {
        for (int row = 0; row < count; row++) {
            const int64_t n = state_exists(p->params.row[row].role, kind) ? param_numel(&p->params.row[row]) : 0;
            assert_int_equal(held.elements[kind][row], n);
            assert_int_equal(held.index_sum[kind][row], n * (n - 1) / 2);
        }
        free(held.elements[kind]);
        free(held.index_sum[kind]);
    }
}

static void test_parts_and_homes_hold_everything_once(void **state) {
    (void)state;
    static const MeshShape meshes[] = {{1, 1, 2}, {2, 2, 2}, {1, 3, 2}, {2, 1, 1}};
    for (int kind = 0; kind < FIXTURE_KINDS; kind++)
        for (DistributedGram gram = GRAM_OFF; gram <= GRAM_ALWAYS; gram++)
            for (size_t m = 0; m < sizeof meshes / sizeof meshes[0]; m++)
                for (int ddp = 0; ddp < 2; ddp++) {
                    Config c = fixture_kind(kind);
                    c.optimizer.muon.tp_distributed_gram = gram;
                    c.parallel.data = ddp ? DATA_DDP : DATA_FSDP;
                    Planned *p = planned_create(c, meshes[m]);
                    check_parts(p);
                    check_homes(p);
                    planned_destroy(p);
                }
}

static void test_only_matrices_cut_along_the_contraction_stay_in_slices(void **state) {
    (void)state;
    for (DistributedGram gram = GRAM_OFF; gram <= GRAM_ALWAYS; gram++) {
        Config c = fixture_kind(5); /* q_proj is square: 96 x 32 heads' width */
        c.model.n_heads = 12;
        c.model.n_kv_heads = 2;
        c.optimizer.muon.match_count = 0;
        c.optimizer.muon.tp_distributed_gram = gram;
        Planned *p = planned_create(c, (MeshShape){1, 1, 2});
        for (int row = 0; row < p->params.count; row++) {
            const Param *param = &p->params.row[row];
            const PlanParam *pp = &p->plan.param[row];
            if (param->role != ROLE_MUON)
                continue;
            const bool cut_along = param->tp_dim == (param->dim[0] <= param->dim[1] ? 1 : 0);
            const int64_t d = pp->ns.m, rounds = pp->ns.gram ? 2 : 5;
            const bool worth = rounds * d * d < param->dim[0] * param->dim[1];
            assert_true(pp->distributed == (cut_along && (gram == GRAM_ALWAYS || (gram == GRAM_BENEFICIAL && worth))));
        }
        planned_destroy(p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_four_tp_ranks_share_eight_layers_within_a_tenth),
        cmocka_unit_test(test_the_busiest_of_all_ranks_stays_near_the_bound),
        cmocka_unit_test(test_cells_begin_at_different_tp_ranks),
        cmocka_unit_test(test_parts_and_homes_hold_everything_once),
        cmocka_unit_test(test_only_matrices_cut_along_the_contraction_stay_in_slices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
