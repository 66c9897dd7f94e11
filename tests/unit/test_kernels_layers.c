/* Bias, embedding, RMSNorm, RoPE and SwiGLU against their definitions in scalar loops, bit for bit. */
#include "tests/unit/kernel_cases.h"

#include "kernels/exact_math.h"

/* ---- bias ------------------------------------------------------------------------------------------------------- */

static const int64_t row_shapes[][2] = {{0, 3}, {1, 1}, {3, 7}, {5, 32}, {9, 33}, {2, 0}, {300, 200}, {37, 513}};
enum { NROW_SHAPES = sizeof row_shapes / sizeof *row_shapes };

static void test_bias_is_added_to_every_row(void **state) {
    (void)state;
    for (int s = 0; s < NROW_SHAPES; s++) {
        const int64_t rows = row_shapes[s][0], cols = row_shapes[s][1];
        const BiasAdd a = {.y = cases_random(rows * cols), .b = cases_random(cols), .rows = rows, .cols = cols};
        float *expected = cases_copy(a.y, rows * cols);
        for (int64_t i = 0; i < rows * cols; i++)
            expected[i] = expected[i] + a.b[i % cols];
        CASES_RUN(BIAS_ADD, &a, CASES_OUTPUT(a.y, expected, rows * cols));
        cases_end();
    }
}

static void test_bias_gradient_is_one_chain_of_adds_per_column(void **state) {
    (void)state;
    for (int s = 0; s < NROW_SHAPES; s++) {
        const int64_t rows = row_shapes[s][0], cols = row_shapes[s][1];
        const BiasGrad a = {.db = cases_random(cols), .dy = cases_random(rows * cols), .rows = rows, .cols = cols};
        float *expected = cases_floats(cols);
        for (int64_t c = 0; c < cols; c++) {
            expected[c] = 0.0f;
            for (int64_t r = 0; r < rows; r++)
                expected[c] = expected[c] + a.dy[r * cols + c];
        }
        CASES_RUN(BIAS_GRAD, &a, CASES_OUTPUT(a.db, expected, cols));
        cases_end();
    }
}

/* ---- embedding --------------------------------------------------------------------------------------------------- */

static int32_t *random_ids(int64_t n, int64_t vocabulary) {
    int32_t *ids = cases_bytes((size_t)n * sizeof *ids);
    for (int64_t i = 0; i < n; i++)
        ids[i] = (int32_t)(cases_u32() % (uint32_t)vocabulary);
    return ids;
}

typedef struct Lookup {
    int64_t n, d, first_row, nrows, vocabulary;
} Lookup;

static const Lookup lookups[] = {{0, 4, 0, 5, 5}, {7, 3, 0, 5, 5},       {50, 33, 4, 6, 15},    {20, 16, 10, 0, 12},
                                 {1, 1, 0, 1, 1}, {400, 300, 0, 70, 70}, {300, 257, 32, 32, 64}};
enum { NLOOKUPS = sizeof lookups / sizeof *lookups };

static void test_lookup_copies_the_rows_of_its_range_and_leaves_the_others(void **state) {
    (void)state;
    for (int s = 0; s < NLOOKUPS; s++) {
        const Lookup l = lookups[s];
        const EmbeddingForward a = {.y = cases_random(l.n * l.d),
                                    .table = cases_random(l.nrows * l.d),
                                    .ids = random_ids(l.n, l.vocabulary),
                                    .n = l.n,
                                    .d = l.d,
                                    .first_row = l.first_row,
                                    .nrows = l.nrows};
        float *expected = cases_copy(a.y, l.n * l.d);
        for (int64_t i = 0; i < l.n; i++)
            for (int64_t c = 0; c < l.d; c++)
                if (a.ids[i] >= l.first_row && a.ids[i] < l.first_row + l.nrows)
                    expected[i * l.d + c] = a.table[(a.ids[i] - l.first_row) * l.d + c];
        CASES_RUN(EMBEDDING_FORWARD, &a, CASES_OUTPUT(a.y, expected, l.n * l.d));
        cases_end();
    }
}

static void check_embedding_backward(Lookup l, bool accumulate) {
    const EmbeddingBackward a = {.dtable = cases_random(l.nrows * l.d),
                                 .dy = cases_random(l.n * l.d),
                                 .ids = random_ids(l.n, l.vocabulary),
                                 .n = l.n,
                                 .d = l.d,
                                 .first_row = l.first_row,
                                 .nrows = l.nrows,
                                 .accumulate = accumulate};
    if (l.nrows > 0)
        a.dtable[0] = -0.0f; /* a row that no token carries becomes +0 by its one addition */
    float *expected = cases_floats(l.nrows * l.d);
    for (int64_t e = 0; e < l.nrows * l.d; e++) {
        float sum = 0.0f;
        for (int64_t i = 0; i < l.n; i++)
            if (a.ids[i] - l.first_row == e / l.d)
                sum = sum + a.dy[i * l.d + e % l.d];
        expected[e] = accumulate ? a.dtable[e] + sum : sum;
    }
    CASES_RUN(EMBEDDING_BACKWARD, &a, CASES_OUTPUT(a.dtable, expected, l.nrows * l.d));
    cases_end();
}

static void test_embedding_gradient_is_one_chain_of_adds_per_row(void **state) {
    (void)state;
    for (int s = 0; s < NLOOKUPS; s++) {
        check_embedding_backward(lookups[s], false);
        check_embedding_backward(lookups[s], true);
    }
}

/* ---- rmsnorm ------------------------------------------------------------------------------------------------------
 */

static const int64_t norm_shapes[][2] = {{0, 8}, {1, 1}, {3, 31}, {4, 32}, {5, 33}, {2, 100}, {200, 130}};
enum { NNORM_SHAPES = sizeof norm_shapes / sizeof *norm_shapes };

static RmsnormForward norm_create(int64_t rows, int64_t d) {
    return (RmsnormForward){.y = cases_floats(rows * d),
                            .rstd = cases_floats(rows),
                            .x = cases_random(rows * d),
                            .w = cases_random(d),
                            .rows = rows,
                            .d = d,
                            .eps = 1e-5f};
}

static void reference_norm(const RmsnormForward *a, float *y, float *rstd) {
    for (int64_t r = 0; r < a->rows; r++) {
        const float *x = a->x + r * a->d;
        rstd[r] = 1.0f / sqrtf(cases_lane_dot(x, x, a->d) / (float)a->d + a->eps);
        for (int64_t c = 0; c < a->d; c++)
            y[r * a->d + c] = (x[c] * rstd[r]) * a->w[c];
    }
}

static void test_rmsnorm_forward_is_its_definition_also_in_place(void **state) {
    (void)state;
    for (int s = 0; s < NNORM_SHAPES; s++) {
        const int64_t rows = norm_shapes[s][0], d = norm_shapes[s][1];
        RmsnormForward a = norm_create(rows, d);
        float *y = cases_floats(rows * d), *rstd = cases_floats(rows);
        reference_norm(&a, y, rstd);
        CASES_RUN(RMSNORM_FORWARD, &a, CASES_OUTPUT(a.y, y, rows * d), CASES_OUTPUT(a.rstd, rstd, rows));
        a.y = cases_copy(a.x, rows * d);
        a.x = a.y;
        CASES_RUN(RMSNORM_FORWARD, &a, CASES_OUTPUT(a.y, y, rows * d), CASES_OUTPUT(a.rstd, rstd, rows));
        cases_end();
    }
}

static void reference_norm_backward(const RmsnormBackward *a, float *dx) {
    float g[256], xh[256];
    for (int64_t r = 0; r < a->rows; r++) {
        for (int64_t c = 0; c < a->d; c++) {
            g[c] = a->dy[r * a->d + c] * a->w[c];
            xh[c] = a->x[r * a->d + c] * a->rstd[r];
        }
        const float mean = cases_lane_dot(g, xh, a->d) / (float)a->d;
        for (int64_t c = 0; c < a->d; c++) {
            const float v = a->rstd[r] * (g[c] - xh[c] * mean);
            dx[r * a->d + c] = a->residual == NULL ? v : a->residual[r * a->d + c] + v;
        }
    }
}

static void check_norm_backward(int64_t rows, int64_t d, bool residual) {
    const int64_t n = rows * d;
    const RmsnormForward f = norm_create(rows, d);
    reference_norm(&f, f.y, f.rstd);
    RmsnormBackward a = {.dx = cases_random(n),
                         .dy = cases_random(n),
                         .x = f.x,
                         .w = f.w,
                         .rstd = f.rstd,
                         .residual = residual ? cases_random(n) : NULL,
                         .rows = rows,
                         .d = d};
    float *expected = cases_floats(n);
    reference_norm_backward(&a, expected);
    CASES_RUN(RMSNORM_BACKWARD, &a, CASES_OUTPUT(a.dx, expected, n));
    const float *dy = a.dy;
    a.dx = cases_copy(dy, n);
    a.dy = a.dx;
    CASES_RUN(RMSNORM_BACKWARD, &a, CASES_OUTPUT(a.dx, expected, n));
    if (residual) {
        a.dy = dy;
        a.dx = cases_copy(a.residual, n);
        a.residual = a.dx;
        CASES_RUN(RMSNORM_BACKWARD, &a, CASES_OUTPUT(a.dx, expected, n));
    }
    cases_end();
}

static void test_rmsnorm_backward_is_its_definition_also_in_place(void **state) {
    (void)state;
    for (int s = 0; s < NNORM_SHAPES; s++) {
        check_norm_backward(norm_shapes[s][0], norm_shapes[s][1], false);
        check_norm_backward(norm_shapes[s][0], norm_shapes[s][1], true);
    }
}

static float reference_gain_run(const RmsnormGainGrad *a, int64_t run, int64_t c) {
    float sum = 0.0f;
    for (int64_t h = run * (a->heads / a->runs); h < (run + 1) * (a->heads / a->runs); h++)
        for (int64_t t = 0; t < a->tokens; t++) {
            const int64_t row = t * a->heads + h;
            sum = fmaf(a->dy[row * a->d + c], a->x[row * a->d + c] * a->rstd[row], sum);
        }
    return sum;
}

static void check_gain(int64_t tokens, int64_t heads, int64_t d, int runs) {
    const int64_t rows = tokens * heads;
    const RmsnormGainGrad a = {.dw = cases_random(d),
                               .dy = cases_random(rows * d),
                               .x = cases_random(rows * d),
                               .rstd = cases_random(rows),
                               .tokens = tokens,
                               .heads = heads,
                               .d = d,
                               .runs = runs};
    float *expected = cases_floats(d), run_sums[256];
    for (int64_t c = 0; c < d; c++) {
        for (int64_t r = 0; r < runs; r++)
            run_sums[r] = reference_gain_run(&a, r, c);
        expected[c] = cases_tree(run_sums, runs, 1);
    }
    CASES_RUN(RMSNORM_GAIN_GRAD, &a, CASES_OUTPUT(a.dw, expected, d));
    cases_end();
}

static void test_gain_gradient_is_a_tree_over_runs_of_heads(void **state) {
    (void)state;
    check_gain(5, 1, 33, 1);
    check_gain(100, 1, 600, 1);
    check_gain(7, 6, 16, 2);
    check_gain(3, 12, 64, 4);
    check_gain(200, 8, 48, 8);
    check_gain(1, 256, 4, 256);
    check_gain(0, 4, 8, 2);
}

/* ---- rope, swiglu -------------------------------------------------------------------------------------------------
 */

static void check_rope(int64_t n, int64_t heads, int64_t d, bool inverse) {
    const int64_t T = 5, stride = heads * d + 3;
    const Rope a = {.x = cases_random(n * stride),
                    .cos = cases_random(T * d / 2),
                    .sin = cases_random(T * d / 2),
                    .n = n,
                    .heads = heads,
                    .d = d,
                    .stride = stride,
                    .T = T,
                    .inverse = inverse};
    float *expected = cases_copy(a.x, n * stride);
    for (int64_t e = 0; e < n * heads * d / 2; e++) {
        const int64_t j = e % (d / 2), h = e / (d / 2) % heads, i = e / (d / 2) / heads;
        float *x = expected + i * stride + h * d + j;
        const float x0 = x[0], x1 = x[d / 2];
        const float c = a.cos[i % T * (d / 2) + j];
        const float s = inverse ? -a.sin[i % T * (d / 2) + j] : a.sin[i % T * (d / 2) + j];
        x[0] = fmaf(-x1, s, x0 * c);
        x[d / 2] = fmaf(x0, s, x1 * c);
    }
    CASES_RUN(ROPE, &a, CASES_OUTPUT(a.x, expected, n * stride));
    cases_end();
}

static void test_rope_rotates_the_halves_and_back(void **state) {
    (void)state;
    for (int inverse = 0; inverse <= 1; inverse++) {
        check_rope(0, 2, 4, inverse);
        check_rope(7, 1, 2, inverse);
        check_rope(13, 3, 18, inverse);
        check_rope(400, 2, 64, inverse);
    }
}

static const int64_t sizes[] = {0, 1, 17, 64, 5000};
enum { NSIZES = sizeof sizes / sizeof *sizes };

/* Large gates too: exp(-z) overflows to infinity and the gate closes to a zero. */
static float *random_gates(int64_t n) {
    float *z = cases_random(n);
    for (int64_t i = 0; i < n; i++)
        z[i] = i % 3 == 0 ? z[i] * 120.0f : z[i] * 4.0f;
    return z;
}

static void test_swiglu_forward_is_its_definition_also_in_place(void **state) {
    (void)state;
    for (int s = 0; s < NSIZES; s++) {
        const int64_t n = sizes[s];
        SwigluForward a = {.a = cases_random(n), .z = random_gates(n), .u = cases_random(n), .n = n};
        float *expected = cases_floats(n);
        for (int64_t i = 0; i < n; i++)
            expected[i] = (a.z[i] / (1.0f + exact_exp(-a.z[i]))) * a.u[i];
        CASES_RUN(SWIGLU_FORWARD, &a, CASES_OUTPUT(a.a, expected, n));
        a.a = cases_copy(a.z, n);
        a.z = a.a;
        CASES_RUN(SWIGLU_FORWARD, &a, CASES_OUTPUT(a.a, expected, n));
        cases_end();
    }
}

static void test_swiglu_backward_is_its_definition_also_in_place(void **state) {
    (void)state;
    for (int k = 0; k < NSIZES; k++) {
        const int64_t n = sizes[k];
        SwigluBackward a = {.dz = cases_random(n),
                            .du = cases_random(n),
                            .da = cases_random(n),
                            .z = random_gates(n),
                            .u = cases_random(n),
                            .n = n};
        float *dz = cases_floats(n), *du = cases_floats(n);
        for (int64_t i = 0; i < n; i++) {
            const float s = 1.0f / (1.0f + exact_exp(-a.z[i]));
            du[i] = a.da[i] * (a.z[i] * s);
            dz[i] = (a.da[i] * a.u[i]) * fmaf(a.z[i], s * (1.0f - s), s);
        }
        CASES_RUN(SWIGLU_BACKWARD, &a, CASES_OUTPUT(a.dz, dz, n), CASES_OUTPUT(a.du, du, n));
        a.dz = cases_copy(a.z, n);
        a.z = a.dz;
        a.du = cases_copy(a.u, n);
        a.u = a.du;
        CASES_RUN(SWIGLU_BACKWARD, &a, CASES_OUTPUT(a.dz, dz, n), CASES_OUTPUT(a.du, du, n));
        cases_end();
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bias_is_added_to_every_row),
        cmocka_unit_test(test_bias_gradient_is_one_chain_of_adds_per_column),
        cmocka_unit_test(test_lookup_copies_the_rows_of_its_range_and_leaves_the_others),
        cmocka_unit_test(test_embedding_gradient_is_one_chain_of_adds_per_row),
        cmocka_unit_test(test_rmsnorm_forward_is_its_definition_also_in_place),
        cmocka_unit_test(test_rmsnorm_backward_is_its_definition_also_in_place),
        cmocka_unit_test(test_gain_gradient_is_a_tree_over_runs_of_heads),
        cmocka_unit_test(test_rope_rotates_the_halves_and_back),
        cmocka_unit_test(test_swiglu_forward_is_its_definition_also_in_place),
        cmocka_unit_test(test_swiglu_backward_is_its_definition_also_in_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
