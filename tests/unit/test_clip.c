/* Tree sums against the recursion that defines them, and the factor of clipping. */
#include "optim/clip.h"

#include "tests/unit/bits.h"

/* The definition, word for word. */
static double tree(const double *x, int64_t n) {
    int64_t half = 1;
    if (n == 1)
        return x[0];
    while (2 * half < n)
        half *= 2;
    const double left = tree(x, half), right = tree(x + half, n - half);
    return left + right;
}

static float tree_f32(const float *x, int64_t n) {
    int64_t half = 1;
    if (n == 1)
        return x[0];
    while (2 * half < n)
        half *= 2;
    const float left = tree_f32(x, half), right = tree_f32(x + half, n - half);
    return left + right;
}

static void test_tree_sum_equals_the_recursion_for_every_count(void **state) {
    (void)state;
    for (int64_t n = 1; n <= 200; n++) {
        double x[200], copy[200];
        float f[200], copy_f[200];
        for (int64_t i = 0; i < n; i++) {
            copy[i] = x[i] = ldexp(1.0 + (double)(i * 7919 % 1000) / 1000, (int)(i * 31 % 60) - 30);
            copy_f[i] = f[i] = (float)x[i];
        }
        const double sum = clip_tree_f64(x, n), want = tree(copy, n);
        const float sum_f = clip_tree_f32(f, n), want_f = tree_f32(copy_f, n);
        assert_bits_equal_f64(&sum, &want, 1, "sum");
        assert_bits_equal_f32(&sum_f, &want_f, 1, "sum f32");
    }
}

static void test_tree_sum_is_not_a_running_sum(void **state) {
    (void)state;
    double x[4] = {9007199254740992.0, 1, 1, -9007199254740992.0};
    assert_true(clip_tree_f64(x, 4) == 1.0); /* 2^53 + (1 - 2^53); from the left it would be 0 */
}

static void test_tree_sum_over_nothing_is_zero(void **state) {
    (void)state;
    assert_true(clip_tree_f64(NULL, 0) == 0.0);
    assert_true(clip_tree_f32(NULL, 0) == 0.0F);
}

static void test_factor_scales_a_large_norm(void **state) {
    (void)state;
    const ClipResult result = clip_factor(25.0, 1.0);
    assert_true(result.clipped);
    assert_true(result.norm == 5.0F);
    assert_true(result.factor == (float)(1.0 / 5.000001));
}

static void test_factor_uses_the_rounded_norm(void **state) {
    (void)state;
    const double sumsq = 2.0; /* sqrt(2) is no binary32 */
    const ClipResult result = clip_factor(sumsq, 1e-3);
    assert_true(result.norm == (float)sqrt(2.0));
    assert_true(result.factor == (float)(1e-3 / ((double)(float)sqrt(2.0) + 1e-6)));
}

static void test_a_norm_at_the_limit_is_left_alone(void **state) {
    (void)state;
    const ClipResult at = clip_factor(4.0, 2.0), below = clip_factor(1.0, 2.0), off = clip_factor(4.0, 0.0);
    assert_false(at.clipped || below.clipped || off.clipped);
    assert_true(at.factor == 1.0F && below.factor == 1.0F && off.factor == 1.0F);
    assert_true(off.norm == 2.0F);
}

static void test_non_finite_norms_are_shown(void **state) {
    (void)state;
    assert_true(isnan(clip_factor((double)NAN, 1.0).norm));
    assert_true(isinf(clip_factor((double)INFINITY, 1.0).norm));
    assert_true(isinf(clip_factor(1e300, 1.0).norm)); /* above binary32 */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tree_sum_equals_the_recursion_for_every_count),
        cmocka_unit_test(test_tree_sum_is_not_a_running_sum),
        cmocka_unit_test(test_tree_sum_over_nothing_is_zero),
        cmocka_unit_test(test_factor_scales_a_large_norm),
        cmocka_unit_test(test_factor_uses_the_rounded_norm),
        cmocka_unit_test(test_a_norm_at_the_limit_is_left_alone),
        cmocka_unit_test(test_non_finite_norms_are_shown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
