/* The assignment of matrices to owners, against the maps of the reference implementation. */
#include "optim/partition.h"

#include "tests/unit/bits.h"

#include "tests/fixtures/partition.h"
#include "tests/unit/golden.h"

#define GOLDEN "tests/golden/upstream_partition_golden.json"

static JsonValue *golden;

static const PartitionItem *find(const char *name) {
    for (int i = 0; i < set.count; i++)
        if (strcmp(set.items[i].name, name) == 0)
            return &set.items[i];
    fail_msg("the golden file names %s", name);
    return NULL;
}

static int64_t as_int(const JsonValue *value) {
    int64_t out = -1;
    assert_true(json_as_int(value, &out));
    return out;
}

/* Compares the owners with a golden map: name -> slot (one replicate row), or name -> [shard, replicate]. */
static void check_owners(const JsonValue *owners, const char *label) {
    assert_true(json_count(owners) > 0);
    for (int i = 0; i < json_count(owners); i++) {
        const JsonValue *want = json_at(owners, i);
        const PartitionItem *item = find(json_key(want));
        const bool pair = json_is_array(want);
        const int64_t shard = as_int(pair ? json_at(want, 0) : want);
        const int64_t replicate = pair ? as_int(json_at(want, 1)) : 0;
        if (item->owner_shard != shard || item->owner_replicate != replicate)
            fail_msg("%s: %s is owned by (%d, %d), the golden file says (%d, %d)", label, item->name, item->owner_shard,
                     item->owner_replicate, (int)shard, (int)replicate);
    }
}

/* Golden loads: slot -> [cost, elements, matrices], slots in order. */
static void check_loads(const JsonValue *loads, int replicates, CostFn cost_of_report) {
    for (int slot = 0; slot < json_count(loads); slot++) {
        double cost = 0;
        int64_t numel = 0, matrices = 0;
        for (int i = 0; i < set.count; i++) {
            const PartitionItem *item = &set.items[i];
            if (item->owner_shard * replicates + item->owner_replicate != slot)
                continue;
            cost += cost_of_report ? cost_of_report(item->numel / 3072, 3072) : item->cost;
            numel += item->numel;
            matrices++;
        }
        const JsonValue *want = json_at(loads, slot);
        assert_int_equal((int64_t)cost, as_int(json_at(want, 0)));
        assert_int_equal(numel, as_int(json_at(want, 1)));
        assert_int_equal(matrices, as_int(json_at(want, 2)));
    }
}

static const JsonValue *golden_case(const char *name) {
    const JsonValue *value = json_get(golden, name);
    assert_non_null(value);
    return value;
}

static void check_case(const char *name, const PartitionOptions *options) {
    const JsonValue *want = golden_case(name);
    int bundles, packed;
    partition_assign(set.items, set.count, options);
    check_owners(json_get(want, "owners"), name);
    if (json_get(want, "loads"))
        check_loads(json_get(want, "loads"), options->replicates, NULL);
    count_bundles(&bundles, &packed);
    if (json_get(want, "units"))
        assert_int_equal(bundles, as_int(json_get(want, "units")));
    if (json_get(want, "packed"))
        assert_int_equal(packed, as_int(json_get(want, "packed")));
}

static void test_reference_cost_equals_every_golden_unit(void **state) {
    (void)state;
    const JsonValue *units = golden_case("cost_units");
    assert_int_equal(json_count(units), 25);
    for (int i = 0; i < json_count(units); i++) {
        int64_t out = 0, in = 0;
        char dims[64];
        str_format(dims, sizeof dims, "%s", json_key(json_at(units, i)));
        char *x = strchr(dims, 'x');
        assert_non_null(x);
        *x = '\0';
        assert_true(str_parse_int(dims, &out) && str_parse_int(x + 1, &in));
        assert_int_equal((int64_t)reference_cost(out, in), as_int(json_at(units, i)));
    }
}

static void test_two_layers_follow_the_golden_maps(void **state) {
    (void)state;
    add_llama(2, 1024, 256, 8192, reference_cost);
    PartitionOptions options = options_of(4, 1);
    check_case("A_1d4", &options);
    options.small_param_threshold = 0;
    check_case("G_lpt_1d4_nopack", &options);
    options.strategy = OWNER_ROUND_ROBIN;
    check_case("G_rr_1d4_nopack", &options);
    options.small_param_threshold = 5000000;
    check_case("G_rr_1d4", &options);
    options = options_of(2, 2);
    check_case("B_hsdp_2x2", &options);
    options.column_balance = false;
    check_case("B_hsdp_2x2_nocol", &options);
    options = options_of(8, 1);
    options.max_per_layer = 2;
    check_case("F_1d8_max2", &options);
}

static void test_root_matrices_follow_the_golden_maps(void **state) {
    (void)state;
    set.count = 0;
    add(-1, "embed_tokens.weight", 32000, 1024, numel_cost);
    add(-1, "lm_head.weight", 32000, 1024, numel_cost);
    PartitionOptions options = options_of(2, 2);
    partition_assign(set.items, set.count, &options);
    check_owners(golden_case("C_root_col"), "C_root_col");
    options.column_balance = false;
    partition_assign(set.items, set.count, &options);
    check_owners(golden_case("C_root_nocol"), "C_root_nocol");
}

/* A square projection costs more than a larger embedding, which no Newton-Schulz sees. */
static void test_cost_decides_and_not_the_elements(void **state) {
    (void)state;
    PartitionOptions options = options_of(2, 1);
    set.count = 0;
    add(-1, "embed_tokens.weight", 32000, 4096, numel_cost)->cost = 131;
    add(-1, "proj.weight", 4096, 4096, reference_cost);
    partition_assign(set.items, set.count, &options);
    check_owners(golden_case("H_opt"), "H_opt");
    for (int i = 0; i < set.count; i++)
        set.items[i].cost = (double)set.items[i].numel;
    partition_assign(set.items, set.count, &options);
    check_owners(golden_case("H_numel"), "H_numel");
}

static void test_three_billion_parameters_follow_the_golden_loads(void **state) {
    (void)state;
    int bundles, packed;
    add_llama(28, 3072, 1024, 8192, reference_cost);
    PartitionOptions options = options_of(8, 1);
    partition_assign(set.items, set.count, &options);
    const JsonValue *want = golden_case("D_llama3b_1d8");
    check_loads(json_get(want, "loads"), 1, NULL);
    check_owners(json_get(want, "layer0"), "layer0");
    check_owners(json_get(want, "layer1"), "layer1");
    check_owners(json_get(want, "layer27"), "layer27");
    count_bundles(&bundles, &packed);
    assert_int_equal(bundles, as_int(json_get(want, "units")));
    assert_int_equal(packed, as_int(json_get(want, "packed")));
    options.strategy = OWNER_ROUND_ROBIN;
    partition_assign(set.items, set.count, &options);
    check_loads(golden_case("D_llama3b_1d8_rr_loads"), 1, NULL);
    options = options_of(4, 2);
    partition_assign(set.items, set.count, &options);
    check_loads(json_get(golden_case("D_llama3b_hsdp4x2"), "loads"), 2, NULL);
    check_owners(json_get(golden_case("D_llama3b_hsdp4x2"), "layer0"), "hsdp layer0");
    add_llama(28, 3072, 1024, 8192, numel_cost);
    options = options_of(8, 1);
    partition_assign(set.items, set.count, &options);
    check_loads(golden_case("D_llama3b_1d8_numel_loads"), 1, reference_cost);
}

static void check_mlp(const char *name, int layers, bool up, int shards, int replicates) {
    const PartitionOptions options = options_of(shards, replicates);
    add_mlp(layers, up, false);
    partition_assign(set.items, set.count, &options);
    check_owners(golden_case(name), name);
}

static void test_small_matrices_of_a_layer_share_an_owner(void **state) {
    (void)state;
    check_mlp("T_hsdp_tests_1d4", 4, true, 4, 1);
    check_mlp("T_hsdp_tests_2x2", 4, true, 2, 2);
    check_mlp("T_restart_2x2", 2, false, 2, 2);
}

static void check_tp(const char *name, int shards, int replicates, int tp) {
    const PartitionOptions options = options_of(shards, replicates);
    int tp_owner[MAX_ITEMS];
    partition_assign(set.items, set.count, &options);
    check_owners(json_get(golden_case(name), "dp"), name);
    partition_assign_tp(set.items, set.count, &options, tp, tp_owner);
    const JsonValue *want = json_get(golden_case(name), "tp");
    assert_int_equal(json_count(want), set.count);
    for (int i = 0; i < json_count(want); i++) {
        const PartitionItem *item = find(json_key(json_at(want, i)));
        if (tp_owner[item - set.items] != as_int(json_at(want, i)))
            fail_msg("%s: tp owner of %s is %d", name, item->name, tp_owner[item - set.items]);
    }
}

static void test_tp_owners_follow_the_golden_maps(void **state) {
    (void)state;
    add_mlp(2, true, true);
    check_tp("E_dp1_tp2", 1, 1, 2);
    check_tp("E_dp1_tp4", 1, 1, 4);
    check_tp("E_dp2_tp2", 2, 1, 2);
    check_tp("E_dp2_tp4", 2, 1, 4);
    check_tp("E_hsdp2x2_tp2", 2, 2, 2);
    set.count = 0;
    for (int i = 0; i < 4; i++) { /* costs 4, 3, 2, 1 */
        PartitionItem *item = add(i, "proj.weight", 64 - i, 64, numel_cost);
        item->tp_cut = true;
        item->cost = 4 - i;
    }
    check_tp("E_rows_dp1tp2", 1, 1, 2);
    check_tp("E_rows_dp2tp2", 2, 1, 2);
}

static int open_golden(void **state) {
    (void)state;
    return golden_open(GOLDEN, &golden);
}

static int close_golden(void **state) {
    (void)state;
    json_free(golden);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference_cost_equals_every_golden_unit),
        cmocka_unit_test(test_two_layers_follow_the_golden_maps),
        cmocka_unit_test(test_root_matrices_follow_the_golden_maps),
        cmocka_unit_test(test_cost_decides_and_not_the_elements),
        cmocka_unit_test(test_three_billion_parameters_follow_the_golden_loads),
        cmocka_unit_test(test_small_matrices_of_a_layer_share_an_owner),
        cmocka_unit_test(test_tp_owners_follow_the_golden_maps),
    };
    return cmocka_run_group_tests(tests, open_golden, close_golden);
}
