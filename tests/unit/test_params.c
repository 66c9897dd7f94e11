/* The parameter table: registry order, names, dimensions, roles. */
#include "tests/unit/bits.h"

#include <stdio.h>

#include "base/str.h"
#include "model/params.h"

typedef struct Fixture {
    Config config;
    ModelShape shape;
    ParamTable table;
} Fixture;

static Config base_config(void) {
    Config config = {0};
    config.model = (ModelConfig){.family = "llama",
                                 .d_model = 32,
                                 .n_layers = 2,
                                 .n_heads = 4,
                                 .n_kv_heads = 2,
                                 .head_dim = 8,
                                 .d_ff = 48,
                                 .vocab_size = 61,
                                 .max_seq_len = 64,
                                 .rope_theta = 10000.0,
                                 .norm_eps = 1e-5,
                                 .init_std = 0.5};
    config.numerics.segments = 8;
    return config;
}

static Status fixture_init(Fixture *f, Config config) {
    f->config = config;
    f->shape = model_shape(&f->config);
    return params_create(&f->table, &f->shape, &f->config);
}

static void add_glob(Config *config, const char *glob) {
    (void)snprintf(config->optimizer.muon.match[config->optimizer.muon.match_count++], 128, "%s", glob);
}

static void test_params_stand_in_registry_order_with_public_names(void **state) {
    (void)state;
    static const char *const names[] = {
        "model.embed_tokens.weight",
        "model.layers.0.input_layernorm.weight",
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.0.self_attn.k_proj.weight",
        "model.layers.0.self_attn.v_proj.weight",
        "model.layers.0.self_attn.q_proj.bias",
        "model.layers.0.self_attn.k_proj.bias",
        "model.layers.0.self_attn.v_proj.bias",
        "model.layers.0.self_attn.q_norm.weight",
        "model.layers.0.self_attn.k_norm.weight",
        "model.layers.0.self_attn.o_proj.weight",
        "model.layers.0.post_attention_layernorm.weight",
        "model.layers.0.mlp.gate_proj.weight",
        "model.layers.0.mlp.up_proj.weight",
        "model.layers.0.mlp.down_proj.weight",
        "model.layers.1.input_layernorm.weight",
    };
    Fixture f;
    Config config = base_config();
    config.model.qkv_bias = true;
    config.model.qk_norm = true;
    assert_int_equal(fixture_init(&f, config), STATUS_OK);
    assert_int_equal(f.table.count, 1 + 2 * 14 + 2);
    assert_int_equal(f.table.nunits, 4);
    for (int i = 0; i < 16; i++)
        assert_string_equal(f.table.row[i].name, names[i]);
    assert_string_equal(f.table.row[29].name, "model.norm.weight");
    assert_string_equal(f.table.row[30].name, "lm_head.weight");
    params_destroy(&f.table);
}

static void test_params_without_options_leave_rows_out(void **state) {
    (void)state;
    Fixture f;
    Config config = base_config();
    config.model.tie_embeddings = true;
    assert_int_equal(fixture_init(&f, config), STATUS_OK);
    assert_int_equal(f.table.count, 1 + 2 * 9 + 1);
    assert_int_equal(params_by_name(&f.table, "lm_head.weight"), -1);
    assert_int_equal(params_find(&f.table, 3, SLOT_HEAD), -1);
    assert_int_equal(params_find(&f.table, 1, SLOT_Q_BIAS), -1);
    assert_int_equal(params_find(&f.table, 1, SLOT_Q_NORM), -1);
    params_destroy(&f.table);
}

typedef struct Expected {
    const char *name;
    int64_t out, in, padded;
    int tp_dim, unit;
    Role role;
} Expected;

static void test_params_know_dims_cut_unit_and_role(void **state) {
    (void)state;
    static const Expected expected[] = {
        {"model.embed_tokens.weight", 61, 32, 64, 0, 0, ROLE_ADAMW},
        {"model.layers.1.input_layernorm.weight", 32, 1, 32, -1, 2, ROLE_ADAMW},
        {"model.layers.1.self_attn.q_proj.weight", 32, 32, 32, 0, 2, ROLE_MUON},
        {"model.layers.1.self_attn.k_proj.weight", 16, 32, 16, 0, 2, ROLE_MUON},
        {"model.layers.1.self_attn.v_proj.weight", 16, 32, 16, 0, 2, ROLE_MUON},
        {"model.layers.1.self_attn.q_proj.bias", 32, 1, 32, 0, 2, ROLE_ADAMW},
        {"model.layers.1.self_attn.k_proj.bias", 16, 1, 16, 0, 2, ROLE_ADAMW},
        {"model.layers.1.self_attn.v_proj.bias", 16, 1, 16, 0, 2, ROLE_ADAMW},
        {"model.layers.1.self_attn.q_norm.weight", 8, 1, 8, -1, 2, ROLE_ADAMW},
        {"model.layers.1.self_attn.k_norm.weight", 8, 1, 8, -1, 2, ROLE_ADAMW},
        {"model.layers.1.self_attn.o_proj.weight", 32, 32, 32, 1, 2, ROLE_MUON},
        {"model.layers.1.post_attention_layernorm.weight", 32, 1, 32, -1, 2, ROLE_ADAMW},
        {"model.layers.1.mlp.gate_proj.weight", 48, 32, 48, 0, 2, ROLE_MUON},
        {"model.layers.1.mlp.up_proj.weight", 48, 32, 48, 0, 2, ROLE_MUON},
        {"model.layers.1.mlp.down_proj.weight", 32, 48, 32, 1, 2, ROLE_MUON},
        {"model.norm.weight", 32, 1, 32, -1, 3, ROLE_ADAMW},
        {"lm_head.weight", 61, 32, 64, 0, 3, ROLE_ADAMW},
    };
    Fixture f;
    Config config = base_config();
    config.model.qkv_bias = true;
    config.model.qk_norm = true;
    assert_int_equal(fixture_init(&f, config), STATUS_OK);
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        const int row = params_by_name(&f.table, expected[i].name);
        assert_in_range(row, 0, f.table.count - 1);
        const Param *p = &f.table.row[row];
        assert_int_equal(p->dim[0], expected[i].out);
        assert_int_equal(p->dim[1], expected[i].in);
        assert_int_equal(p->ndim, expected[i].in > 1 ? 2 : 1);
        assert_int_equal(p->padded_dim0, expected[i].padded);
        assert_int_equal(p->tp_dim, expected[i].tp_dim);
        assert_int_equal(p->unit, expected[i].unit);
        assert_int_equal(p->role, expected[i].role);
        assert_int_equal(params_find(&f.table, p->unit, p->slot), row);
        assert_int_equal(param_numel(p), expected[i].out * expected[i].in);
    }
    params_destroy(&f.table);
}

static void test_params_totals_split_by_role(void **state) {
    (void)state;
    Fixture f;
    assert_int_equal(fixture_init(&f, base_config()), STATUS_OK);
    assert_int_equal(params_total(&f.table, ROLE_MUON), 2 * (32 * 32 * 2 + 16 * 32 * 2 + 3 * 48 * 32));
    assert_int_equal(params_total(&f.table, ROLE_ADAMW), 2 * 61 * 32 + 2 * 2 * 32 + 32);
    params_destroy(&f.table);
}

static void test_params_decay_is_for_matrices_unless_asked(void **state) {
    (void)state;
    for (int all = 0; all < 2; all++) {
        Fixture f;
        Config config = base_config();
        config.optimizer.adamw.decay_1d = all == 1;
        assert_int_equal(fixture_init(&f, config), STATUS_OK);
        for (int i = 0; i < f.table.count; i++)
            assert_int_equal(f.table.row[i].decay, f.table.row[i].ndim == 2 || all == 1);
        params_destroy(&f.table);
    }
}

static void test_params_outputs_into_the_residual_start_smaller(void **state) {
    (void)state;
    Fixture f;
    assert_int_equal(fixture_init(&f, base_config()), STATUS_OK);
    for (int i = 0; i < f.table.count; i++) {
        const Param *p = &f.table.row[i];
        const bool output = p->slot == SLOT_O || p->slot == SLOT_DOWN;
        const double std = p->ndim == 1 ? 0.0 : output ? 0.25 : 0.5; /* 1/sqrt(2*2 layers) = 1/2 */
        assert_true(p->init_std == std);
        assert_int_equal(p->init, p->ndim == 2 ? INIT_NORMAL : INIT_ONES);
    }
    params_destroy(&f.table);
}

static void test_params_globs_choose_the_muon_matrices(void **state) {
    (void)state;
    Fixture f;
    Config config = base_config();
    add_glob(&config, "*.mlp.*");
    add_glob(&config, "lm_head.weight");
    assert_int_equal(fixture_init(&f, config), STATUS_OK);
    for (int i = 0; i < f.table.count; i++) {
        const Slot slot = f.table.row[i].slot;
        const bool muon = slot == SLOT_GATE || slot == SLOT_UP || slot == SLOT_DOWN || slot == SLOT_HEAD;
        assert_int_equal(f.table.row[i].role, muon ? ROLE_MUON : ROLE_ADAMW);
    }
    params_destroy(&f.table);
}

static void test_params_refuse_a_glob_without_match_or_of_a_vector(void **state) {
    (void)state;
    Fixture f;
    Config config = base_config();
    add_glob(&config, "*.qproj.*");
    assert_int_equal(fixture_init(&f, config), STATUS_CONFIG);
    assert_non_null(strstr(status_trail(), "'*.qproj.*' matches no parameter"));
    config = base_config();
    add_glob(&config, "model.layers.0.*");
    assert_int_equal(fixture_init(&f, config), STATUS_CONFIG);
    assert_non_null(strstr(status_trail(), "model.layers.0.input_layernorm.weight, which is not a matrix"));
    assert_null(f.table.row);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_params_stand_in_registry_order_with_public_names),
        cmocka_unit_test(test_params_without_options_leave_rows_out),
        cmocka_unit_test(test_params_know_dims_cut_unit_and_role),
        cmocka_unit_test(test_params_totals_split_by_role),
        cmocka_unit_test(test_params_decay_is_for_matrices_unless_asked),
        cmocka_unit_test(test_params_outputs_into_the_residual_start_smaller),
        cmocka_unit_test(test_params_globs_choose_the_muon_matrices),
        cmocka_unit_test(test_params_refuse_a_glob_without_match_or_of_a_vector),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
