#include "config_fixture.h"

static void test_rules_across_keys(void **state) {
    static const struct {
        const char *yaml, *message;
    } cases[] = {
        {"batch: {global: 15, micro: 4}",
         "a.yaml:4: batch.global = 15: must be a multiple of batch.micro*mesh.replicate*"
         "mesh.shard = 4*1*1 = 4; the nearest legal value is 16"},
        {"batch: {global: 6, micro: 4}", "the nearest legal value is 8"},
        {"batch: {global: 9, micro: 4}", "the nearest legal value is 8"},
        {"batch: {global: 1, micro: 4}", "the nearest legal value is 4"},
        {"batch: {micro: 7}", "a.yaml:4: batch.global = 16 (default): must be a multiple"},
        {"batch: {seq_len: 2049}", "a.yaml:4: batch.seq_len = 2049: must be at most model.max_seq_len = 2048"},
        {"numerics: {segments: 12}", "a.yaml:4: numerics.segments = 12: must be a power of two"},
        {"precision: {compute: bf16}", "a.yaml:4: precision.compute = bf16: numerics.mode exact requires f32"},
        {"precision: {compute: tf32}", "precision.compute = tf32: numerics.mode exact requires f32"},
        {"precision: {wire: bf16}", "precision.wire = bf16: numerics.mode exact requires f32"},
        {"precision: {grad_reduce: bf16}", "precision.grad_reduce = bf16: numerics.mode exact requires f32"},
        {"numerics: fast\nprecision: {compute: tf32}", "a.yaml:5: precision.compute = tf32: needs device: cuda"},
        {"numerics: fast\ndevice: cpu\nprecision: {compute: tf32}", "precision.compute = tf32: needs device: cuda"},
        {"numerics: fast\nprecision: {compute: bf32}",
         "a.yaml:5: precision.compute = bf32: must be one of f32, tf32, bf16"},
        {"comm: {reduce: native}", "a.yaml:4: comm.reduce = native: numerics.mode exact requires canonical"},
        {"train: {eval_every: 5}\ndata: {train: t}", "a.yaml:4: train.eval_every = 5: needs data.val, which is empty"},
        {"optimizer: {schedule: {warmup_steps: 101}}",
         "a.yaml:4: optimizer.schedule.warmup_steps = 101: must be at most train.steps = 100"},
        {"optimizer: {muon: {ns: {restarts: [5]}}}", "restarts = [5]: must be below optimizer.muon.ns.steps = 5"},
        {"optimizer: {muon: {ns: {restarts: [3, 2]}}}",
         "a.yaml:4: optimizer.muon.ns.restarts = [3, 2]: must be ascending"},
        {"optimizer: {muon: {ns: {restarts: [2, 2]}}}", "restarts = [2, 2]: must be ascending"},
        {"optimizer: {clip: {max_norm: 1, muon_max_norm: 2}}",
         "max_norm = 1.0: cannot be combined with a limit per role, optimizer.clip.muon_max_norm"},
        {"optimizer: {clip: {max_norm: 1, adamw_max_norm: 2}}", "a limit per role, optimizer.clip.adamw_max_norm"},
        {"checkpoint: {resume: \"\"}", "checkpoint.resume = \"\": must be auto, none or the path of a checkpoint"},
        {"checkpoint: {allow_changes: [seeds]}", "'seeds' is no key; the nearest valid key is 'seed'"},
        {"checkpoint: {allow_changes: [numerics.mode]}", "'numerics.mode' can never change"},
    };
    char yaml[512];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const bool own_data = strstr(cases[i].yaml, "data:") != NULL;
        (void)snprintf(yaml, sizeof yaml, "model: m.yaml\nmesh: {}\n%s\n%s\n",
                       own_data ? "# no validation" : "data: {train: t, val: v}", cases[i].yaml);
        assert_refused(load_yaml(yaml), cases[i].message);
    }
}

static void test_rules_hold_up_to_their_limits(void **state) {
    static const char *const overrides[] = {
        "batch.seq_len=2048",
        "numerics.segments=16",
        "optimizer.schedule.warmup_steps=100",
        "optimizer.muon.ns.restarts=[1, 4]",
        "optimizer.clip={max_norm: 0, muon_max_norm: 1}",
        "train.eval_every=5",
        "checkpoint.allow_changes=[seed, batch.global]",
        "batch={global: 24, micro: 8}",
        "numerics=fast",
    };
    (void)state;
    for (size_t i = 0; i < sizeof overrides / sizeof overrides[0]; i++)
        assert_loads(load_override(overrides[i]));
}

static void test_the_models_dimensions_are_checked(void **state) {
    (void)state;
    assert_refused(load_override("model={head_dim: 7}"), "model.head_dim = 7: must be even");
    assert_refused(load_override("model.n_kv_heads=3"),
                   "command line: model.n_kv_heads=3: must divide model.n_heads = 8");
    write_text("bad.yaml", "d_model: 64\nn_layers: 2\nn_heads: 8\nn_kv_heads: 3\nhead_dim: 5\nd_ff: 176\n"
                           "vocab_size: 256\nmax_seq_len: 100\n");
    assert_refused(load_override("model=bad.yaml"), "bad.yaml:5: model.head_dim = 5: must be even");
    assert_reported("bad.yaml:4: model.n_kv_heads = 3: must divide model.n_heads = 8");
    assert_reported("bad.yaml:8: batch.seq_len = 256 (default): must be at most model.max_seq_len = 100");
}

static void test_one_mistake_is_one_error(void **state) {
    (void)state;
    assert_refused(load_override("batch.micro=0"), "must be at least 1");
    assert_int_equal(reported_errors(), 1);
    assert_refused(load_override("model=nowhere.yaml"), "No such file");
    assert_int_equal(reported_errors(), 1);
    assert_refused(load_override("model.n_heads=x"), "must be an integer");
    assert_int_equal(reported_errors(), 1);
}

static void test_a_limit_per_role_replaces_the_default_limit(void **state) {
    (void)state;
    assert_loads(load_override("optimizer.clip.muon_max_norm=0.5"));
    assert_true(loaded.optimizer.clip.max_norm == 0 && loaded.optimizer.clip.muon_max_norm == 0.5);
    assert_loads(load_override("optimizer.clip.muon_max_norm=0"));
    assert_true(loaded.optimizer.clip.max_norm == 1);
}

static void test_default_restarts_beyond_the_steps_are_dropped(void **state) {
    (void)state;
    assert_loads(load_override("optimizer.muon.ns.steps=2"));
    assert_int_equal(loaded.optimizer.muon.ns.restart_count, 0);
    assert_int_equal(loaded.optimizer.muon.ns.restarts[0], 0);
    assert_loads(load_override("optimizer.muon.ns.steps=3"));
    assert_int_equal(loaded.optimizer.muon.ns.restart_count, 1);
}

static void test_a_tp_degree_must_divide_the_model_and_the_segments(void **state) {
    (void)state;
    assert_refused(load_override("mesh.tp=3"),
                   "command line: mesh.tp=3: must divide n_heads = 8, n_kv_heads = 4, d_ff = 176 and the segments = 8; "
                   "legal values: 1, 2, 4");
    assert_refused(load_override("mesh.tp=8"), "legal values: 1, 2, 4");
    char *const overrides[] = {"mesh.tp=4", "numerics.segments=2"};
    assert_refused(load_with(BASE_YAML, 2, overrides, NULL), "the segments = 2; legal values: 1, 2");
    assert_loads(load_yaml(BASE_YAML));
    loaded.mesh.tp = 8;
    assert_refused(config_resolve_mesh(&loaded, 8), "a.yaml: mesh.tp = 8: must divide");
}

static void test_the_mesh_takes_its_open_axis_from_the_ranks(void **state) {
    (void)state;
    assert_loads(load_override("mesh={replicate: 2, shard: auto}"));
    assert_loads(config_resolve_mesh(&loaded, 8));
    assert_true(loaded.mesh.replicate == 2 && loaded.mesh.shard == 4 && loaded.mesh.tp == 1);
    assert_loads(load_override("mesh={replicate: 4, shard: auto}"));
    assert_refused(config_resolve_mesh(&loaded, 6),
                   "a.yaml: mesh replicate 4 x shard auto x tp 1 needs a multiple of 4 "
                   "ranks, but there are 6; a mesh that fits 6: mesh.replicate=1 "
                   "mesh.shard=6 mesh.tp=1");
    assert_refused(config_resolve_mesh(&loaded, 0), "the number of ranks is not known");
    assert_refused(load_override("mesh={replicate: auto, shard: auto}"), "only one axis of the mesh may be auto");
}

static void test_ranks_must_equal_the_mesh(void **state) {
    (void)state;
    assert_loads(load_override("mesh={replicate: 2, shard: 4}"));
    assert_loads(config_resolve_mesh(&loaded, 8));
    assert_loads(config_resolve_mesh(&loaded, 0));
    assert_refused(config_resolve_mesh(&loaded, 6),
                   "mesh replicate 2 x shard 4 x tp 1 needs 8 ranks, but there are 6; a "
                   "mesh that fits 6: mesh.replicate=2 mesh.shard=3 mesh.tp=1");
    assert_refused(config_resolve_mesh(&loaded, 1), "a mesh that fits 1: mesh.replicate=1 mesh.shard=1 mesh.tp=1");
}

static void test_the_batch_is_checked_on_the_resolved_mesh(void **state) {
    (void)state;
    assert_loads(load_override("mesh={shard: auto}"));
    assert_refused(
        config_resolve_mesh(&loaded, 3),
        "a.yaml: batch.global = 16: must be a multiple of batch.micro*mesh.replicate*mesh.shard = 2*1*3 = 6; "
        "the nearest legal value is 18");
    assert_refused(load_override("mesh={replicate: 2, shard: 8}"), "= 2*2*8 = 32; the nearest legal value is 32");
}

static void test_segments_are_lowered_to_what_divides_the_model(void **state) {
    (void)state;
    assert_loads(load_yaml(BASE_YAML));
    assert_int_equal(config_lowered_segments(&loaded), 8);
    assert_loads(load_override("numerics.segments=64"));
    assert_int_equal(config_lowered_segments(&loaded), 16); /* d_ff 176 = 16*11 */
    assert_loads(load_override("model={head_dim: 2, n_kv_heads: 1}"));
    assert_int_equal(config_lowered_segments(&loaded), 2);
    assert_loads(load_override("model.d_ff=11"));
    assert_int_equal(config_lowered_segments(&loaded), 1);
}

static void test_nccl_is_refused_on_the_cpu(void **state) {
    (void)state;
    assert_refused(load_yaml(BASE_YAML "device: cpu\ncomm: {transport: nccl}\n"),
                   "comm.transport = nccl: moves the memory of GPUs, and device is cpu");
    assert_loads(load_override("comm.transport=nccl")); /* whether there are GPUs is seen where the run starts */
    assert_loads(load_override("device=cuda"));
}

static void test_what_is_not_built_is_refused_and_says_so(void **state) {
    static const char *const overrides[] = {"precision.grad_reduce=bf16", "comm.reduce=native"};
    (void)state;
    for (size_t i = 0; i < sizeof overrides / sizeof overrides[0]; i++)
        assert_refused(load_override(overrides[i]), ": this feature is not built yet; the default, ");
}

static void test_fast_takes_bf16_for_compute_and_wire(void **state) {
    (void)state;
    assert_loads(load_yaml(BASE_YAML "numerics: fast\n"));
    assert_true(loaded.numerics.fast && !config_rounds_weights(&loaded));
    assert_loads(load_yaml(BASE_YAML "numerics: fast\nprecision: {wire: bf16}\n"));
    assert_true(loaded.precision.wire == WIRE_BF16 && config_rounds_weights(&loaded));
    assert_loads(load_yaml(BASE_YAML "numerics: fast\nprecision: {compute: bf16, grad_reduce: f32}\n"));
    assert_true(loaded.precision.compute == COMPUTE_BF16 && config_rounds_weights(&loaded));
    assert_loads(load_yaml(BASE_YAML "numerics: fast\ndevice: cuda\nprecision: {compute: tf32}\n"));
    assert_true(loaded.precision.compute == COMPUTE_TF32 && !config_rounds_weights(&loaded));
    assert_refused(load_yaml(BASE_YAML "numerics: fast\nprecision: {grad_reduce: bf16}\n"),
                   "a.yaml:5: precision.grad_reduce = bf16: this feature is not built yet; the default, f32, is");
    assert_int_equal(reported_errors(), 1);
}

#define ROUNDED BASE_YAML "numerics: fast\nprecision: {compute: bf16}\n"

static void test_rounded_products_need_restarts_in_time(void **state) {
    (void)state;
    assert_loads(load_yaml(ROUNDED)); /* 5 iterations, a restart before the third */
    assert_refused(load_yaml(ROUNDED "optimizer: {muon: {ns: {steps: 6}}}\n"),
                   "optimizer.muon.ns.restarts = [2] (default): leaves 4 iterations without a restart, and rounded "
                   "products allow 3: add restarts (as in [2, 4, 6]), or set optimizer.muon.ns.algorithm: direct");
    assert_refused(load_yaml(ROUNDED "optimizer: {muon: {ns: {restarts: [4]}}}\n"), "leaves 4 iterations");
    assert_refused(load_yaml(ROUNDED "optimizer: {muon: {ns: {restarts: []}}}\n"), "leaves 5 iterations");
    assert_loads(load_yaml(ROUNDED "optimizer: {muon: {ns: {steps: 9, restarts: [3, 6]}}}\n"));
    assert_loads(load_yaml(ROUNDED "optimizer: {muon: {ns: {steps: 9, algorithm: direct}}}\n"));
    assert_loads(load_yaml(BASE_YAML "numerics: fast\noptimizer: {muon: {ns: {steps: 9}}}\n"));
    assert_loads(load_yaml(BASE_YAML "optimizer: {muon: {ns: {steps: 9}}}\n"));
}

static void test_bits_are_kept_where_products_may_take_them(void **state) {
    (void)state;
    assert_loads(load_yaml(ROUNDED));
    assert_true(config_keeps_bits(&loaded));
    loaded.on_cpu = true;
    assert_false(config_keeps_bits(&loaded));
    assert_loads(load_yaml(ROUNDED "device: cpu\n"));
    assert_false(config_keeps_bits(&loaded));
    assert_loads(load_yaml(BASE_YAML "numerics: fast\nprecision: {wire: bf16}\n"));
    assert_false(config_keeps_bits(&loaded));
}

static void assert_warned(const char *override, const char *message) {
    char text[256];
    Str warnings = {0};
    (void)snprintf(text, sizeof text, "%s", override);
    char *const list[] = {text};
    assert_loads(load_with(BASE_YAML, 1, list, &warnings));
    if (message == NULL) {
        assert_null(warnings.text);
        return;
    }
    assert_non_null(warnings.text);
    if (strstr(warnings.text, message) == NULL)
        print_error("%s: not warned: %s, but: %s\n", override, message, warnings.text);
    assert_non_null(strstr(warnings.text, message));
    str_deinit(&warnings);
}

static void test_a_key_without_effect_is_a_warning(void **state) {
    (void)state;
    assert_warned("parallel.tp_buffer_reuse=all",
                  "command line: parallel.tp_buffer_reuse=all: parallel.tp_buffer_reuse has no effect: mesh.tp is 1");
    assert_warned("optimizer.muon.tp_distributed_gram=always", "tp_distributed_gram has no effect: mesh.tp is 1");
    assert_warned("parallel={data: ddp, prefetch: 2}", "prefetch has no effect: parallel.data is ddp");
    assert_warned("optimizer.muon.replicate_async=false", "has no effect: mesh.replicate and mesh.tp are 1");
    assert_warned("log.replica_check_every=3", "there are no replicas");
    assert_warned("optimizer.muon.ns={algorithm: direct, restarts: [1]}", "ns.restarts has no effect");
    assert_warned("optimizer.muon.ns.algorithm=direct", NULL);
    assert_warned("optimizer.schedule.decay_fraction=0.3",
                  "decay_fraction has no effect: optimizer.schedule.kind is not");
    assert_warned("optimizer.schedule={kind: wsd, decay_fraction: 0.3}", NULL);
    assert_warned("optimizer.schedule={kind: constant, min_ratio: 0.3}", "min_ratio has no effect");
    assert_warned("train.sample_tokens=3", "sample_tokens has no effect: train.sample_every is 0");
    assert_warned("train={sample_tokens: 3, sample_every: 5}", NULL);
    assert_warned("data={val: \"\"}", NULL);
    assert_warned("parallel.owner={strategy: rank0, column_balance: false}", "column_balance has no effect");
    assert_warned("checkpoint={resume: none, allow_changes: [seed]}", "allow_changes has no effect");
    assert_warned("checkpoint={resume: some/dir, init_from: other}", "init_from has no effect");
}

static void test_warnings_are_one_per_line_with_their_place(void **state) {
    Str warnings = {0};
    (void)state;
    assert_loads(load_with("model: m.yaml\nmesh: {}\ndata: {train: t}\ntrain:\n  eval_batches: 2\n"
                           "  sample_temperature: 0\n",
                           0, NULL, &warnings));
    assert_string_equal(warnings.text, "a.yaml:5: train.eval_batches has no effect: data.val is empty\n"
                                       "a.yaml:6: train.sample_temperature has no effect: train.sample_every is 0\n");
    str_deinit(&warnings);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rules_across_keys),
        cmocka_unit_test(test_rules_hold_up_to_their_limits),
        cmocka_unit_test(test_the_models_dimensions_are_checked),
        cmocka_unit_test(test_one_mistake_is_one_error),
        cmocka_unit_test(test_a_limit_per_role_replaces_the_default_limit),
        cmocka_unit_test(test_default_restarts_beyond_the_steps_are_dropped),
        cmocka_unit_test(test_rounded_products_need_restarts_in_time),
        cmocka_unit_test(test_bits_are_kept_where_products_may_take_them),
        cmocka_unit_test(test_a_tp_degree_must_divide_the_model_and_the_segments),
        cmocka_unit_test(test_the_mesh_takes_its_open_axis_from_the_ranks),
        cmocka_unit_test(test_ranks_must_equal_the_mesh),
        cmocka_unit_test(test_the_batch_is_checked_on_the_resolved_mesh),
        cmocka_unit_test(test_segments_are_lowered_to_what_divides_the_model),
        cmocka_unit_test(test_nccl_is_refused_on_the_cpu),
        cmocka_unit_test(test_what_is_not_built_is_refused_and_says_so),
        cmocka_unit_test(test_fast_takes_bf16_for_compute_and_wire),
        cmocka_unit_test(test_a_key_without_effect_is_a_warning),
        cmocka_unit_test(test_warnings_are_one_per_line_with_their_place),
    };
    return cmocka_run_group_tests(tests, fixture_enter, fixture_leave);
}
