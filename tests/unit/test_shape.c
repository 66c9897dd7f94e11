/* Sizes that follow from a configuration, and the count of operations. */
#include "tests/unit/bits.h"

#include "model/leaf.h"
#include "model/shape.h"

static Config tiny_config(void) {
    Config config = {0};
    config.model = (ModelConfig){.family = "llama",
                                 .d_model = 64,
                                 .n_layers = 2,
                                 .n_heads = 8,
                                 .n_kv_heads = 4,
                                 .head_dim = 8,
                                 .d_ff = 176,
                                 .vocab_size = 256,
                                 .max_seq_len = 128,
                                 .rope_theta = 10000.0,
                                 .norm_eps = 1e-5,
                                 .init_std = 0.02};
    config.numerics.segments = 8;
    return config;
}

static void test_shape_copies_the_dimensions(void **state) {
    (void)state;
    Config config = tiny_config();
    config.model.tie_embeddings = true;
    config.model.qk_norm = true;
    const ModelShape s = model_shape(&config);
    assert_int_equal(s.C, 64);
    assert_int_equal(s.L, 2);
    assert_int_equal(s.H, 8);
    assert_int_equal(s.K, 4);
    assert_int_equal(s.D, 8);
    assert_int_equal(s.F, 176);
    assert_int_equal(s.vocab, 256);
    assert_int_equal(s.V, 256);
    assert_int_equal(s.max_T, 128);
    assert_true(s.tied && s.qk_norm && !s.qkv_bias);
    assert_true(s.rope_theta == 10000.0 && s.init_std == 0.02 && s.eps == (float)1e-5);
    assert_int_equal(s.segments, 8);
}

static void test_shape_pads_the_vocabulary_to_the_lowered_segments(void **state) {
    (void)state;
    Config config = tiny_config();
    config.model.vocab_size = 61;
    assert_int_equal(model_shape(&config).V, 64);
    config.model.d_ff = 172; /* 4 * 43 */
    assert_int_equal(model_shape(&config).segments, 4);
    assert_int_equal(model_shape(&config).V, 64);
    config.model.vocab_size = 57;
    assert_int_equal(model_shape(&config).V, 60);
    config.numerics.segments = 1;
    assert_int_equal(model_shape(&config).V, 57);
}

static void test_shape_runs_are_the_power_of_two_in_the_kv_heads(void **state) {
    (void)state;
    static const int64_t heads[][2] = {{1, 1}, {2, 2}, {3, 1}, {6, 2}, {8, 8}, {12, 4}};
    Config config = tiny_config();
    for (int i = 0; i < 6; i++) {
        config.model.n_kv_heads = heads[i][0];
        assert_int_equal(model_shape(&config).kv_runs, heads[i][1]);
    }
}

/* Counted out by hand for llama-tiny: products with 64x64 q, 32x64 k and v, 64x64 o, 176x64 gate, up, down in 2 layers,
 * and 256x64. */
static void test_shape_flops_count_every_product(void **state) {
    (void)state;
    Config config = tiny_config();
    const ModelShape s = model_shape(&config);
    const double matrices = 2.0 * (64 * 64 + 2 * 32 * 64 + 64 * 64 + 3 * 176 * 64) + 256 * 64;
    double pairs = 0.0; /* of a query and a key it sees, in one sequence of 16 */
    for (int i = 0; i < 16; i++)
        pairs += i + 1;
    const double forward =
        2.0 * matrices * 32 + 2 /* sequences */ * 2 /* layers */ * 8 /* heads */ * pairs * (2 * 8 + 2 * 8);
    assert_true(model_forward_flops(&s, 32, 16) == forward);
    assert_true(model_flops(&s, 32, 16) == 3.0 * forward);
}

static void test_local_shape_of_one_rank_is_the_whole(void **state) {
    (void)state;
    Config config = tiny_config();
    config.model.vocab_size = 61;
    const ModelShape s = model_shape(&config);
    const LocalShape l = local_shape(&s, 1, 0);
    assert_int_equal(l.H, s.H);
    assert_int_equal(l.K, s.K);
    assert_int_equal(l.F, s.F);
    assert_int_equal(l.V, s.V);
    assert_int_equal(l.vocab, s.vocab);
    assert_int_equal(l.first_id, 0);
    assert_int_equal(l.segments, s.segments);
    assert_int_equal(l.kv_runs, s.kv_runs);
}

static void test_local_shapes_of_all_ranks_add_up(void **state) {
    (void)state;
    Config config = tiny_config();
    config.model.vocab_size = 45; /* padded to 48: of four ranks the last has 9 real rows of 12 */
    const ModelShape s = model_shape(&config);
    int64_t vocab = 0;
    for (int rank = 0; rank < 4; rank++) {
        const LocalShape l = local_shape(&s, 4, rank);
        assert_int_equal(l.H * 4, s.H);
        assert_int_equal(l.K * 4, s.K);
        assert_int_equal(l.F * 4, s.F);
        assert_int_equal(l.V * 4, s.V);
        assert_int_equal(l.segments * 4, s.segments);
        assert_int_equal(l.kv_runs * 4, s.kv_runs);
        assert_int_equal(l.first_id, rank * 12);
        vocab += l.vocab;
    }
    assert_int_equal(local_shape(&s, 4, 3).vocab, 9);
    assert_int_equal(vocab, 45);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shape_copies_the_dimensions),
        cmocka_unit_test(test_shape_pads_the_vocabulary_to_the_lowered_segments),
        cmocka_unit_test(test_shape_runs_are_the_power_of_two_in_the_kv_heads),
        cmocka_unit_test(test_shape_flops_count_every_product),
        cmocka_unit_test(test_local_shape_of_one_rank_is_the_whole),
        cmocka_unit_test(test_local_shapes_of_all_ranks_add_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
