/* The plan: every matrix has an owner, every element one home. */
#include "tests/unit/plan_fixture.h"

#include "mesh/extent.h"
#include "parallel/store.h"

static void check_owners(Planned *p) {
    const Plan *plan = &p->plan;
    const MeshShape mesh = plan->mesh;
    int64_t *sums = calloc((size_t)mesh_size(mesh), sizeof *sums);
    assert_non_null(sums);
    for (int i = 0; i < p->params.count; i++) {
        const PlanParam *pp = &plan->param[i];
        if (p->params.row[i].role != ROLE_MUON) {
            assert_int_equal(pp->group, -1);
            continue;
        }
        assert_in_range(pp->owner_shard, 0, mesh.shard - 1);
        assert_in_range(pp->owner_replicate, 0, mesh.replicate - 1);
        assert_int_equal(pp->owner_rank,
                         mesh_rank(mesh, (MeshCoord){pp->owner_replicate, pp->owner_shard, pp->owner_tp}));
        int64_t *at = &sums[pp->owner_shard * mesh.replicate + pp->owner_replicate];
        assert_int_equal(pp->sum_first, plan->run_blocks + *at);
        *at += pp->nseg;
        assert_true(plan->run_blocks + *at <= plan->sums_nelem);
        assert_true(pp->cost > 0);
    }
    free(sums);
}

static void test_every_matrix_has_an_owner_on_the_mesh(void **state) {
    (void)state;
    for_each_planned(check_owners);
}

/* Marks [first, first + count) of `taken` [n]; each element once. */
static void take(bool *taken, int64_t n, int64_t first, int64_t count) {
    assert_true(first >= 0 && first + count <= n);
    for (int64_t e = first; e < first + count; e++) {
        assert_false(taken[e]);
        taken[e] = true;
    }
}

static void check_group(const Planned *p, int g) {
    const PlanGroup *group = &p->plan.group[g];
    bool *taken = calloc((size_t)group->nelem, sizeof *taken);
    assert_non_null(taken);
    int64_t payload = 0;
    for (int m = group->first; m < group->first + group->count; m++) {
        const int row = p->plan.member[m];
        const PlanParam *pp = &p->plan.param[row];
        assert_int_equal(pp->group, g);
        assert_int_equal(p->params.row[row].unit, group->unit);
        assert_int_equal(pp->owner_shard, group->owner_shard);
        assert_int_equal(pp->owner_replicate, group->owner_replicate);
        assert_int_equal(pp->offset % PLAN_ALIGN, 0);
        take(taken, group->nelem, pp->offset, pp->local_nelem);
        payload += param_numel(&p->params.row[row]) / p->plan.mesh.tp;
    }
    assert_true(group->count > 0);
    assert_int_equal(payload, group->payload);
    free(taken);
}

static void check_packed_buffers(Planned *p) {
    const Plan *plan = &p->plan;
    int members = 0, matrices = 0;
    for (int g = 0; g < plan->ngroups; g++) {
        check_group(p, g);
        members += plan->group[g].count;
    }
    for (int i = 0; i < p->params.count; i++)
        matrices += p->params.row[i].role == ROLE_MUON;
    assert_int_equal(members, matrices);
    for (int u = 0; u < p->params.nunits; u++) {
        const PlanUnit *unit = &plan->unit[u];
        int64_t at = 0;
        for (int g = unit->first_group; g < unit->first_group + unit->group_count; g++) {
            assert_int_equal(plan->group[g].unit, u);
            assert_int_equal(plan->group[g].unit_offset, at);
            at += plan->group[g].nelem;
        }
        assert_int_equal(at, unit->muon_nelem);
    }
}

static void test_packed_buffers_hold_each_matrix_once_and_apart(void **state) {
    (void)state;
    for_each_planned(check_packed_buffers);
}

static void check_unit_blocks(const Planned *p, int unit) {
    const PlanUnit *u = &p->plan.unit[unit];
    bool *taken = calloc((size_t)u->blocks + 1, sizeof *taken);
    assert_non_null(taken);
    for (int m = u->first_adamw; m < u->first_adamw + u->adamw_count; m++) {
        const int row = p->plan.adamw_member[m];
        const PlanParam *pp = &p->plan.param[row];
        int64_t elements = 0;
        assert_int_equal(p->params.row[row].unit, unit);
        assert_int_equal(pp->offset % PLAN_BLOCK, 0);
        take(taken, u->blocks, pp->offset / PLAN_BLOCK, pp->nseg * pp->seg_blocks);
        for (int64_t b = 0; b < pp->seg_blocks; b++) {
            assert_in_range(plan_block_size(pp, b), 1, PLAN_BLOCK);
            elements += plan_block_size(pp, b);
        }
        assert_int_equal(elements * pp->nseg, pp->local_nelem);
        const int slices = p->params.row[row].tp_dim >= 0 ? p->plan.mesh.tp : 1;
        assert_int_equal(pp->local_nelem * slices, p->params.row[row].padded_dim0 * p->params.row[row].dim[1]);
    }
    for (int64_t b = 0; b < u->blocks; b++)
        assert_true(taken[b]);
    const int shards = p->plan.ddp ? 1 : p->plan.mesh.shard;
    assert_int_equal(u->run, ceil_div(u->blocks, shards));
    assert_int_equal(u->flat_nelem, u->run * shards * PLAN_BLOCK);
    free(taken);
}

static void check_blocks(Planned *p) {
    int64_t sums = 0;
    for (int u = 0; u < p->params.nunits; u++) {
        check_unit_blocks(p, u);
        assert_int_equal(p->plan.unit[u].sum_first, sums);
        sums += p->plan.unit[u].run;
    }
    assert_int_equal(sums, p->plan.run_blocks);
}

static void test_adamw_blocks_are_whole_tensors_dealt_in_equal_runs(void **state) {
    (void)state;
    for_each_planned(check_blocks);
}

/* How often each element of each tensor and kind of state is held. */
typedef struct Cover {
    const Planned *p;
    unsigned char *held[STATE_KIND_COUNT]; /* [elements of all rows] */
    int64_t *first;                        /* [rows]                 */
    int64_t total;
    bool primary_only;
    int tp; /* of the rank that is visited: what tp does not cut is counted at the first one only */
} Cover;

static void cover_piece(void *arg, const StatePiece *piece) {
    Cover *cover = arg;
    const int64_t numel = param_numel(&cover->p->params.row[piece->param]);
    assert_true(piece->first >= 0 && piece->count > 0 && piece->first + piece->count <= numel);
    assert_null(piece->ptr);
    if (cover->primary_only ? !piece->primary : cover->tp > 0 && cover->p->params.row[piece->param].tp_dim < 0)
        return;
    unsigned char *held = cover->held[piece->kind] + cover->first[piece->param];
    for (int64_t e = piece->first; e < piece->first + piece->count; e++)
        held[e]++;
}

static void cover_init(Cover *cover, const Planned *p, bool primary_only) {
    *cover = (Cover){.p = p, .primary_only = primary_only};
    cover->first = calloc((size_t)p->params.count, sizeof *cover->first);
    assert_non_null(cover->first);
    for (int i = 0; i < p->params.count; i++) {
        cover->first[i] = cover->total;
        cover->total += param_numel(&p->params.row[i]);
    }
    for (int k = 0; k < STATE_KIND_COUNT; k++) {
        cover->held[k] = calloc((size_t)cover->total, 1);
        assert_non_null(cover->held[k]);
    }
}

/* Each element of every kind of state that exists is held once, of every other never. */
static void cover_expect_once(Cover *cover, StateKind kind) {
    for (int i = 0; i < cover->p->params.count; i++) {
        const int expected = state_exists(cover->p->params.row[i].role, kind) ? 1 : 0;
        for (int64_t e = 0; e < param_numel(&cover->p->params.row[i]); e++)
            if (cover->held[kind][cover->first[i] + e] != expected)
                fail_msg("mesh %dx%d: %s%s[%lld] is held %d times", cover->p->plan.mesh.replicate,
                         cover->p->plan.mesh.shard, state_prefix(kind), cover->p->params.row[i].name, (long long)e,
                         cover->held[kind][cover->first[i] + e]);
    }
}

static void cover_deinit(Cover *cover) {
    for (int k = 0; k < STATE_KIND_COUNT; k++)
        free(cover->held[k]);
    free(cover->first);
}

static void check_primary_partition(Planned *p) {
    Cover cover;
    cover_init(&cover, p, true);
    for (int r = 0; r < mesh_size(p->plan.mesh); r++)
        plan_visit_pieces(&p->plan, mesh_coord(p->plan.mesh, r), cover_piece, &cover);
    for (StateKind kind = 0; kind < STATE_KIND_COUNT; kind++)
        cover_expect_once(&cover, kind);
    cover_deinit(&cover);
}

static void test_primary_pieces_of_all_ranks_partition_every_tensor(void **state) {
    (void)state;
    for_each_planned(check_primary_partition);
}

/* Ranks [first, first + count) hold all weights and moments once; what tp does not cut, each of them. */
static void check_ranks_hold_all(const Planned *p, int first, int count) {
    Cover cover;
    cover_init(&cover, p, false);
    for (int r = first; r < first + count; r++) {
        const MeshCoord at = mesh_coord(p->plan.mesh, r);
        cover.tp = at.tp;
        plan_visit_pieces(&p->plan, at, cover_piece, &cover);
    }
    cover_expect_once(&cover, STATE_WEIGHT);
    cover_expect_once(&cover, STATE_EXP_AVG);
    cover_expect_once(&cover, STATE_EXP_AVG_SQ);
    cover_deinit(&cover);
}

/* With ddp each shard rank's tp ranks are a replica. */
static void check_row_partition(Planned *p) {
    const int count = (p->plan.ddp ? 1 : p->plan.mesh.shard) * p->plan.mesh.tp;
    for (int first = 0; first < mesh_size(p->plan.mesh); first += count)
        check_ranks_hold_all(p, first, count);
}

static void check_momentum_is_held_once(Planned *p) {
    Cover cover;
    cover_init(&cover, p, false);
    for (int r = 0; r < mesh_size(p->plan.mesh); r++)
        plan_visit_pieces(&p->plan, mesh_coord(p->plan.mesh, r), cover_piece, &cover);
    cover_expect_once(&cover, STATE_MOMENTUM);
    cover_deinit(&cover);
}

static void test_momentum_is_held_by_the_owner_alone(void **state) {
    (void)state;
    for_each_planned(check_momentum_is_held_once);
}

static void test_each_replica_holds_every_weight_once_over_its_shard_ranks(void **state) {
    (void)state;
    for_each_planned(check_row_partition);
}

/* ---- the hash ---- */

static uint64_t hash_of(Config c, MeshShape mesh) {
    Planned *p = planned_create(c, mesh);
    const uint64_t hash = p->plan.hash;
    planned_destroy(p);
    return hash;
}

static void test_hash_differs_when_the_plan_does(void **state) {
    (void)state;
    enum { CHANGES = 15 };
    Config c[CHANGES];
    MeshShape mesh[CHANGES];
    uint64_t hash[CHANGES];
    for (int i = 0; i < CHANGES; i++) {
        c[i] = fixture_config();
        mesh[i] = (MeshShape){2, 2, 1};
    }
    mesh[1] = (MeshShape){1, 4, 1};
    mesh[2] = (MeshShape){4, 1, 1};
    c[3].model.n_layers = 3;
    c[4].model.vocab_size = 128;
    c[5].model.tie_embeddings = true;
    c[6].model.d_ff = 64;
    c[7].batch.global = 480;
    c[8].parallel.accumulate = ACCUMULATE_LOCAL;
    c[9].parallel.owner.strategy = OWNER_RANK0;
    c[10].numerics.segments = 4;
    fixture_glob(&c[11], "*.mlp.*");
    c[12].parallel.data = DATA_DDP;
    mesh[13] = mesh[14] = (MeshShape){1, 2, 2};
    c[14].optimizer.muon.tp_distributed_gram = GRAM_ALWAYS;
    for (int i = 0; i < CHANGES; i++)
        hash[i] = hash_of(c[i], mesh[i]);
    for (int i = 0; i < CHANGES; i++)
        for (int j = 0; j < i; j++)
            if (hash[i] == hash[j])
                fail_msg("changes %d and %d have the same hash", i, j);
    assert_true(hash_of(fixture_config(), mesh[0]) == hash[0]);
}

/* ---- load ---- */

static void test_llama_7b_loads_are_within_a_tenth_of_the_bound(void **state) {
    (void)state;
    Config *c = calloc(1, sizeof *c);
    assert_non_null(c);
    Str warnings = {0};
    char *const overrides[] = {(char[]){"model=models/llama-7b.yaml"}, (char[]){"mesh.shard=8"}};
    assert_int_equal(config_load(c, "configs/kjv-one.yaml", overrides, 2, &warnings), STATUS_OK);
    Planned *p = planned_create(*c, (MeshShape){1, 8, 1});
    const PlanLoad load = plan_load(&p->plan);
    assert_true(load.bound >= load.mean && load.bound >= load.largest);
    assert_true(load.max >= load.mean && load.max <= 1.10 * load.bound);
    planned_destroy(p);
    str_deinit(&warnings);
    free(c);
}

static void check_load(Planned *p) {
    const PlanLoad load = plan_load(&p->plan);
    double total = 0;
    for (int i = 0; i < p->params.count; i++)
        total += p->params.row[i].role == ROLE_MUON ? p->plan.param[i].cost : 0;
    assert_true(fabs(load.mean * mesh_size(p->plan.mesh) - total) <= 1e-9 * total);
    assert_true(load.max >= load.largest && load.max <= total * (1 + 1e-12));
}

static void test_load_adds_up_to_the_cost_of_all_matrices(void **state) {
    (void)state;
    for_each_planned(check_load);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_matrix_has_an_owner_on_the_mesh),
        cmocka_unit_test(test_packed_buffers_hold_each_matrix_once_and_apart),
        cmocka_unit_test(test_adamw_blocks_are_whole_tensors_dealt_in_equal_runs),
        cmocka_unit_test(test_primary_pieces_of_all_ranks_partition_every_tensor),
        cmocka_unit_test(test_momentum_is_held_by_the_owner_alone),
        cmocka_unit_test(test_each_replica_holds_every_weight_once_over_its_shard_ranks),
        cmocka_unit_test(test_hash_differs_when_the_plan_does),
        cmocka_unit_test(test_llama_7b_loads_are_within_a_tenth_of_the_bound),
        cmocka_unit_test(test_load_adds_up_to_the_cost_of_all_matrices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
