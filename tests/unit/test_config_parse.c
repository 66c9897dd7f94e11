#include "config_fixture.h"

#include <math.h>

#include "config/schema.h"

static void test_a_minimal_file_has_the_documented_defaults(void **state) {
    (void)state;
    assert_loads(load_yaml("model: m.yaml\nmesh: {}\ndata: {train: t.txt}\n"));
    assert_string_equal(loaded.path, "a.yaml");
    assert_string_equal(loaded.model_path, "m.yaml");
    assert_int_equal(loaded.model.d_model, 64);
    assert_int_equal(loaded.model.max_seq_len, 2048);
    assert_true(loaded.model.rope_theta == 10000.0 && loaded.model.norm_eps == 1e-5 && loaded.model.init_std == 0.02);
    assert_string_equal(loaded.device, "auto");
    assert_true(!loaded.numerics.fast && loaded.numerics.segments == 8);
    assert_int_equal(loaded.precision.grad_reduce, WIRE_F32);
    assert_true(loaded.seed == 1234 && loaded.threads == 0);
    assert_true(loaded.mesh.replicate == 1 && loaded.mesh.shard == 1 && loaded.mesh.tp == 1);
    assert_true(loaded.parallel.reshard_muon && loaded.parallel.reshard_adamw && loaded.parallel.prefetch == 1);
    assert_true(loaded.parallel.owner.small_param_threshold == -1 && loaded.parallel.owner.column_balance);
    assert_true(loaded.optimizer.muon.lr == 0.02 && loaded.optimizer.muon.momentum == 0.95);
    assert_true(loaded.optimizer.muon.match_count == 0 && loaded.optimizer.muon.ns.steps == 5);
    assert_true(loaded.optimizer.muon.ns.restart_count == 1 && loaded.optimizer.muon.ns.restarts[0] == 2);
    assert_true(loaded.optimizer.adamw.lr == 1e-3 && loaded.optimizer.adamw.beta2 == 0.999);
    assert_true(loaded.optimizer.adamw.eps == 1e-8 && loaded.optimizer.clip.max_norm == 1.0);
    assert_true(loaded.optimizer.schedule.kind == SCHEDULE_COSINE && loaded.optimizer.schedule.min_ratio == 0.1);
    assert_true(loaded.batch.global == 16 && loaded.batch.micro == 2 && loaded.batch.seq_len == 256);
    assert_true(loaded.train.steps == 100 && loaded.train.max_wall_s == 0 && loaded.checkpoint.keep == 2);
    assert_string_equal(loaded.checkpoint.resume, "auto");
    assert_true(loaded.comm.timeout_s == 600 && !loaded.comm.native);
    assert_string_equal(loaded.run.dir, "runs/a");
}

static void test_the_run_directory_follows_the_files_name(void **state) {
    (void)state;
    write_text("run.v2.yml", BASE_YAML);
    assert_loads(config_load(&loaded, "./run.v2.yml", NULL, 0, NULL));
    assert_string_equal(loaded.run.dir, "runs/run.v2");
    assert_loads(load_override("run.dir=/x/y"));
    assert_string_equal(loaded.run.dir, "/x/y");
}

static void test_unknown_misplaced_and_duplicate_keys_are_refused_with_their_line(void **state) {
    (void)state;
    assert_refused(load_yaml(BASE_YAML "trian: {steps: 3}\n"),
                   "a.yaml:4: unknown key 'trian'; the nearest valid key is 'train'");
    assert_refused(
        load_yaml(BASE_YAML "optimizer:\n  muon:\n    momentun: 0.9\n"),
        "a.yaml:6: unknown key 'optimizer.muon.momentun'; the nearest valid key is 'optimizer.muon.momentum'");
    assert_refused(load_yaml(BASE_YAML "optimizer:\n  warmup_steps: 3\n"),
                   "a.yaml:5: misplaced key 'optimizer.warmup_steps'; the nearest valid key is "
                   "'optimizer.schedule.warmup_steps'");
    assert_refused(load_yaml(BASE_YAML "muon: {lr: 1}\n"),
                   "a.yaml:4: misplaced key 'muon'; the nearest valid key is 'optimizer.muon'");
    assert_refused(load_yaml(BASE_YAML "seed: 3\n\nseed: 3\n"),
                   "a.yaml:6: duplicate key 'seed', first given in line 4");
    assert_refused(load_yaml(BASE_YAML "batch: {micro: 1,\n  micro: 2}\n"),
                   "a.yaml:5: duplicate key 'batch.micro', first given in line 4");
    assert_refused(load_yaml(BASE_YAML "mesh: {shard: 2}\n"), "a.yaml:4: duplicate key 'mesh', first given in line 2");
}

static void test_wrong_types_are_refused(void **state) {
    static const struct {
        const char *yaml, *message;
    } cases[] = {
        {"seed: x", "a.yaml:4: seed = x: must be an integer"},
        {"seed: 1.5", "seed = 1.5: must be an integer"},
        {"seed: \"1\"", "seed = \"1\": must be an integer, not text in quotes"},
        {"seed: [1]", "seed = [1]: must be an integer, not a list"},
        {"seed:", "a.yaml:4: seed: must be an integer, and nothing stands there"},
        {"threads: many", "threads = many: must be an integer or auto"},
        {"optimizer: {muon: {lr: fast}}", "a.yaml:4: optimizer.muon.lr = fast: must be a number"},
        {"optimizer: {muon: {lr: {a: 1}}}", "optimizer.muon.lr = {a: 1}: must be a number, not a mapping"},
        {"optimizer: {muon: {lr: .inf}}", "optimizer.muon.lr = .inf: must be a number"},
        {"optimizer: {muon: {lr: .nan}}", "optimizer.muon.lr = .nan: must be a number"},
        {"optimizer: {muon: {nesterov: yes}}", "optimizer.muon.nesterov = yes: must be true or false"},
        {"optimizer: {muon: {nesterov: 1}}", "optimizer.muon.nesterov = 1: must be true or false"},
        {"optimizer: {muon: {scale: big}}", "optimizer.muon.scale = big: must be one of match_rms, spectral"},
        {"optimizer: {muon: {match: []}}", "optimizer.muon.match = []: must have from 1 to 64 items"},
        {"optimizer: {muon: {match: [a, 3]}}", "optimizer.muon.match = [a, 3]: must be text; put it in quotes, \"3\""},
        {"optimizer: {muon: {match: {a: b}}}", "must be text or a list of texts, not a mapping"},
        {"optimizer: {muon: {ns: {restarts: 2}}}", "optimizer.muon.ns.restarts = 2: must be a list of integers"},
        {"optimizer: {muon: {ns: {restarts: [2, x]}}}", "optimizer.muon.ns.restarts = [2, x]: must be an integer"},
        {"optimizer: {muon: {ns: {coefficients: best}}}",
         "must be one of polar_express, you, jordan, or a list of triples"},
        {"optimizer: {muon: {ns: {coefficients: [1, 2, 3]}}}", "must be a list of 3 numbers"},
        {"optimizer: {muon: {ns: {coefficients: []}}}", "from 1 to 16 of them"},
        {"optimizer: {adamw: {betas: [0.9]}}", "optimizer.adamw.betas = [0.9]: must be a list of 2 numbers"},
        {"optimizer: 3", "a.yaml:4: 'optimizer' must be a mapping with keys of muon, adamw, clip, schedule"},
        {"numerics: [exact]", "a.yaml:4: 'numerics' must be a mapping with keys of mode, segments"},
        {"numerics: precise", "a.yaml:4: numerics.mode = precise: must be one of exact, fast"},
        {"run: {dir: 7}", "run.dir = 7: must be text; put it in quotes, \"7\""},
        {"run: {dir: true}", "run.dir = true: must be text; put it in quotes, \"true\""},
        {"run: {dir: }", "run.dir: must be text, and nothing stands there"},
        {"run: {dir: [a]}", "run.dir = [a]: must be text, not a list"},
        {"device: gpu", "device = gpu: must be one of auto, cpu, cuda"},
        {"device: [cpu]", "device = [cpu]: must be one of auto, cpu, cuda"},
        {"train: {max_wall_time: 3:55}", "must be a time \"H:MM:SS\""},
        {"train: {max_wall_time: 3:60:00}", "must be a time \"H:MM:SS\""},
        {"train: {max_wall_time: 3:5:00}", "must be a time \"H:MM:SS\""},
        {"train: {max_wall_time: 3600}", "must be a time \"H:MM:SS\""},
        {"train: {max_wall_time: 0:00:00}", "above 0"},
        {"train: {max_wall_time: 1:00:00:00}", "must be a time \"H:MM:SS\""},
        {"log: {trace_steps: [1,\n 0]}", "a.yaml:5: log.trace_steps = [1, 0]: must be at least 1"},
        {"parallel: {tp_buffer_reuse: on}", "must be one of off, gather, scatter, all"},
    };
    char yaml[512];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        (void)snprintf(yaml, sizeof yaml, "%s%s\n", BASE_YAML, cases[i].yaml);
        assert_refused(load_yaml(yaml), cases[i].message);
        assert_int_equal(reported_errors(), 1);
    }
}

/* The key set to a number just beyond a bound. */
static void refuse_beyond(const KeySpec *spec, double value, const char *rule) {
    char argument[128], message[256];
    (void)snprintf(argument, sizeof argument, "%s=%.17g", spec->path, value);
    (void)snprintf(message, sizeof message, "command line: %s: must be %s", argument, rule);
    assert_refused(load_override(argument), message);
}

static void test_every_number_is_held_to_its_bounds(void **state) {
    int checked = 0;
    (void)state;
    for (int i = 0; i < schema_count(); i++) {
        const KeySpec *spec = schema_key(i);
        if (spec->type != KEY_INT && spec->type != KEY_DOUBLE)
            continue;
        const bool integer = spec->type == KEY_INT;
        const double below = spec->min_open ? spec->min : spec->min - (integer ? 1 : 1e-3);
        const double above = spec->max_open ? spec->max : integer ? spec->max + 1 : nextafter(spec->max, INFINITY);
        refuse_beyond(spec, below, spec->min_open ? "above" : "at least");
        refuse_beyond(spec, above, spec->max_open ? "below" : "at most");
        checked++;
    }
    assert_true(checked > 45);
    assert_refused(load_override("optimizer.adamw.betas=[0.9, 1.0]"), "must be below 1");
    assert_refused(load_override("optimizer.muon.ns.restarts=[0]"), "must be at least 1");
    assert_refused(load_override("seed=99999999999999999999"), "must be an integer");
}

static void test_numbers_follow_yaml_1_2(void **state) {
    (void)state;
    assert_loads(load_yaml(BASE_YAML "optimizer: {muon: {lr: 1e-4}, adamw: {lr: +.5}}\nseed: 0x10\nthreads: 0o17\n"));
    assert_true(loaded.optimizer.muon.lr == 1e-4);
    assert_true(loaded.optimizer.adamw.lr == 0.5);
    assert_int_equal(loaded.seed, 16);
    assert_int_equal(loaded.threads, 15);
    assert_loads(load_override("optimizer.clip.max_norm=3"));
    assert_true(loaded.optimizer.clip.max_norm == 3.0);
    assert_loads(load_override("train.steps=0100")); /* not octal */
    assert_int_equal(loaded.train.steps, 100);
    assert_refused(load_override("train.steps=1_000"), "must be an integer");
    assert_refused(load_override("train.steps=1e3"), "must be an integer");
    assert_refused(load_override("optimizer.muon.lr=1_0.5"), "must be a number");
    assert_refused(load_override("optimizer.muon.lr=0.02x"), "must be a number");
    assert_refused(load_override("optimizer.muon.lr=1e999"), "must be a number");
}

static void test_short_forms(void **state) {
    (void)state;
    assert_loads(load_yaml(BASE_YAML "numerics: exact\nparallel: {reshard_after_forward: false}\n"
                                     "optimizer: {muon: {match: '*.q_proj.weight', ns: {coefficients: jordan}}}\n"));
    assert_false(loaded.parallel.reshard_muon || loaded.parallel.reshard_adamw);
    assert_int_equal(loaded.optimizer.muon.match_count, 1);
    assert_string_equal(loaded.optimizer.muon.match[0], "*.q_proj.weight");
    assert_int_equal(loaded.optimizer.muon.ns.coefficients, NS_JORDAN);

    assert_loads(load_yaml(BASE_YAML "parallel: {reshard_after_forward: {adamw: false}, tp_buffer_reuse: true}\n"
                                     "optimizer: {muon: {match: [a*, b], tp_distributed_gram: true,\n"
                                     "  ns: {coefficients: [[3.0, -4, 2], [1, 0.5, 1e-3]]}}}\n"));
    assert_true(loaded.parallel.reshard_muon && !loaded.parallel.reshard_adamw);
    assert_int_equal(loaded.parallel.tp_buffer_reuse, REUSE_ALL);
    assert_int_equal(loaded.optimizer.muon.tp_distributed_gram, GRAM_BENEFICIAL);
    assert_int_equal(loaded.optimizer.muon.match_count, 2);
    assert_string_equal(loaded.optimizer.muon.match[1], "b");
    assert_int_equal(loaded.optimizer.muon.ns.coefficients, NS_LIST);
    assert_int_equal(loaded.optimizer.muon.ns.list_count, 2);
    assert_true(loaded.optimizer.muon.ns.list[0][1] == -4 && loaded.optimizer.muon.ns.list[1][2] == 1e-3);

    assert_loads(load_yaml(BASE_YAML "parallel: {tp_buffer_reuse: false, owner: {small_param_threshold: 0}}\n"
                                     "optimizer: {muon: {tp_distributed_gram: false, match: auto}}\nthreads: auto\n"
                                     "train: {max_wall_time: 3:55:07}\nlog:\n"));
    assert_int_equal(loaded.parallel.tp_buffer_reuse, REUSE_OFF);
    assert_int_equal(loaded.optimizer.muon.tp_distributed_gram, GRAM_OFF);
    assert_int_equal(loaded.parallel.owner.small_param_threshold, 0);
    assert_true(loaded.train.max_wall_s == 3 * 3600 + 55 * 60 + 7);
    assert_loads(load_override("mesh.shard=auto"));
    assert_int_equal(loaded.mesh.shard, 0);
}

static void test_overrides_win_over_the_file_and_the_later_one_wins(void **state) {
    char *const overrides[] = {"train.steps=7",
                               "mesh={replicate: 2}",
                               "log.trace_steps=[3, 4]",
                               "train.steps=9",
                               "train.sample_prompt=God said: \"1\" ",
                               "data.val=",
                               "checkpoint.resume='x y'"};
    (void)state;
    assert_loads(load_with(BASE_YAML "train: {steps: 5, epochs: 1}\n", 7, overrides, NULL));
    assert_int_equal(loaded.train.steps, 9);
    assert_int_equal(loaded.train.epochs, 1);
    assert_int_equal(loaded.mesh.replicate, 2);
    assert_int_equal(loaded.log.trace_count, 2);
    assert_int_equal(loaded.log.trace_steps[1], 4);
    assert_string_equal(loaded.train.sample_prompt, "God said: \"1\" ");
    assert_string_equal(loaded.data.val, "");
    assert_string_equal(loaded.checkpoint.resume, "x y");
}

static void test_a_wrong_override_is_reported_with_its_text(void **state) {
    (void)state;
    assert_refused(load_override("optimizer.muon.lr=-1"), "command line: optimizer.muon.lr=-1: must be at least 0");
    assert_refused(load_override("optimizer.muon.lrr=1"),
                   "command line: optimizer.muon.lrr=1: unknown key 'optimizer.muon.lrr'; the nearest valid key is "
                   "'optimizer.muon.lr'");
    assert_refused(load_override("lr"), "command line: lr: must have the form key.path=value");
    assert_refused(load_override("=3"), "must have the form key.path=value");
    assert_refused(load_override("seed="), "command line: seed=: must be an integer");
    assert_refused(load_override("log.trace_steps=[1"), "command line: log.trace_steps=[1: is not valid YAML");
    assert_refused(load_override("train={steps: x}"),
                   "command line: train={steps: x}: train.steps = x: must be an integer");
    assert_refused(load_override("run.dir=\xff"), "is not valid YAML");
}

static void test_the_model_may_be_a_file_or_a_mapping_and_be_overridden(void **state) {
    char *const overrides[] = {"model.n_layers=5", "model=other.yaml"};
    (void)state;
    write_text("other.yaml", MODEL_YAML "qk_norm: true\n");
    assert_loads(load_with("model: missing.yaml\nmesh: {}\ndata: {train: t}\n", 2, overrides, NULL));
    assert_int_equal(loaded.model.n_layers, 5);
    assert_true(loaded.model.qk_norm);
    assert_string_equal(loaded.model_path, "other.yaml");
    assert_loads(load_yaml("model: {d_model: 32, n_layers: 1, n_heads: 2, n_kv_heads: 1, head_dim: 16, d_ff: 64,\n"
                           "  vocab_size: 256, rope_theta: 5e5, norm_eps: 1e-6, tie_embeddings: true}\n"
                           "mesh: {}\ndata: {train: t}\n"));
    assert_string_equal(loaded.model_path, "");
    assert_true(loaded.model.d_model == 32 && loaded.model.rope_theta == 5e5 && loaded.model.tie_embeddings);
}

static void test_errors_in_the_models_file_name_that_file(void **state) {
    (void)state;
    write_text("bad.yaml", MODEL_YAML "n_layer: 3\nrope_theta: 0\nd_ff: 8\n");
    assert_refused(load_override("model=bad.yaml"),
                   "bad.yaml:9: unknown key 'model.n_layer'; the nearest valid key is 'model.n_layers'");
    assert_reported("bad.yaml:10: model.rope_theta = 0: must be above 0");
    assert_reported("bad.yaml:11: duplicate key 'model.d_ff', first given in line 7");
    write_text("bad.yaml", "d_model: 64\n");
    assert_refused(load_override("model=bad.yaml"), "missing key 'model.d_ff' in bad.yaml");
    assert_int_equal(reported_errors(), 6);
    write_text("bad.yaml", "d_model: [64\n");
    assert_refused(load_override("model=bad.yaml"), "bad.yaml:1: is not valid YAML");
    assert_refused(load_override("model=nowhere.yaml"),
                   "command line: model=nowhere.yaml: nowhere.yaml: No such file or directory");
    assert_refused(load_yaml("model:\nmesh: {}\ndata: {train: t}\n"),
                   "a.yaml:1: model: must be the path of a model file, or a mapping");
}

static void test_required_keys_are_asked_for(void **state) {
    (void)state;
    assert_refused(load_yaml("seed: 1\n"), "a.yaml: missing key 'model'");
    assert_reported("a.yaml: missing key 'mesh'");
    assert_reported("a.yaml: missing key 'data.train'");
    assert_int_equal(reported_errors(), 3);
    assert_refused(load_yaml(""), "a.yaml: missing key 'model'");
    assert_refused(load_yaml("model: m.yaml\nmesh: {}\ndata: {train: \"\"}\n"), "data.train = \"\": must name a file");
    char *const overrides[] = {"model=m.yaml", "mesh.shard=2", "data.train=t"};
    assert_loads(load_with("{}\n", 3, overrides, NULL));
}

static void test_what_is_no_plain_yaml_is_refused(void **state) {
    (void)state;
    assert_refused(load_yaml(BASE_YAML "seed: [1\n"), "a.yaml:4: is not valid YAML");
    assert_refused(load_yaml(BASE_YAML "a: &x 1\n"), "a.yaml:4: uses a YAML anchor");
    assert_refused(load_yaml(BASE_YAML "a: *x\n"), "a.yaml:4: uses a YAML anchor");
    assert_refused(load_yaml(BASE_YAML "seed: !!int 1\n"), "a.yaml:4: uses a YAML anchor, alias or tag");
    assert_refused(load_yaml(BASE_YAML "---\nseed: 1\n"), "a.yaml:4: holds more than one YAML document");
    assert_refused(load_yaml("- a\n"), "a.yaml:1: 'the file' must be a mapping with keys of model, device");
    assert_refused(load_yaml(BASE_YAML "? [a]\n: 1\n"), "has a key that is not a word");
    assert_refused(load_yaml(BASE_YAML "run: {dir: \"a\\0b\"}\n"), "a.yaml:4: has a NUL character");
    assert_refused(load_yaml("a: [[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]\n"), "a.yaml:1: is nested too deeply");
    assert_refused(config_load(&loaded, "none.yaml", NULL, 0, NULL), "none.yaml: No such file or directory");
}

static void test_long_texts_are_refused(void **state) {
    char text[2048];
    (void)state;
    const int len = snprintf(text, sizeof text, "run.dir=");
    memset(text + len, 'x', CONFIG_PATH);
    text[len + CONFIG_PATH - 1] = '\0';
    assert_loads(load_override(text));
    text[len + CONFIG_PATH - 1] = 'x';
    text[len + CONFIG_PATH] = '\0';
    assert_refused(load_override(text), "must be at most 1023 bytes long, and has 1024");
}

static void test_all_errors_come_in_one_report(void **state) {
    char *const overrides[] = {"batch.global=15", "nonsense"};
    (void)state;
    assert_refused(load_with("model: m.yaml\nmesh: {shard: 4}\nlr: 1\ntrain: {steps: x, eval_every: 3}\n"
                             "numerics: {segments: 3}\nmodel.x: 1\n",
                             2, overrides, NULL),
                   "a.yaml:3: misplaced key 'lr'");
    assert_reported("a.yaml:4: train.steps = x: must be an integer");
    assert_reported("a.yaml:4: train.eval_every = 3: needs data.val");
    assert_reported("a.yaml:5: numerics.segments = 3: must be a power of two");
    assert_reported("a.yaml:6: unknown key 'model.x'");
    assert_reported("a.yaml: missing key 'data.train'");
    assert_reported("command line: batch.global=15: must be a multiple of batch.micro");
    assert_reported("command line: nonsense: must have the form");
    assert_int_equal(reported_errors(), 8);
}

static void test_a_flood_of_errors_ends_in_a_count(void **state) {
    Str yaml = {0};
    (void)state;
    str_append(&yaml, BASE_YAML);
    for (int i = 0; i < 500; i++)
        str_printf(&yaml, "nonsense_%d: 1\n", i);
    assert_refused(load_yaml(yaml.text), "a.yaml:4: unknown key 'nonsense_0'");
    assert_reported(" more errors");
    str_deinit(&yaml);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_minimal_file_has_the_documented_defaults),
        cmocka_unit_test(test_the_run_directory_follows_the_files_name),
        cmocka_unit_test(test_unknown_misplaced_and_duplicate_keys_are_refused_with_their_line),
        cmocka_unit_test(test_wrong_types_are_refused),
        cmocka_unit_test(test_every_number_is_held_to_its_bounds),
        cmocka_unit_test(test_numbers_follow_yaml_1_2),
        cmocka_unit_test(test_short_forms),
        cmocka_unit_test(test_overrides_win_over_the_file_and_the_later_one_wins),
        cmocka_unit_test(test_a_wrong_override_is_reported_with_its_text),
        cmocka_unit_test(test_the_model_may_be_a_file_or_a_mapping_and_be_overridden),
        cmocka_unit_test(test_errors_in_the_models_file_name_that_file),
        cmocka_unit_test(test_required_keys_are_asked_for),
        cmocka_unit_test(test_what_is_no_plain_yaml_is_refused),
        cmocka_unit_test(test_long_texts_are_refused),
        cmocka_unit_test(test_all_errors_come_in_one_report),
        cmocka_unit_test(test_a_flood_of_errors_ends_in_a_count),
    };
    return cmocka_run_group_tests(tests, fixture_enter, fixture_leave);
}
