/* The order of the leaves: who runs which, and whether the sums of a mesh are the flat tree. */
#include "tests/unit/plan_fixture.h"

/* An addition that remembers its operands and their order. */
static uint64_t sum_of(uint64_t left, uint64_t right) {
    uint64_t x = left * 0x9e3779b97f4a7c15ULL + (right ^ (right >> 29)) * 0xbf58476d1ce4e5b9ULL + 0x94d049bb133111ebULL;
    x ^= x >> 31;
    return x * 0x94d049bb133111ebULL;
}

static uint64_t tree_of(const uint64_t *x, int64_t n) {
    int64_t left = 1;
    if (n == 1)
        return x[0];
    while (left * 2 < n)
        left *= 2;
    return sum_of(tree_of(x, left), tree_of(x + left, n - left));
}

enum { LEAVES_MAX = 64 };

/* The leaf sums of a run: local, over the rank's leaves, the shard axis, the replicate axis; reduce, each round over
 * the shard axis, the rounds, the replicate axis. */
static uint64_t mesh_sum(const Plan *plan) {
    const int R = plan->mesh.replicate, G = plan->mesh.shard;
    uint64_t rows[LEAVES_MAX], parts[LEAVES_MAX], inner[LEAVES_MAX];
    const int64_t outer_n = plan->local ? G : plan->per_rank, inner_n = plan->local ? plan->per_rank : G;
    for (int r = 0; r < R; r++) {
        for (int64_t o = 0; o < outer_n; o++) {
            for (int64_t i = 0; i < inner_n; i++) {
                const int shard = (int)(plan->local ? o : i);
                inner[i] = (uint64_t)plan_leaf(plan, r * G + shard, plan->local ? i : o) + 1;
            }
            parts[o] = tree_of(inner, inner_n);
        }
        rows[r] = tree_of(parts, outer_n);
    }
    return tree_of(rows, R);
}

static uint64_t flat_sum(int64_t leaves) {
    uint64_t x[LEAVES_MAX];
    for (int64_t i = 0; i < leaves; i++)
        x[i] = (uint64_t)i + 1;
    return tree_of(x, leaves);
}

static Plan plan_of_leaves(MeshShape mesh, int64_t leaves, bool local) {
    Config c = fixture_config();
    c.model.n_layers = 1;
    c.batch.global = leaves;
    c.parallel.accumulate = local ? ACCUMULATE_LOCAL : ACCUMULATE_REDUCE;
    Planned *p = planned_create(c, mesh);
    const Plan plan = p->plan; /* its numbers; the tables go */
    planned_destroy(p);
    return plan;
}

static void test_flat_tree_is_said_only_where_the_sums_are_the_flat_tree(void **state) {
    (void)state;
    int said = 0, not_said = 0;
    for (int R = 1; R <= 4; R++)
        for (int G = 1; G <= 4; G++)
            for (int k = 1; k <= 4; k++)
                for (int local = 0; local < 2; local++) {
                    const Plan plan = plan_of_leaves((MeshShape){R, G, 1}, R * G * k, local);
                    assert_int_equal(plan.per_rank, k);
                    said += plan.flat_tree;
                    not_said += !plan.flat_tree;
                    if (plan.flat_tree)
                        assert_true(mesh_sum(&plan) == flat_sum(plan.leaves));
                }
    assert_true(said > 0 && not_said > 0);
}

static void test_flat_tree_follows_the_rule_of_powers_of_two(void **state) {
    (void)state;
    static const struct {
        MeshShape mesh;
        int64_t leaves;
        bool local, flat;
    } cases[] = {
        {{1, 1, 1}, 7, false, true},   {{1, 4, 1}, 12, false, true}, {{2, 2, 1}, 16, false, true},
        {{2, 2, 1}, 12, false, false}, {{2, 1, 1}, 6, false, false}, {{1, 3, 1}, 12, false, false},
        {{2, 2, 1}, 16, true, true},   {{1, 4, 1}, 12, true, false}, {{3, 1, 1}, 9, true, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const Plan plan = plan_of_leaves(cases[i].mesh, cases[i].leaves, cases[i].local);
        assert_int_equal(plan.flat_tree, cases[i].flat);
        assert_int_equal(mesh_sum(&plan) == flat_sum(plan.leaves), cases[i].flat);
    }
}

static void take_leaf(bool *taken, int64_t leaves, int64_t leaf) {
    assert_true(leaf >= 0 && leaf < leaves);
    assert_false(taken[leaf]);
    taken[leaf] = true;
}

static void test_every_leaf_is_run_by_one_rank_in_one_round(void **state) {
    (void)state;
    for (int m = 0; m < FIXTURE_MESHES; m++)
        for (int local = 0; local < 2; local++) {
            bool taken[60] = {false};
            const Plan plan = plan_of_leaves((MeshShape){fixture_meshes[m].replicate, fixture_meshes[m].shard, 1},
                                             fixture_meshes[m].shard == 4 ? 56 : 60, local);
            for (int d = 0; d < mesh_size(plan.mesh); d++)
                for (int64_t j = 0; j < plan.per_rank; j++)
                    take_leaf(taken, plan.leaves, plan_leaf(&plan, d, j));
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flat_tree_is_said_only_where_the_sums_are_the_flat_tree),
        cmocka_unit_test(test_flat_tree_follows_the_rule_of_powers_of_two),
        cmocka_unit_test(test_every_leaf_is_run_by_one_rank_in_one_round),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
