/* Initial weights: a pure function of (seed, parameter, element), normal, with the named spread. */
#include "tests/unit/bits.h"

#include <stdlib.h>

#include "base/rng.h"
#include "model/init.h"

#define COUNT 4096 /* elements of lm_head here */

typedef struct Fixture {
    Config config;
    ModelShape shape;
    ParamTable table;
    int head, norm, bias;
} Fixture;

static int setup(void **state) {
    static Fixture f;
    f.config = (Config){.model = {.d_model = 64,
                                  .n_layers = 2,
                                  .n_heads = 4,
                                  .n_kv_heads = 2,
                                  .head_dim = 16,
                                  .d_ff = 64,
                                  .vocab_size = 64,
                                  .max_seq_len = 8,
                                  .init_std = 0.02,
                                  .qkv_bias = true}};
    f.config.numerics.segments = 8;
    f.shape = model_shape(&f.config);
    if (params_create(&f.table, &f.shape, &f.config) != STATUS_OK)
        return -1;
    f.head = params_by_name(&f.table, "lm_head.weight");
    f.norm = params_by_name(&f.table, "model.norm.weight");
    f.bias = params_by_name(&f.table, "model.layers.0.self_attn.k_proj.bias");
    *state = &f;
    return 0;
}

static int teardown(void **state) {
    Fixture *f = *state;
    params_destroy(&f->table);
    return 0;
}

static void test_init_is_box_muller_of_the_pair(void **state) {
    const Fixture *f = *state;
    float dst[COUNT];
    init_fill(&f->table, f->head, 7, 0, COUNT, dst);
    for (int pair = 0; pair < COUNT / 2; pair++) {
        uint32_t word[4];
        rng_block(7, RNG_INIT, (uint32_t)f->head, (uint64_t)pair, word);
        const double radius = sqrt(-2.0 * log(rng_unit(word[0], word[1])));
        const double angle = 2.0 * 3.14159265358979323846 * rng_unit(word[2], word[3]);
        const float even = (float)(0.02 * radius * cos(angle)), odd = (float)(0.02 * radius * sin(angle));
        /* libm's last bit may differ from ours */
        assert_true(fabsf(dst[2 * pair] - even) <= 1e-9f);
        assert_true(fabsf(dst[2 * pair + 1] - odd) <= 1e-9f);
    }
}

static void test_init_of_any_range_is_that_of_the_whole(void **state) {
    const Fixture *f = *state;
    static const int64_t range[][2] = {{0, 0}, {0, 1},         {1, 1},           {1, 2},    {3, 6},
                                       {4, 5}, {COUNT - 1, 1}, {17, COUNT - 17}, {COUNT, 0}};
    float whole[COUNT], part[COUNT + 1];
    init_fill(&f->table, f->head, 99, 0, COUNT, whole);
    for (size_t i = 0; i < sizeof range / sizeof range[0]; i++) {
        const int64_t first = range[i][0], count = range[i][1];
        part[count] = 42.0f;
        init_fill(&f->table, f->head, 99, first, count, part);
        assert_bits_equal_f32(part, whole + first, count, "range");
        assert_true(part[count] == 42.0f);
    }
}

static void test_init_is_normal_with_the_named_spread(void **state) {
    const Fixture *f = *state;
    float x[COUNT];
    double mean = 0.0, square = 0.0, inside = 0.0, pairs = 0.0;
    init_fill(&f->table, f->head, 1234, 0, COUNT, x);
    for (int i = 0; i < COUNT; i++) {
        mean += (double)x[i] / COUNT;
        square += (double)x[i] * (double)x[i] / COUNT;
        inside += fabs((double)x[i]) < 0.02 ? 1.0 / COUNT : 0.0;
        pairs += (double)x[i] * (double)x[i ^ 1] / COUNT;
    }
    assert_true(fabs(mean) < 4.0 * 0.02 / 64.0); /* 4 sigma of the mean of 4096 */
    assert_true(fabs(sqrt(square) / 0.02 - 1.0) < 0.05);
    assert_true(fabs(inside - 0.6827) < 0.03);
    assert_true(fabs(pairs) < 0.1 * 0.02 * 0.02);
}

static void test_init_differs_by_seed_and_parameter(void **state) {
    const Fixture *f = *state;
    const int q = params_by_name(&f->table, "model.layers.0.self_attn.q_proj.weight");
    float a[64], b[64];
    init_fill(&f->table, f->head, 1, 0, 64, a);
    init_fill(&f->table, f->head, 2, 0, 64, b);
    assert_memory_not_equal(a, b, sizeof a);
    init_fill(&f->table, q, 1, 0, 64, b);
    assert_memory_not_equal(a, b, sizeof a);
}

static void test_init_of_norms_is_one_and_of_biases_zero(void **state) {
    const Fixture *f = *state;
    float x[32];
    init_fill(&f->table, f->norm, 1, 5, 32, x);
    for (int i = 0; i < 32; i++)
        assert_true(x[i] == 1.0f);
    init_fill(&f->table, f->bias, 1, 0, 32, x);
    for (int i = 0; i < 32; i++)
        assert_true(bits_of_f32(x[i]) == 0);
}

/* The first elements of a fixed seed, computed by another program: a change here changes every run. */
static void test_init_bits_are_pinned(void **state) {
    const Fixture *f = *state;
    static const uint32_t pinned[4] = {0xbc00ae4d, 0x3d8209c7, 0xbbd5c728, 0xbbd9c684};
    float x[4];
    init_fill(&f->table, f->head, 1234, 0, 4, x);
    for (int i = 0; i < 4; i++)
        assert_int_equal(bits_of_f32(x[i]), pinned[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_init_is_box_muller_of_the_pair),
        cmocka_unit_test(test_init_of_any_range_is_that_of_the_whole),
        cmocka_unit_test(test_init_is_normal_with_the_named_spread),
        cmocka_unit_test(test_init_differs_by_seed_and_parameter),
        cmocka_unit_test(test_init_of_norms_is_one_and_of_biases_zero),
        cmocka_unit_test(test_init_bits_are_pinned),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
