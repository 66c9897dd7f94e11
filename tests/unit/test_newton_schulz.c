/* Newton-Schulz against the reference's binary64 outputs, the polar factor, and its own invariants. */
#include "optim/newton_schulz.h"

#include "tests/unit/bits.h"

#include "tests/fixtures/newton_schulz.h"
#include "tests/unit/golden.h"

#define GOLDEN "tests/golden/upstream_ns_golden.json"
enum { SIDE = 64, AREA = SIDE * SIDE };

static JsonValue *golden;
static Device *device;
static Stream *stream;

/* ---- a scalar binary64 Newton-Schulz, in the order of README, "Update" ---- */

/* c [m,n] = a [m,k] times b [k,n], or its transpose stored [n,k]. */
static void matmul(double *c, const double *a, const double *b, bool trans_b, const int64_t mnk[3]) {
    const int64_t m = mnk[0], n = mnk[1], k = mnk[2];
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0;
            for (int64_t x = 0; x < k; x++)
                sum += a[i * k + x] * (trans_b ? b[j * k + x] : b[x * n + j]);
            c[i * n + j] = sum;
        }
}

static void add_scaled(double *out, double a, const double *x, const double *y, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        out[i] = a * x[i] + y[i];
}

static void scalar_gram(const NsPlan *plan, double *x) {
    static double r[AREA], z[AREA], q[AREA], p[AREA], y[AREA];
    const int64_t m = plan->m, n = plan->n, square[3] = {m, m, m}, gram[3] = {m, m, n}, full[3] = {m, n, m};
    for (int i = 0; i < plan->steps; i++) {
        const double *coef = plan->coef[i];
        const bool fresh = i == 0 || plan->restart[i];
        if (i > 0 && fresh) {
            matmul(y, q, x, false, full);
            memcpy(x, y, (size_t)(m * n) * sizeof *x);
        }
        if (fresh)
            matmul(r, x, x, true, gram);
        matmul(p, r, r, false, square);
        for (int64_t e = 0; e < m * m; e++)
            z[e] = coef[1] * r[e] + coef[2] * p[e];
        if (fresh) {
            for (int64_t e = 0; e < m * m; e++)
                q[e] = z[e] + (e % (m + 1) == 0 ? coef[0] : 0);
        } else {
            matmul(p, q, z, false, square);
            add_scaled(q, coef[0], q, p, m * m);
        }
        matmul(p, r, z, false, square);
        add_scaled(p, coef[0], r, p, m * m);
        matmul(r, z, p, false, square);
        add_scaled(r, coef[0], p, r, m * m);
    }
    matmul(y, q, x, false, full);
    memcpy(x, y, (size_t)(m * n) * sizeof *x);
}

static void scalar_direct(const NsPlan *plan, double *x) {
    static double a[AREA], b[AREA], y[AREA];
    const int64_t m = plan->m, n = plan->n, square[3] = {m, m, m}, gram[3] = {m, m, n}, full[3] = {m, n, m};
    for (int i = 0; i < plan->steps; i++) {
        const double *coef = plan->coef[i];
        matmul(a, x, x, true, gram);
        matmul(b, a, a, false, square);
        for (int64_t e = 0; e < m * m; e++)
            b[e] = coef[1] * a[e] + coef[2] * b[e];
        matmul(y, b, x, false, full);
        add_scaled(x, coef[0], x, y, m * n);
    }
}

/* x [out, in] in place; epsilon is added to the norm. */
static void scalar_ns(const NsPlan *plan, double *x, double epsilon) {
    static double oriented[AREA];
    double sum = 0;
    for (int64_t e = 0; e < plan->m * plan->n; e++)
        sum += x[e] * x[e];
    for (int64_t i = 0; i < plan->out; i++)
        for (int64_t j = 0; j < plan->in; j++)
            oriented[plan->transposed ? j * plan->n + i : i * plan->n + j] =
                x[i * plan->in + j] / (sqrt(sum) + epsilon);
    if (plan->gram)
        scalar_gram(plan, oriented);
    else
        scalar_direct(plan, oriented);
    for (int64_t i = 0; i < plan->out; i++)
        for (int64_t j = 0; j < plan->in; j++)
            x[i * plan->in + j] = oriented[plan->transposed ? j * plan->n + i : i * plan->n + j];
}

/* ---- helpers ---- */

static NsPlan plan_of(NsAlgorithm algorithm, int64_t out, int64_t in) {
    const NsConfig config = ns_default_config(algorithm);
    return ns_plan(&config, out, in, -1, 1);
}

static void run(const NsPlan *plan, const float *x, float *out) {
    assert_true(ns_run_on_copy(plan, stream, x, out));
}

/* Well conditioned: a wave plus a multiple of the rectangular identity. */
static void fill(float *x, int64_t out, int64_t in) {
    for (int64_t i = 0; i < out; i++)
        for (int64_t j = 0; j < in; j++)
            x[i * in + j] = (float)(ns_input(i, j, 0) + (i == j ? 3.0 : 0.0));
}

static const int64_t shapes[][2] = {{4, 6}, {6, 4},   {8, 8},   {1, 1},   {1, 9},
                                    {9, 1}, {16, 64}, {64, 16}, {33, 47}, {64, 64}};
enum { NSHAPES = sizeof shapes / sizeof *shapes };

/* ---- tests ---- */

static double golden_number(const JsonValue *value) {
    double number = 0;
    assert_true(json_as_double(value, &number));
    return number;
}

static void check_coefficients(const char *name, NsCoefficients coefficients) {
    const JsonValue *want = json_get(json_get(golden, "coefficients"), name);
    const NsConfig config = {.coefficients = coefficients};
    assert_int_equal(json_count(want), 5);
    for (int i = 0; i < 8; i++) {
        double abc[3];
        ns_coefficients(&config, i, abc);
        for (int c = 0; c < 3; c++)
            assert_true(abc[c] == golden_number(json_at(json_at(want, i < 5 ? i : 4), c)));
    }
}

static void test_coefficients_are_those_of_the_papers(void **state) {
    (void)state;
    check_coefficients("polar_express_scaled", NS_POLAR_EXPRESS);
    check_coefficients("you", NS_YOU);
    const NsConfig jordan = {.coefficients = NS_JORDAN};
    const NsConfig list = {.coefficients = NS_LIST, .list = {{1, 2, 3}, {4, 5, 6}}, .list_count = 2};
    for (int i = 0; i < 5; i++) {
        double abc[3];
        ns_coefficients(&jordan, i, abc);
        assert_true(abc[0] == 3.4445 && abc[1] == -4.7750 && abc[2] == 2.0315);
        ns_coefficients(&list, i, abc);
        assert_true(abc[0] == (i == 0 ? 1 : 4) && abc[2] == (i == 0 ? 3 : 6));
    }
}

/* The Gram form without a restart is badly conditioned: rounding in another order already moves its result by 5e-12. */
static void check_golden(const JsonValue *shape, const char *kind, const NsConfig *config, double tol) {
    const JsonValue *want = json_get(shape, kind);
    static double x[AREA];
    assert_non_null(want);
    const int64_t out = json_count(want), in = json_count(json_at(want, 0));
    const NsPlan plan = ns_plan(config, out, in, -1, 1);
    for (int64_t e = 0; e < out * in; e++)
        x[e] = ns_input(e / in, e % in, 0);
    scalar_ns(&plan, x, 1e-7);
    for (int64_t e = 0; e < out * in; e++) {
        const double value = golden_number(json_at(json_at(want, (int)(e / in)), (int)(e % in)));
        if (!(fabs(x[e] - value) <= tol))
            fail_msg("%s %s [%d]: %.17g, golden %.17g", json_key(shape), kind, (int)e, x[e], value);
    }
}

static void test_scalar_reference_equals_the_golden_outputs(void **state) {
    (void)state;
    const JsonValue *cases = json_get(golden, "cases");
    assert_int_equal(json_count(cases), 5);
    for (int i = 0; i < json_count(cases); i++) {
        NsConfig config = ns_default_config(NS_GRAM);
        check_golden(json_at(cases, i), "gram_fp64", &config, 1e-12);
        config.coefficients = NS_YOU;
        check_golden(json_at(cases, i), "gram_you_fp64", &config, 1e-12);
        config = ns_default_config(NS_DIRECT);
        check_golden(json_at(cases, i), "direct_fp64", &config, 1e-12);
        config = ns_default_config(NS_GRAM);
        config.restart_count = 0;
        check_golden(json_at(cases, i), "gram_fp64_norestart", &config, 2e-11);
    }
}

static void check_against_scalar(const NsPlan *plan, double tol) {
    static double want[AREA];
    static float x[AREA], result[AREA], rounded[AREA];
    const int64_t n = plan->out * plan->in;
    fill(x, plan->out, plan->in);
    for (int64_t e = 0; e < n; e++)
        want[e] = (double)x[e];
    scalar_ns(plan, want, 0);
    for (int64_t e = 0; e < n; e++)
        rounded[e] = (float)want[e];
    run(plan, x, result);
    assert_near_norm(result, rounded, n, tol, plan->gram ? "gram" : "direct");
}

static void test_float32_stays_close_to_binary64(void **state) {
    (void)state;
    for (int i = 0; i < NSHAPES; i++) {
        const NsPlan gram = plan_of(NS_GRAM, shapes[i][0], shapes[i][1]);
        const NsPlan direct = plan_of(NS_DIRECT, shapes[i][0], shapes[i][1]);
        check_against_scalar(&gram, 2e-5);
        check_against_scalar(&direct, 4e-6);
    }
}

static void test_restarts_and_coefficients_of_every_kind(void **state) {
    (void)state;
    for (int kind = 0; kind < 6; kind++) {
        NsConfig config = ns_default_config(NS_GRAM);
        const int restarts[6][3] = {{1, 2, 3}, {2, 4, 0}, {1, 0, 0}, {3, 4, 0}, {0, 9, 2}, {1, 2, 4}};
        const int counts[6] = {3, 2, 1, 2, 3, 3};
        config.restart_count = counts[kind];
        config.coefficients = kind % 3 == 0 ? NS_POLAR_EXPRESS : kind % 3 == 1 ? NS_YOU : NS_JORDAN;
        for (int i = 0; i < 3; i++)
            config.restarts[i] = restarts[kind][i];
        const NsPlan wide = ns_plan(&config, 12, 40, -1, 1), tall = ns_plan(&config, 40, 12, -1, 1);
        check_against_scalar(&wide, 5e-5);
        check_against_scalar(&tall, 5e-5);
    }
}

/* Eigenvalues of the symmetric s [m,m] by Jacobi rotations, on its diagonal. */
static void jacobi(double *s, int64_t m) {
    for (int sweep = 0; sweep < 30; sweep++)
        for (int64_t p = 0; p < m; p++)
            for (int64_t q = p + 1; q < m; q++) {
                const double theta = 0.5 * atan2(2 * s[p * m + q], s[p * m + p] - s[q * m + q]);
                const double c = cos(theta), d = sin(theta);
                for (int64_t k = 0; k < m; k++) {
                    const double x = s[k * m + p], y = s[k * m + q];
                    s[k * m + p] = c * x + d * y;
                    s[k * m + q] = c * y - d * x;
                }
                for (int64_t k = 0; k < m; k++) {
                    const double x = s[p * m + k], y = s[q * m + k];
                    s[p * m + k] = c * x + d * y;
                    s[q * m + k] = c * y - d * x;
                }
            }
}

/* s [rows,rows] = a b^T, both [rows,cols] f32. */
static void outer(double *s, const float *a, const float *b, int64_t rows, int64_t cols) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < rows; j++) {
            s[i * rows + j] = 0;
            for (int64_t k = 0; k < cols; k++)
                s[i * rows + j] += (double)a[i * cols + k] * (double)b[j * cols + k];
        }
}

/* The five polynomials of the plan, applied to one singular value. */
static double polynomial(const NsPlan *plan, double x) {
    for (int i = 0; i < plan->steps; i++)
        x = plan->coef[i][0] * x + plan->coef[i][1] * x * x * x + plan->coef[i][2] * x * x * x * x * x;
    return x;
}

static int compare_doubles(const void *left, const void *right) {
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* Singular values of x [rows, cols], ascending, divided by the Frobenius norm when `normalised`. */
static void singular_values(double *out, const float *x, int64_t rows, int64_t cols, bool normalised) {
    static double s[AREA];
    double sum = 0;
    outer(s, x, x, rows, cols);
    for (int64_t i = 0; i < rows; i++)
        sum += s[i * (rows + 1)];
    jacobi(s, rows);
    for (int64_t i = 0; i < rows; i++)
        out[i] = sqrt(s[i * (rows + 1)] / (normalised ? sum : 1.0));
    qsort(out, (size_t)rows, sizeof *out, compare_doubles);
}

/* The result O has the singular vectors of the input G, so OG^T is symmetric with positive eigenvalues; its singular
 * values are the polynomial's, which after five steps of Polar Express lie in [0.84, 1.13] for all from 0.002 to 1. */
static void check_polar(NsAlgorithm algorithm) {
    static float x[AREA], o[AREA];
    static double t[AREA];
    double before[SIDE], after[SIDE];
    const int64_t m = 24, n = 64;
    const NsPlan plan = plan_of(algorithm, m, n);
    fill(x, m, n);
    run(&plan, x, o);
    singular_values(before, x, m, n, true);
    singular_values(after, o, m, n, false);
    assert_true(before[0] >= 0.002);
    for (int64_t i = 0; i < m; i++)
        before[i] = polynomial(&plan, before[i]);
    qsort(before, (size_t)m, sizeof *before, compare_doubles);
    for (int64_t i = 0; i < m; i++)
        if (!(fabs(after[i] - before[i]) <= 1e-5 && after[i] >= 0.84 && after[i] <= 1.13))
            fail_msg("singular value %g, the polynomial says %g", after[i], before[i]);
    outer(t, o, x, m, n);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < i; j++) {
            assert_true(fabs(t[i * m + j] - t[j * m + i]) <= 1e-4);
            t[i * m + j] = t[j * m + i];
        }
    jacobi(t, m);
    for (int64_t i = 0; i < m; i++)
        assert_true(t[i * (m + 1)] > 0);
}

static void test_result_approximates_the_polar_factor(void **state) {
    (void)state;
    check_polar(NS_GRAM);
    check_polar(NS_DIRECT);
}

static void test_operations_are_counted(void **state) {
    (void)state;
    const double m = 48, n = 96;
    const NsPlan gram = plan_of(NS_GRAM, 96, 48), direct = plan_of(NS_DIRECT, 48, 96);
    assert_true(ns_flops(&gram) == 6 * m * m * n + 17 * m * m * m);
    assert_true(ns_flops(&direct) == 15 * m * m * n + 5 * m * m * m);
    NsConfig config = ns_default_config(NS_GRAM);
    config.restart_count = 0;
    const NsPlan without = ns_plan(&config, 48, 96, -1, 1);
    assert_true(ns_flops(&without) == 3 * m * m * n + (5 + 4 * 2 + 4 * 2) * m * m * m);
}

static void test_auto_takes_the_cheaper_variant(void **state) {
    (void)state;
    assert_false(plan_of(NS_AUTO, 64, 64).gram);
    assert_false(plan_of(NS_AUTO, 63, 84).gram); /* 3 : 4, the same count */
    assert_true(plan_of(NS_AUTO, 63, 85).gram);
    assert_true(plan_of(NS_AUTO, 85, 63).gram);
    assert_true(plan_of(NS_AUTO, 4096, 11008).gram);
}

static void test_plan_orients_and_segments_by_shape(void **state) {
    (void)state;
    const NsConfig config = ns_default_config(NS_AUTO);
    const struct {
        int64_t out, in;
        int tp_dim;
        bool transposed, segmented;
    } cases[] = {{8, 16, 0, false, false},  {8, 16, 1, false, true}, {16, 8, 0, true, true},
                 {16, 8, 1, true, false},   {8, 8, 0, false, false}, {8, 8, 1, false, true},
                 {8, 16, -1, false, false}, {16, 8, -1, true, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const NsPlan plan = ns_plan(&config, cases[i].out, cases[i].in, cases[i].tp_dim, 8);
        assert_int_equal(plan.transposed, cases[i].transposed);
        assert_int_equal(plan.gram_segmented, cases[i].segmented);
        assert_true(plan.m <= plan.n);
    }
}

static int open_all(void **state) {
    (void)state;
    stream = ns_stream(&device, 1);
    return golden_open(GOLDEN, &golden);
}

static int close_all(void **state) {
    (void)state;
    json_free(golden);
    device_destroy(device);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_coefficients_are_those_of_the_papers),
        cmocka_unit_test(test_scalar_reference_equals_the_golden_outputs),
        cmocka_unit_test(test_float32_stays_close_to_binary64),
        cmocka_unit_test(test_restarts_and_coefficients_of_every_kind),
        cmocka_unit_test(test_result_approximates_the_polar_factor),
        cmocka_unit_test(test_operations_are_counted),
        cmocka_unit_test(test_auto_takes_the_cheaper_variant),
        cmocka_unit_test(test_plan_orients_and_segments_by_shape),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
