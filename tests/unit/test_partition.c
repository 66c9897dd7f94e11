/* What the assignment of matrices to owners promises. The reference's maps are in test_partition_golden.c. */
#include "optim/partition.h"

#include "tests/unit/bits.h"

#include "tests/fixtures/partition.h"

static void test_what_tp_does_not_cut_has_no_tp_owner(void **state) {
    (void)state;
    const PartitionOptions options = options_of(2, 1);
    int tp_owner[MAX_ITEMS];
    add_mlp(2, true, true);
    set.items[1].tp_cut = false;
    partition_assign(set.items, set.count, &options);
    partition_assign_tp(set.items, set.count, &options, 2, tp_owner);
    for (int i = 0; i < set.count; i++)
        assert_int_equal(tp_owner[i] >= 0, i != 1);
}

static void test_tp_cut_matrices_are_never_bundled(void **state) {
    (void)state;
    const PartitionOptions options = options_of(2, 1);
    int bundles, packed;
    add_mlp(4, true, true);
    partition_assign(set.items, set.count, &options);
    count_bundles(&bundles, &packed);
    assert_int_equal(bundles, set.count);
    assert_int_equal(packed, 0);
}

static void test_layers_tie_as_byte_strings(void **state) {
    (void)state;
    const PartitionOptions options = options_of(11, 1);
    set.count = 0;
    for (int i = 0; i < 11; i++)
        add(i, "proj.weight", 4096, 4096, reference_cost);
    partition_assign(set.items, set.count, &options);
    assert_int_equal(set.items[1].owner_shard, 1);
    assert_int_equal(set.items[10].owner_shard, 2); /* "layers.10" < "layers.2" */
    assert_int_equal(set.items[2].owner_shard, 3);
}

static void test_equal_costs_go_by_elements(void **state) {
    (void)state;
    const PartitionOptions options = options_of(3, 1);
    int tp_owner[MAX_ITEMS];
    set.count = 0;
    for (int i = 0; i < 3; i++) {
        PartitionItem *item = add(i, "proj.weight", 4096, 4096 + i, reference_cost);
        item->cost = 7;
        item->tp_cut = true;
    }
    partition_assign(set.items, set.count, &options);
    for (int i = 0; i < 3; i++)
        assert_int_equal(set.items[i].owner_shard, 2 - i);
    for (int i = 0; i < 3; i++)
        set.items[i].owner_shard = 0;
    partition_assign_tp(set.items, set.count, &options, 3, tp_owner);
    for (int i = 0; i < 3; i++)
        assert_int_equal(tp_owner[i], 2 - i);
}

/* Costs 5 against 3 + 2: the fourth goes where fewer elements stand. */
static void test_loads_tie_by_elements(void **state) {
    (void)state;
    PartitionOptions options = options_of(2, 1);
    const double cost[] = {5, 3, 2, 1};
    const int64_t numel[] = {6000000, 5000001, 5000000, 5000000};
    for (int columns = 0; columns < 2; columns++) {
        options.column_balance = columns == 1;
        set.count = 0;
        for (int i = 0; i < 4; i++) {
            PartitionItem *item = add(i, "proj.weight", 1, numel[i], numel_cost);
            item->cost = cost[i];
        }
        partition_assign(set.items, set.count, &options);
        const int want[] = {0, 1, 1, 0}; /* 5, 6000000 against 5, 10000001 */
        for (int i = 0; i < 4; i++)
            assert_int_equal(set.items[i].owner_shard, want[i]);
        set.items[0].numel = 20000000;
        partition_assign(set.items, set.count, &options);
        assert_int_equal(set.items[3].owner_shard, 1);
    }
}

/* Column 1 holds fewer elements than column 0; their free slots are alike. */
static void test_columns_tie_by_elements(void **state) {
    (void)state;
    const PartitionOptions options = options_of(2, 2);
    const int64_t numel[] = {7000000, 6000000, 5000000};
    set.count = 0;
    for (int i = 0; i < 3; i++)
        add(i, "proj.weight", 1, numel[i], numel_cost)->cost = i < 2 ? 4 : 3;
    partition_assign(set.items, set.count, &options);
    assert_int_equal(set.items[0].owner_shard, 0);
    assert_int_equal(set.items[1].owner_shard, 1);
    assert_int_equal(set.items[2].owner_shard, 1);
    assert_int_equal(set.items[2].owner_replicate, 1);
}

static void test_partition_never_leaves_an_owner_idle(void **state) {
    (void)state;
    const int meshes[][2] = {{1, 1}, {2, 2}, {4, 1}, {1, 4}, {8, 2}, {16, 4}};
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
        PartitionOptions options = options_of(meshes[i][0], meshes[i][1]);
        const int slots = options.shards * options.replicates;
        bool busy[MAX_ITEMS] = {false};
        add_llama(16, 64, 32, 176, reference_cost);
        options.small_param_threshold = partition_auto_threshold(16 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 176),
                                                                 options.shards, options.replicates);
        partition_assign(set.items, set.count, &options);
        for (int item = 0; item < set.count; item++)
            busy[set.items[item].owner_shard * options.replicates + set.items[item].owner_replicate] = true;
        for (int slot = 0; slot < slots; slot++)
            assert_true(busy[slot]);
    }
}

static void test_max_per_layer_limits_the_slots_of_a_layer(void **state) {
    (void)state;
    for (int limit = 1; limit <= 7; limit++) {
        PartitionOptions options = options_of(4, 2);
        options.max_per_layer = limit;
        options.small_param_threshold = 0;
        add_llama(6, 1024, 256, 8192, reference_cost);
        partition_assign(set.items, set.count, &options);
        for (int layer = 0; layer < 6; layer++) {
            bool used[8] = {false};
            int count = 0;
            for (int i = 7 * layer; i < 7 * layer + 7; i++) {
                bool *slot = &used[set.items[i].owner_shard * 2 + set.items[i].owner_replicate];
                count += !*slot;
                *slot = true;
            }
            assert_int_equal(count, limit);
        }
    }
}

static void test_rank0_owns_everything(void **state) {
    (void)state;
    PartitionOptions options = options_of(4, 2);
    options.strategy = OWNER_RANK0;
    add_llama(2, 1024, 256, 8192, reference_cost);
    partition_assign(set.items, set.count, &options);
    for (int i = 0; i < set.count; i++)
        assert_int_equal(set.items[i].owner_shard + set.items[i].owner_replicate, 0);
}

static void test_nothing_to_own_is_legal(void **state) {
    (void)state;
    const PartitionOptions options = options_of(4, 2);
    int tp_owner[1] = {7};
    partition_assign(set.items, 0, &options);
    partition_assign_tp(set.items, 0, &options, 2, tp_owner);
    assert_int_equal(tp_owner[0], 7);
}

static void test_auto_threshold_is_the_smaller_of_both(void **state) {
    (void)state;
    assert_int_equal(partition_auto_threshold(64000, 2, 5), 100);
    assert_int_equal(partition_auto_threshold(6400000000, 1, 1), 5000000);
    assert_int_equal(partition_auto_threshold(0, 1, 1), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_tp_does_not_cut_has_no_tp_owner),
        cmocka_unit_test(test_tp_cut_matrices_are_never_bundled),
        cmocka_unit_test(test_layers_tie_as_byte_strings),
        cmocka_unit_test(test_equal_costs_go_by_elements),
        cmocka_unit_test(test_loads_tie_by_elements),
        cmocka_unit_test(test_columns_tie_by_elements),
        cmocka_unit_test(test_partition_never_leaves_an_owner_idle),
        cmocka_unit_test(test_max_per_layer_limits_the_slots_of_a_layer),
        cmocka_unit_test(test_rank0_owns_everything),
        cmocka_unit_test(test_nothing_to_own_is_legal),
        cmocka_unit_test(test_auto_threshold_is_the_smaller_of_both),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
