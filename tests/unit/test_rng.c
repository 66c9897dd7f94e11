/* Philox4x32-10 against the vectors that were published with it. */
#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

typedef struct PhiloxRow {
    uint32_t counter[4], key[2], out[4];
} PhiloxRow;

/* Random123, kat_vectors: philox4x32 10. */
static const PhiloxRow rows[] = {
    {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
    {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
     {0xffffffff, 0xffffffff},
     {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
    {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
     {0xa4093822, 0x299f31d0},
     {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
};

static void test_philox_gives_the_published_words(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint32_t out[4];
        philox4x32_10(rows[i].counter, rows[i].key, out);
        for (int k = 0; k < 4; k++)
            assert_int_equal(out[k], rows[i].out[k]);
    }
}

static void test_a_block_is_placed_in_the_counter_as_the_header_says(void **state) {
    (void)state;
    const uint32_t counter[4] = {0x89abcdef, 0x01234567, 42, RNG_SAMPLE};
    const uint32_t key[2] = {0xddccbbaa, 0x11223344};
    uint32_t expected[4];
    uint32_t out[4];
    philox4x32_10(counter, key, expected);
    rng_block(0x11223344ddccbbaau, RNG_SAMPLE, 42, 0x0123456789abcdefu, out);
    assert_memory_equal(out, expected, sizeof out);
}

static void test_unit_is_inside_the_open_interval_at_both_ends(void **state) {
    (void)state;
    assert_true(rng_unit(0, 0) == 0x1p-53);
    assert_true(rng_unit(UINT32_MAX, UINT32_MAX) == 1.0 - 0x1p-53);
    assert_true(rng_unit(0x80000000u, 0) == 0.5 + 0x1p-53);
    assert_true(rng_unit(0, 1u << 12) == 1.5 * 0x1p-52);
}

static void test_unit_has_the_moments_of_the_uniform_distribution(void **state) {
    (void)state;
    double sum = 0;
    double squares = 0;
    const int n = 100000;
    for (int i = 0; i < n; i++) {
        uint32_t out[4];
        rng_block(1, RNG_INIT, 3, (uint64_t)i, out);
        const double u = rng_unit(out[0], out[1]);
        sum += u;
        squares += u * u;
    }
    /* four standard deviations */
    assert_true(sum / n > 0.5 - 0.0037 && sum / n < 0.5 + 0.0037);
    assert_true(squares / n > 1.0 / 3 - 0.0038 && squares / n < 1.0 / 3 + 0.0038);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_philox_gives_the_published_words),
        cmocka_unit_test(test_a_block_is_placed_in_the_counter_as_the_header_says),
        cmocka_unit_test(test_unit_is_inside_the_open_interval_at_both_ends),
        cmocka_unit_test(test_unit_has_the_moments_of_the_uniform_distribution),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
