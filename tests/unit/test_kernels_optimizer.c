/* The optimizer's kernels against their definitions in scalar loops, bit for bit; sums in binary64 too. */
#include "tests/unit/kernel_cases.h"

static const int64_t sizes[] = {0, 1, 31, 100, 40001};
enum { NSIZES = sizeof sizes / sizeof *sizes };

/* ---- adamw, muon ---------------------------------------------------------------------------------------------------
 */

static Adamw adamw_create(int64_t n, bool clipped) {
    Adamw a = {.w = cases_random(n),
               .m = cases_random(n),
               .v = cases_random(n),
               .g = cases_random(n),
               .n = n,
               .clipped = clipped,
               .grad_factor = 0.3f,
               .b1 = 0.9f,
               .one_minus_b1 = 0.1f,
               .b2 = 0.95f,
               .one_minus_b2 = 0.05f,
               .c1 = 1.7f,
               .c2 = 3.1f,
               .lr = 0.01f,
               .lr_wd = 0.001f,
               .eps = 1e-8f};
    for (int64_t i = 0; i < n; i++)
        a.v[i] = fabsf(a.v[i]);
    return a;
}

static void check_adamw(int64_t n, bool clipped) {
    const Adamw a = adamw_create(n, clipped);
    float *w = cases_copy(a.w, n), *m = cases_copy(a.m, n), *v = cases_copy(a.v, n);
    for (int64_t i = 0; i < n; i++) {
        const float g = clipped ? a.g[i] * a.grad_factor : a.g[i];
        m[i] = fmaf(a.b1, m[i], a.one_minus_b1 * g);
        v[i] = fmaf(a.b2, v[i], a.one_minus_b2 * (g * g));
        w[i] = w[i] - a.lr_wd * w[i];
        w[i] = w[i] - (a.lr * (m[i] * a.c1)) / (sqrtf(v[i] * a.c2) + a.eps);
    }
    CASES_RUN(ADAMW, &a, CASES_OUTPUT(a.w, w, n), CASES_OUTPUT(a.m, m, n), CASES_OUTPUT(a.v, v, n));
    cases_end();
}

static void test_adamw_is_its_definition(void **state) {
    (void)state;
    for (int s = 0; s < NSIZES; s++) {
        check_adamw(sizes[s], false);
        check_adamw(sizes[s], true);
    }
}

static void check_momentum(int64_t n, bool clipped, bool nesterov) {
    MuonMomentum a = {.out = cases_random(n),
                      .momentum = cases_random(n),
                      .g = cases_random(n),
                      .n = n,
                      .clipped = clipped,
                      .nesterov = nesterov,
                      .grad_factor = 0.3f,
                      .mu = 0.95f};
    float *out = cases_floats(n), *momentum = cases_floats(n);
    for (int64_t i = 0; i < n; i++) {
        const float g = clipped ? a.g[i] * a.grad_factor : a.g[i];
        momentum[i] = fmaf(a.mu, a.momentum[i], g);
        out[i] = nesterov ? fmaf(a.mu, momentum[i], g) : momentum[i];
    }
    CASES_RUN(MUON_MOMENTUM, &a, CASES_OUTPUT(a.out, out, n), CASES_OUTPUT(a.momentum, momentum, n));
    a.out = cases_copy(a.g, n);
    a.g = a.out;
    CASES_RUN(MUON_MOMENTUM, &a, CASES_OUTPUT(a.out, out, n), CASES_OUTPUT(a.momentum, momentum, n));
    cases_end();
}

static void test_momentum_is_its_definition_also_in_place(void **state) {
    (void)state;
    for (int s = 0; s < NSIZES; s++)
        for (int flags = 0; flags < 4; flags++)
            check_momentum(sizes[s], (flags & 1) != 0, (flags & 2) != 0);
}

static void test_apply_decays_then_descends(void **state) {
    (void)state;
    for (int s = 0; s < NSIZES; s++) {
        const int64_t n = sizes[s];
        const MuonApply a = {
            .w = cases_random(n), .update = cases_random(n), .n = n, .lr_wd = s % 2 == 0 ? 0.0f : 0.01f, .lr_s = 0.02f};
        float *w = cases_copy(a.w, n);
        for (int64_t i = 0; i < n; i++) {
            w[i] = w[i] - a.lr_wd * w[i];
            w[i] = w[i] - a.lr_s * a.update[i];
        }
        CASES_RUN(MUON_APPLY, &a, CASES_OUTPUT(a.w, w, n));
        cases_end();
    }
}

/* ---- norms ----------------------------------------------------------------------------------------------------------
 */

static void check_abs_max(const float *x, int64_t n, float expected) {
    float out = -1.0f;
    const AbsMax a = {.out = &out, .x = x, .n = n};
    CASES_RUN(ABS_MAX, &a, CASES_OUTPUT(&out, &expected, 1));
}

static void test_abs_max_is_the_largest_magnitude(void **state) {
    (void)state;
    for (int s = 0; s < NSIZES; s++) {
        const int64_t n = sizes[s];
        float *x = cases_random(n);
        float largest = 0.0f;
        for (int64_t i = 0; i < n; i++)
            largest = fabsf(x[i]) > largest ? fabsf(x[i]) : largest;
        check_abs_max(x, n, largest);
        if (n > 0) {
            x[n - 1] = -INFINITY;
            check_abs_max(x, n, INFINITY);
            x[0] = -0x1p-149f;
            check_abs_max(x, 1, 0x1p-149f);
        }
        cases_end();
    }
}

static void test_abs_max_keeps_a_nan_anywhere(void **state) {
    (void)state;
    const CasesTables tables = cases_tables();
    float *x = cases_random(40001);
    x[7] = INFINITY;
    for (int64_t at = 0; at < 40001; at += 4000) {
        const float kept = x[at];
        x[at] = -NAN;
        for (int t = 0; t < tables.count; t++) {
            float out = 0.0f;
            cases_run_once(tables.table[t], 3, KERNEL_ABS_MAX, &(AbsMax){.out = &out, .x = x, .n = 40001});
            assert_true(isnan(out));
        }
        x[at] = kept;
    }
    cases_end();
}

static double lane_squares(const float *x, int64_t n) {
    double lane[32] = {0};
    for (int64_t i = 0; i < n; i++)
        lane[i % 32] = fma((double)x[i], (double)x[i], lane[i % 32]);
    for (int half = 16; half >= 1; half /= 2)
        for (int l = 0; l < half; l++)
            lane[l] = lane[l] + lane[l + half];
    return lane[0];
}

static void check_sum_squares_rows(int64_t rows, int64_t cols, int dim, int nsegments) {
    const SumSquaresRows a = {.out = cases_bytes((size_t)nsegments * sizeof(double)),
                              .x = cases_random(rows * cols),
                              .rows = rows,
                              .cols = cols,
                              .dim = dim,
                              .nsegments = nsegments};
    double *expected = cases_bytes((size_t)nsegments * sizeof(double));
    double *sum = cases_bytes((size_t)rows * sizeof(double));
    for (int64_t s = 0; s < nsegments; s++) {
        const int64_t r0 = dim == 0 ? s * rows / nsegments : 0, r1 = dim == 0 ? (s + 1) * rows / nsegments : rows;
        const int64_t c0 = dim == 1 ? s * cols / nsegments : 0, c1 = dim == 1 ? (s + 1) * cols / nsegments : cols;
        for (int64_t r = r0; r < r1; r++)
            sum[r - r0] = lane_squares(a.x + r * cols + c0, c1 - c0);
        expected[s] = cases_tree64(sum, r1 - r0);
    }
    CASES_RUN(SUM_SQUARES_ROWS, &a, CASES_OUTPUT(a.out, expected, nsegments));
    cases_end();
}

static void test_row_sums_of_squares_form_a_tree_in_each_segment(void **state) {
    (void)state;
    for (int dim = 0; dim <= 1; dim++) {
        check_sum_squares_rows(7, 33, dim, 1);
        check_sum_squares_rows(16, 64, dim, 8);
        check_sum_squares_rows(200, 264, dim, 4);
        check_sum_squares_rows(11, 35, dim, 4);
        check_sum_squares_rows(0, 8, dim, 2);
        check_sum_squares_rows(8, 0, dim, 2);
        check_sum_squares_rows(1, 1, dim, 1);
    }
}

static void test_block_sums_of_squares_leave_the_padding_out(void **state) {
    (void)state;
    const int64_t nblocks = 41;
    int32_t *size = cases_bytes((size_t)nblocks * sizeof *size);
    double *expected = cases_bytes((size_t)nblocks * sizeof *expected);
    const SumSquaresBlocks a = {.out = cases_bytes((size_t)nblocks * sizeof(double)),
                                .x = cases_random(nblocks * 1024),
                                .size = size,
                                .nblocks = nblocks};
    for (int64_t b = 0; b < nblocks; b++) {
        size[b] = b % 3 == 0 ? 1024 : (int32_t)(b * 25 % 1024);
        expected[b] = lane_squares(a.x + 1024 * b, size[b]);
    }
    CASES_RUN(SUM_SQUARES_BLOCKS, &a, CASES_OUTPUT(a.out, expected, nblocks));
    cases_end();
}

/* ---- newton-schulz
 * --------------------------------------------------------------------------------------------------- */

static void check_scale_pow2(int64_t n, int exponent) {
    NsScalePow2 a = {.y = cases_random(n), .x = cases_random(n), .n = n};
    float *x = cases_copy(a.x, n), *expected = cases_floats(n);
    float largest = 0.0f;
    for (int64_t i = 0; i < n; i++) {
        x[i] = ldexpf(x[i], exponent - (i % 4 == 1 ? (int)(cases_u32() % 160) : 0));
        largest = fabsf(x[i]) > largest ? fabsf(x[i]) : largest;
    }
    for (int64_t i = 0; i < n; i++)
        expected[i] = largest == 0.0f ? 0.0f : (float)ldexp((double)x[i], -ilogb((double)largest));
    a.x = x;
    a.abs_max = &largest;
    CASES_RUN(NS_SCALE_POW2, &a, CASES_OUTPUT(a.y, expected, n));
    a.y = x;
    CASES_RUN(NS_SCALE_POW2, &a, CASES_OUTPUT(a.y, expected, n));
    cases_end();
}

static void test_scaling_by_a_power_of_two_rounds_once(void **state) {
    (void)state;
    const int exponents[] = {0, 3, -20, 100, 127, 128, -100, -126, -127, -140, -148, -200};
    for (size_t e = 0; e < sizeof exponents / sizeof *exponents; e++)
        for (int s = 0; s < NSIZES; s++)
            check_scale_pow2(sizes[s], exponents[e]);
}

static void check_normalize(int64_t n, const double *sumsq, int nsegments) {
    NsNormalize a = {.y = cases_random(n), .x = cases_random(n), .sumsq = sumsq, .n = n, .nsegments = nsegments};
    const float norm = (float)sqrt(cases_tree64(sumsq, nsegments));
    float *expected = cases_floats(n);
    for (int64_t i = 0; i < n; i++)
        expected[i] = norm == 0.0f ? 0.0f : a.x[i] / norm;
    CASES_RUN(NS_NORMALIZE, &a, CASES_OUTPUT(a.y, expected, n));
    a.y = cases_copy(a.x, n);
    a.x = a.y;
    CASES_RUN(NS_NORMALIZE, &a, CASES_OUTPUT(a.y, expected, n));
    cases_end();
}

static void test_normalize_divides_each_element_by_the_norm(void **state) {
    (void)state;
    const double sumsq[] = {0x1.3p10, 0x1.77p-40, 3.1, 1e-9, 7.0, 0x1.fffffffffffffp3, 0.1, 2e5};
    const double nothing[] = {0.0, 0.0};
    for (int s = 0; s < NSIZES; s++) {
        check_normalize(sizes[s], sumsq, 1);
        check_normalize(sizes[s], sumsq, 8);
        check_normalize(sizes[s], nothing, 2);
    }
}

static void check_combine(int64_t n, bool scale_y) {
    NsCombine a = {.out = cases_random(n),
                   .x = cases_random(n),
                   .y = cases_random(n),
                   .n = n,
                   .scale_y = scale_y,
                   .c = -0.7f,
                   .b = 1.3f};
    float *expected = cases_floats(n);
    for (int64_t i = 0; i < n; i++)
        expected[i] = scale_y ? fmaf(a.c, a.x[i], a.b * a.y[i]) : fmaf(a.c, a.x[i], a.y[i]);
    CASES_RUN(NS_COMBINE, &a, CASES_OUTPUT(a.out, expected, n));
    const float *y = a.y;
    a.out = cases_copy(y, n);
    a.y = a.out;
    CASES_RUN(NS_COMBINE, &a, CASES_OUTPUT(a.out, expected, n));
    a.y = y;
    a.out = cases_copy(a.x, n);
    a.x = a.out;
    CASES_RUN(NS_COMBINE, &a, CASES_OUTPUT(a.out, expected, n));
    cases_end();
}

static void test_combine_is_its_definition_also_in_place(void **state) {
    (void)state;
    for (int s = 0; s < NSIZES; s++) {
        check_combine(sizes[s], false);
        check_combine(sizes[s], true);
    }
}

static void test_add_diagonal_adds_on_the_diagonal_only(void **state) {
    (void)state;
    const int64_t orders[] = {0, 1, 2, 33, 200};
    for (size_t k = 0; k < sizeof orders / sizeof *orders; k++) {
        const int64_t m = orders[k];
        AddDiagonal a = {.out = cases_random(m * m), .x = cases_random(m * m), .m = m, .a = 0.3f};
        float *expected = cases_copy(a.x, m * m);
        for (int64_t i = 0; i < m; i++)
            expected[i * m + i] = expected[i * m + i] + 0.3f;
        CASES_RUN(ADD_DIAGONAL, &a, CASES_OUTPUT(a.out, expected, m * m));
        a.out = cases_copy(a.x, m * m);
        a.x = a.out;
        CASES_RUN(ADD_DIAGONAL, &a, CASES_OUTPUT(a.out, expected, m * m));
        cases_end();
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_adamw_is_its_definition),
        cmocka_unit_test(test_momentum_is_its_definition_also_in_place),
        cmocka_unit_test(test_apply_decays_then_descends),
        cmocka_unit_test(test_abs_max_is_the_largest_magnitude),
        cmocka_unit_test(test_abs_max_keeps_a_nan_anywhere),
        cmocka_unit_test(test_row_sums_of_squares_form_a_tree_in_each_segment),
        cmocka_unit_test(test_block_sums_of_squares_leave_the_padding_out),
        cmocka_unit_test(test_scaling_by_a_power_of_two_rounds_once),
        cmocka_unit_test(test_normalize_divides_each_element_by_the_norm),
        cmocka_unit_test(test_combine_is_its_definition_also_in_place),
        cmocka_unit_test(test_add_diagonal_adds_on_the_diagonal_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
