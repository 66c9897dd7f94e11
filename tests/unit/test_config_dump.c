#include "config_fixture.h"

#include "base/arena.h"
#include "base/json.h"
#include "config/schema.h"
#include "config/value.h"

/* Every key with a second value, as it is written on the command line. */
static const struct {
    const char *key, *value;
} second[] = {
    {"model.family", NULL}, /* one value only */
    {"model.d_model", "48"},
    {"model.n_layers", "3"},
    {"model.n_heads", "4"},
    {"model.n_kv_heads", "8"},
    {"model.head_dim", "6"},
    {"model.d_ff", "96"},
    {"model.vocab_size", "300"},
    {"model.max_seq_len", "512"},
    {"model.rope_theta", "123456.789"},
    {"model.norm_eps", "1.1e-7"},
    {"model.tie_embeddings", "true"},
    {"model.qkv_bias", "true"},
    {"model.qk_norm", "true"},
    {"model.init_std", "0.1"},
    {"device", "cpu"},
    {"numerics.mode", "fast"},
    {"numerics.segments", "16"},
    {"precision.compute", "bf16"},
    {"precision.wire", "bf16"},
    {"precision.grad_reduce", "bf16"},
    {"seed", "9007199254740991"},
    {"threads", "3"},
    {"mesh.replicate", "2"},
    {"mesh.shard", "auto"},
    {"mesh.tp", "2"},
    {"parallel.data", "ddp"},
    {"parallel.reshard_after_forward.muon", "false"},
    {"parallel.reshard_after_forward.adamw", "false"},
    {"parallel.prefetch", "0"},
    {"parallel.accumulate", "local"},
    {"parallel.tp_buffer_reuse", "scatter"},
    {"parallel.recompute", "layer"},
    {"parallel.owner.strategy", "round_robin"},
    {"parallel.owner.cost", NULL},
    {"parallel.owner.max_per_layer", "2"},
    {"parallel.owner.small_param_threshold", "3000"},
    {"parallel.owner.column_balance", "false"},
    {"optimizer.muon.lr", "0.1"},
    {"optimizer.muon.momentum", "0"},
    {"optimizer.muon.nesterov", "false"},
    {"optimizer.muon.weight_decay", "0.30000000000000004"},
    {"optimizer.muon.scale", "spectral"},
    {"optimizer.muon.match", "[\"*.q_proj.*\", \"x: \\\"y\\\" \\\\\"]"},
    {"optimizer.muon.ns.algorithm", "direct"},
    {"optimizer.muon.ns.coefficients", "[[3.4445, -4.775, 2.0315], [1, 0.1, 1e-300]]"},
    {"optimizer.muon.ns.steps", "7"},
    {"optimizer.muon.ns.restarts", "[1, 3]"},
    {"optimizer.muon.replicate_async", "false"},
    {"optimizer.muon.tp_distributed_gram", "always"},
    {"optimizer.adamw.lr", "3e-4"},
    {"optimizer.adamw.betas", "[0.8, 0.95]"},
    {"optimizer.adamw.eps", "1e-10"},
    {"optimizer.adamw.weight_decay", "0"},
    {"optimizer.adamw.decay_1d", "true"},
    {"optimizer.clip.max_norm", "0"},
    {"optimizer.clip.muon_max_norm", "0.5"},
    {"optimizer.clip.adamw_max_norm", "0.25"},
    {"optimizer.schedule.kind", "wsd"},
    {"optimizer.schedule.warmup_steps", "10"},
    {"optimizer.schedule.min_ratio", "0"},
    {"optimizer.schedule.decay_fraction", "0.5"},
    {"batch.global", "32"},
    {"batch.micro", "1"},
    {"batch.seq_len", "64"},
    {"data.train", "x*.bin"},
    {"data.val", ""},
    {"data.format", "text"},
    {"data.shuffle", "false"},
    {"train.steps", "1000000000000"},
    {"train.epochs", "3"},
    {"train.eval_every", "7"},
    {"train.eval_batches", "5"},
    {"train.sample_every", "9"},
    {"train.sample_prompt", " \xc3\xa9\t\"\\x'\n\xf0\x9f\x98\x80 # "},
    {"train.sample_tokens", "12"},
    {"train.sample_temperature", "0"},
    {"train.nonfinite", "skip"},
    {"train.max_wall_time", "3:55:01"},
    {"checkpoint.every", "10"},
    {"checkpoint.keep", "0"},
    {"checkpoint.resume", "none"},
    {"checkpoint.init_from", "some/dir"},
    {"checkpoint.allow_changes", "[seed, batch.global]"},
    {"checkpoint.background", "false"},
    {"log.every", "4"},
    {"log.params_hash_every", "6"},
    {"log.trace_steps", "[5, 6, 7]"},
    {"log.replica_check_every", "8"},
    {"comm.timeout_s", "2.5"},
    {"comm.reduce", "native"},
    {"comm.transport", "mpi"},
    {"run.dir", "~/a b"},
};
enum { SECOND_COUNT = sizeof second / sizeof second[0] };

/* The text of a value as a node, bare where the command line allows it. */
static Node *value_node(const KeySpec *spec, const char *text) {
    Str why = {0};
    int line;
    Node *node = spec->type == KEY_TEXT ? node_text(text) : node_parse(text, strlen(text), &line, &why);
    assert_non_null(node);
    return node;
}

static void set_value(Config *config, const char *key, const char *text) {
    const KeySpec *spec = schema_key(schema_index(key));
    Str why = {0};
    Node *node = value_node(spec, text);
    assert_null(value_set(spec, config, node, &why));
    node_destroy(node);
}

static void test_the_table_of_second_values_names_every_key(void **state) {
    (void)state;
    assert_int_equal(SECOND_COUNT + 1, schema_count()); /* and `model` itself */
    for (int i = 0; i < SECOND_COUNT; i++)
        assert_string_equal(second[i].key, schema_key(i + 1)->path);
}

static void test_every_value_reads_back_from_its_text(void **state) {
    Config *one = HEAP_ALLOC(Config, 1), *two = HEAP_ALLOC(Config, 1);
    (void)state;
    assert_loads(load_yaml(BASE_YAML));
    for (int i = 0; i < SECOND_COUNT; i++) {
        const KeySpec *spec = schema_key(schema_index(second[i].key));
        Str text = {0}, why = {0};
        int line;
        if (second[i].value == NULL)
            continue;
        memcpy(one, &loaded, sizeof *one);
        memcpy(two, &loaded, sizeof *two);
        set_value(one, spec->path, second[i].value);
        if (memcmp(one, two, sizeof *one) == 0)
            print_error("%s does not change the configuration\n", spec->path);
        assert_memory_not_equal(one, two, sizeof *one);
        value_print(spec, one, &text);
        Node *node = node_parse(text.text, text.len, &line, &why);
        assert_non_null(node);
        assert_null(value_set(spec, two, node, &why));
        if (memcmp(one, two, sizeof *one) != 0)
            print_error("%s: %s\n", spec->path, text.text);
        assert_memory_equal(one, two, sizeof *one);
        node_destroy(node);
        str_deinit(&text);
    }
    heap_free(one);
    heap_free(two);
}

/* The dump of `loaded` gives the same struct, but for the name of the model's file. */
static void assert_round_trip(const char *what) {
    static Config back;
    Str yaml = {0};
    config_dump_yaml(&loaded, &yaml);
    assert_loads(config_load_text(&back, yaml.text, yaml.len, loaded.path));
    memset(loaded.model_path, 0, sizeof loaded.model_path);
    if (memcmp(&back, &loaded, sizeof back) != 0)
        print_error("%s: the dump reads back to something else:\n%s\n", what, yaml.text);
    assert_memory_equal(&back, &loaded, sizeof back);
    str_deinit(&yaml);
}

static void test_the_dump_reads_back_to_the_same_configuration_for_every_key(void **state) {
    int built = 0;
    (void)state;
    for (int i = 0; i < SECOND_COUNT; i++) {
        char argument[256];
        char *list[] = {argument, NULL};
        int count = 1;
        if (second[i].value == NULL)
            continue;
        (void)snprintf(argument, sizeof argument, "%s=%s", second[i].key, second[i].value);
        if (strcmp(second[i].key, "train.eval_every") == 0)
            list[count++] = (char *)(uintptr_t) "data.val=v";
        if (strncmp(second[i].key, "precision.", 10) == 0)
            list[count++] = (char *)(uintptr_t) "numerics=fast";
        const Status status = load_with(BASE_YAML, count, list, NULL);
        if (status == STATUS_CONFIG && strstr(status_trail(), "not built yet") != NULL)
            continue;
        assert_loads(status);
        assert_round_trip(second[i].key);
        built++;
    }
    assert_true(built > 80);
}

static void test_the_dump_of_a_resolved_mesh_reads_back(void **state) {
    (void)state;
    assert_loads(load_override("mesh={replicate: 2, shard: auto}"));
    assert_loads(config_resolve_mesh(&loaded, 4));
    assert_round_trip("mesh");
    assert_int_equal(loaded.mesh.shard, 2);
}

static void test_a_dump_that_is_used_as_a_file_causes_no_warning(void **state) {
    Str yaml = {0}, warnings = {0};
    (void)state;
    assert_loads(load_yaml(BASE_YAML));
    config_dump_yaml(&loaded, &yaml);
    assert_loads(load_with(yaml.text, 0, NULL, &warnings));
    assert_null(warnings.text);
    str_deinit(&yaml);
}

static void test_a_broken_dump_is_refused_with_its_name(void **state) {
    static const char yaml[] = "seed: x\n";
    (void)state;
    assert_refused(config_load_text(&loaded, yaml, sizeof yaml - 1, "step-3/trainer.json"),
                   "step-3/trainer.json:1: seed = x: must be an integer");
    assert_refused(config_load_text(&loaded, "a: [", 4, "set"), "set:1: is not valid YAML");
}

/* The member at a dotted path. */
static const JsonValue *json_path(const JsonValue *root, const char *path) {
    char part[64];
    while (root != NULL) {
        const size_t len = strcspn(path, ".");
        (void)snprintf(part, sizeof part, "%.*s", (int)len, path);
        root = json_get(root, part);
        if (path[len] == '\0')
            break;
        path += len + 1;
    }
    return root;
}

static void test_the_json_dump_is_strict_and_has_every_key(void **state) {
    char *const overrides[] = {"optimizer.muon.ns.coefficients=[[1, 2, 3]]", "log.trace_steps=[5]", "seed=42",
                               "train.sample_prompt=a\"b\n"};
    JsonValue *root = NULL;
    Str json = {0};
    int64_t integer = 0;
    double real = 0;
    bool truth = false;
    (void)state;
    assert_loads(load_with(BASE_YAML, 4, overrides, NULL));
    config_dump_json(&loaded, &json);
    assert_loads(json_parse(json.text, json.len, "dump", STATUS_CONFIG, &root));
    for (int i = 0; i < SECOND_COUNT; i++) {
        if (json_path(root, second[i].key) == NULL)
            print_error("%s is missing\n", second[i].key);
        assert_non_null(json_path(root, second[i].key));
    }
    assert_true(json_as_int(json_path(root, "seed"), &integer) && integer == 42);
    assert_true(json_as_double(json_path(root, "optimizer.adamw.eps"), &real) && real == 1e-8);
    assert_true(json_as_bool(json_path(root, "data.shuffle"), &truth) && truth);
    assert_string_equal(json_as_string(json_path(root, "numerics.mode")), "exact");
    assert_string_equal(json_as_string(json_path(root, "threads")), "auto");
    assert_string_equal(json_as_string(json_path(root, "optimizer.muon.match")), "auto");
    assert_string_equal(json_as_string(json_path(root, "train.sample_prompt")), "a\"b\n");
    assert_true(json_as_int(json_at(json_path(root, "log.trace_steps"), 0), &integer) && integer == 5);
    const JsonValue *triple = json_at(json_path(root, "optimizer.muon.ns.coefficients"), 0);
    assert_true(json_as_double(json_at(triple, 2), &real) && real == 3);
    assert_true(json_as_double(json_at(json_path(root, "optimizer.adamw.betas"), 1), &real) && real == 0.999);
    json_free(root);
    str_deinit(&json);
}

typedef struct Difference {
    int count, identity;
    char key[64], before[128], after[128];
} Difference;

static void note_difference(void *arg, const char *key, const char *va, const char *vb, int identity) {
    Difference *difference = arg;
    difference->count++;
    difference->identity = identity;
    str_format(difference->key, sizeof difference->key, "%s", key);
    str_format(difference->before, sizeof difference->before, "%s", va);
    str_format(difference->after, sizeof difference->after, "%s", vb);
}

static int expected_class(const char *key) {
    static const char *const free_prefixes[] = {"device",      "threads",     "mesh.",         "parallel.",
                                                "checkpoint.", "log.",        "run.",          "comm.",
                                                "data.val",    "train.eval_", "train.sample_", "train.max_wall_time"};
    if (strncmp(key, "model.", 6) == 0 || strncmp(key, "numerics.", 9) == 0)
        return 2;
    for (size_t i = 0; i < sizeof free_prefixes / sizeof free_prefixes[0]; i++) {
        if (strncmp(key, free_prefixes[i], strlen(free_prefixes[i])) == 0)
            return 0;
    }
    return 1;
}

static void test_a_difference_is_named_with_its_class(void **state) {
    Config *changed = HEAP_ALLOC(Config, 1);
    (void)state;
    assert_loads(load_yaml(BASE_YAML));
    for (int i = 0; i < SECOND_COUNT; i++) {
        Difference difference = {0};
        if (second[i].value == NULL)
            continue;
        memcpy(changed, &loaded, sizeof *changed);
        set_value(changed, second[i].key, second[i].value);
        config_diff(&loaded, changed, note_difference, &difference);
        assert_int_equal(difference.count, 1);
        assert_string_equal(difference.key, second[i].key);
        assert_string_not_equal(difference.before, difference.after);
        if (difference.identity != expected_class(second[i].key))
            print_error("%s: class %d\n", second[i].key, difference.identity);
        assert_int_equal(difference.identity, expected_class(second[i].key));
    }
    heap_free(changed);
}

static Difference diff_of(const Config *a, const Config *b, const char *key_a, const char *value_a) {
    Difference difference = {0};
    Config *other = HEAP_ALLOC(Config, 1);
    memcpy(other, b, sizeof *other);
    set_value(other, key_a, value_a);
    config_diff(a, other, note_difference, &difference);
    heap_free(other);
    return difference;
}

static void test_classes_that_depend_on_other_keys(void **state) {
    (void)state;
    assert_loads(load_yaml(BASE_YAML));
    assert_int_equal(diff_of(&loaded, &loaded, "seed", "1234").count, 0);
    assert_int_equal(diff_of(&loaded, &loaded, "train.steps", "50").identity, 1);
    set_value(&loaded, "optimizer.schedule.kind", "constant");
    assert_int_equal(diff_of(&loaded, &loaded, "train.steps", "50").identity, 0);
    /* d_ff = 176 is 16 times an odd number: 16 and 64 are the same sixteen segments */
    set_value(&loaded, "numerics.segments", "16");
    assert_int_equal(diff_of(&loaded, &loaded, "numerics.segments", "64").identity, 0);
    assert_int_equal(diff_of(&loaded, &loaded, "numerics.segments", "8").identity, 2);
    loaded.numerics.fast = true;
    assert_int_equal(diff_of(&loaded, &loaded, "device", "cpu").identity, 1);
    const Difference lr = diff_of(&loaded, &loaded, "optimizer.muon.lr", "0.1");
    assert_string_equal(lr.before, "0.02");
    assert_string_equal(lr.after, "0.1");
}

static void test_the_help_has_a_line_for_every_key(void **state) {
    Str help = {0};
    (void)state;
    config_help(&help);
    for (int i = 0; i < schema_count(); i++) {
        const KeySpec *spec = schema_key(i);
        char start[80], end[256];
        (void)snprintf(start, sizeof start, "\n%s ", spec->path);
        (void)snprintf(end, sizeof end, "  %s\n", spec->help);
        const char *line = strstr(help.text, start);
        assert_non_null(line);
        const char *text = strstr(line, end);
        const char *initial = strstr(line, spec->initial != NULL ? spec->initial : "required");
        assert_true(text != NULL && text < strchr(line + 1, '\n'));
        assert_true(initial != NULL && initial < text);
    }
    assert_non_null(strstr(help.text, "off|gather|scatter|all|true|false"));
    assert_non_null(strstr(help.text, "at least 0 and below 1"));
    str_deinit(&help);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_table_of_second_values_names_every_key),
        cmocka_unit_test(test_every_value_reads_back_from_its_text),
        cmocka_unit_test(test_the_dump_reads_back_to_the_same_configuration_for_every_key),
        cmocka_unit_test(test_the_dump_of_a_resolved_mesh_reads_back),
        cmocka_unit_test(test_a_dump_that_is_used_as_a_file_causes_no_warning),
        cmocka_unit_test(test_a_broken_dump_is_refused_with_its_name),
        cmocka_unit_test(test_the_json_dump_is_strict_and_has_every_key),
        cmocka_unit_test(test_a_difference_is_named_with_its_class),
        cmocka_unit_test(test_classes_that_depend_on_other_keys),
        cmocka_unit_test(test_the_help_has_a_line_for_every_key),
    };
    return cmocka_run_group_tests(tests, fixture_enter, fixture_leave);
}
