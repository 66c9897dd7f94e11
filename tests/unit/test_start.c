/* The first record of a log, and the summary a person reads: both from the same plan. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"
#include "metrics/console.h"
#include "metrics/jsonl.h"
#include "tests/unit/scratch.h"

static const char yaml[] = "model: {family: llama, d_model: 64, n_layers: 2, n_heads: 8, n_kv_heads: 4, head_dim: 8, "
                           "d_ff: 176, vocab_size: 250, "
                           "max_seq_len: 512}\nmesh: {replicate: 1, shard: 1, tp: 2}\ndata: {train: a.txt}\n";

/* Everything a start record is made of, for a mesh of two ranks. */
typedef struct Fixture {
    char dir[SCRATCH_PATH];
    char hosts[2][128];
    Config config;
    ModelShape shape;
    ParamTable params;
    Plan plan;
    World world;
    StartMetrics start;
} Fixture;

static int set_up(void **state) {
    static Fixture f;
    scratch_create(f.dir);
    if (config_load_text(&f.config, yaml, strlen(yaml), "test") != STATUS_OK)
        return -1;
    f.shape = model_shape(&f.config);
    if (params_create(&f.params, &f.shape, &f.config) != STATUS_OK)
        return -1;
    plan_create(&f.plan, &f.params, &f.config, (MeshShape){1, 1, 2});
    str_format(f.hosts[0], sizeof f.hosts[0], "node-a");
    str_format(f.hosts[1], sizeof f.hosts[1], "node-b");
    f.world = (World){.size = 2, .hosts = f.hosts[0]};
    f.start = (StartMetrics){.run_id = "0123456789abcdef0123456789abcdef",
                             .version = "1.0",
                             .device = "cpu avx2",
                             .device_reason = "asked for",
                             .products = "2 products, 00ff",
                             .config = &f.config,
                             .params = &f.params,
                             .plan = &f.plan,
                             .world = &f.world,
                             .threads = 1,
                             .steps_total = 100,
                             .peak_flops = 1e11,
                             .data = "a.txt 10 ff\n",
                             .dropped_tokens = 17};
    *state = &f;
    return 0;
}

static int tear_down(void **state) {
    Fixture *f = *state;
    plan_destroy(&f->plan);
    params_destroy(&f->params);
    scratch_destroy(f->dir);
    return 0;
}

static int64_t number(const JsonValue *object, const char *key) {
    int64_t value = -12345;
    if (!json_as_int(json_get(object, key), &value))
        fail_msg("%s is no number", key);
    return value;
}

static void test_the_start_record_names_roles_owners_and_hosts(void **state) {
    Fixture *f = *state;
    Jsonl log;
    assert_int_equal(jsonl_open(&log, f->dir), STATUS_OK);
    assert_int_equal(jsonl_start(&log, &f->start), STATUS_OK);
    jsonl_close(&log);
    const char *line = scratch_read(scratch_path(f->dir, "log.jsonl"));
    JsonValue *root;
    if (json_parse(line, strlen(line), "log", STATUS_CHECKPOINT, &root) != STATUS_OK)
        fail_msg("%s", status_trail());
    assert_int_equal(strcspn(line, "\n"), strlen(line) - 1);
    assert_string_equal(json_as_string(json_get(root, "event")), "start");
    assert_int_equal(number(root, "schema"), 1);
    assert_string_equal(json_as_string(json_get(root, "run_id")), f->start.run_id);
    assert_true(json_is_object(json_get(root, "config")));
    assert_int_equal(number(json_get(root, "mesh"), "tp"), 2);
    assert_string_equal(json_as_string(json_at(json_get(root, "hosts"), 1)), "node-b");
    assert_string_equal(json_as_string(json_get(json_get(root, "numerics"), "mode")), "exact");
    assert_string_equal(json_as_string(json_get(json_get(root, "numerics"), "products")), f->start.products);
    assert_int_equal(number(json_get(root, "model"), "vocab_padded"), 256);
    const JsonValue *parameters = json_get(root, "parameters");
    assert_int_equal(json_count(parameters), f->params.count);
    int64_t numel = 0;
    for (int i = 0; i < f->params.count; i++) {
        const JsonValue *p = json_at(parameters, i);
        const bool muon = f->params.row[i].role == ROLE_MUON;
        assert_string_equal(json_as_string(json_get(p, "name")), f->params.row[i].name);
        assert_string_equal(json_as_string(json_get(p, "role")), muon ? "muon" : "adamw");
        assert_true(json_is_object(json_get(p, "owner")) == muon);
        if (muon) {
            assert_int_equal(number(json_get(p, "owner"), "shard"), f->plan.param[i].owner_shard);
            assert_int_equal(number(json_get(p, "owner"), "tp"), f->plan.param[i].owner_tp);
        }
        const JsonValue *local = json_get(p, "local_shape");
        assert_int_equal(json_count(local), f->params.row[i].ndim);
        int64_t size = 0, slice = 1;
        for (int d = 0; d < json_count(local); d++) {
            assert_true(json_as_int(json_at(local, d), &size));
            slice *= size;
        }
        assert_int_equal(slice, f->plan.param[i].local_nelem);
        if (f->params.row[i].tp_dim >= 0)
            assert_int_equal(number(p, "tp_dim"), f->params.row[i].tp_dim);
        else
            assert_non_null(json_get(p, "tp_dim"));
        numel += param_numel(&f->params.row[i]);
    }
    assert_int_equal(number(json_get(root, "model"), "parameters"), numel);
    double imbalance;
    assert_true(json_as_double(json_get(json_get(root, "load"), "imbalance"), &imbalance) && imbalance >= 1.0 &&
                imbalance < 2.0);
    json_free(root);
}

static void test_the_summary_is_for_people(void **state) {
    Fixture *f = *state;
    Str text = {0};
    console_start_text(&f->start, &text);
    assert_non_null(strstr(text.text, "replicate 1 x shard 1 x tp 2 = 2 ranks, fsdp, cpu avx2 with 1 thread each"));
    assert_non_null(strstr(text.text, "2 layers, width 64"));
    assert_non_null(strstr(text.text, "17 tokens at the ends of files"));
    assert_non_null(strstr(text.text, "exact, 8 segments"));
    assert_null(strstr(text.text, "from the weights"));
    str_clear(&text);
    StartMetrics start = f->start;
    start.init_from = "some/dir";
    console_start_text(&start, &text);
    assert_non_null(strstr(text.text, "start   from the weights of some/dir"));
    str_deinit(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_the_start_record_names_roles_owners_and_hosts, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_the_summary_is_for_people, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
