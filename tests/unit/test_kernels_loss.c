/* Cross-entropy over whole and split vocabularies, and the mean over rows, against their definitions, bit for bit. */
#include "tests/unit/kernel_cases.h"

#include "kernels/exact_math.h"

/* first_col.. as one rank of a split vocabulary sees it; targets fall inside and outside of it. */
typedef struct Shape {
    int64_t n, ld, cols, first_col, vocabulary;
    int64_t segment;
    int nsegments;
} Shape;

static const Shape shapes[] = {
    {0, 8, 8, 0, 8, 1, 8},       {3, 8, 8, 0, 8, 1, 8},         {5, 40, 37, 0, 37, 5, 8},
    {4, 64, 64, 64, 200, 32, 2}, {6, 100, 70, 30, 140, 50, 2},  {3, 32, 0, 96, 96, 16, 2},
    {2, 33, 33, 0, 33, 33, 1},   {70, 520, 515, 0, 515, 65, 8}, {9, 256, 131, 0, 131, 64, 4},
};
enum { NSHAPES = sizeof shapes / sizeof *shapes };

typedef struct Problem {
    Shape shape;
    float *z, *max, *sum, *z_t;
    int32_t *target;
} Problem;

static void reference_sum(const Problem *p, float *sum) {
    const Shape s = p->shape;
    float e[1024], parts[64];
    for (int64_t i = 0; i < s.n; i++) {
        for (int64_t c = 0; c < s.cols; c++)
            e[c] = exact_exp(p->z[i * s.ld + c] - p->max[i]);
        for (int g = 0; g < s.nsegments; g++) {
            const int64_t first = g * s.segment;
            const int64_t end = first + s.segment < s.cols ? first + s.segment : s.cols;
            parts[g] = end > first ? cases_lane_sum(e + first, end - first) : 0.0f;
        }
        sum[i] = cases_tree(parts, s.nsegments, 1);
    }
}

static bool has_target(const Problem *p, int64_t i) {
    const int64_t column = p->target[i] - p->shape.first_col;
    return column >= 0 && column < p->shape.cols;
}

static void reference_max(const Problem *p, float *max, float *z_t) {
    const Shape s = p->shape;
    for (int64_t i = 0; i < s.n; i++) {
        float m = -INFINITY;
        for (int64_t c = 0; c < s.cols; c++)
            m = p->z[i * s.ld + c] > m ? p->z[i * s.ld + c] : m;
        max[i] = m == 0.0f ? 0.0f : m;
        if (has_target(p, i))
            z_t[i] = p->z[i * s.ld + p->target[i] - s.first_col];
    }
}

static Problem problem_create(Shape s) {
    Problem p = {.shape = s,
                 .z = cases_random(s.n * s.ld),
                 .max = cases_random(s.n),
                 .sum = cases_random(s.n),
                 .z_t = cases_random(s.n),
                 .target = cases_bytes((size_t)s.n * sizeof *p.target)};
    for (int64_t i = 0; i < s.n; i++) {
        p.target[i] = (int32_t)(cases_u32() % (uint32_t)s.vocabulary);
        for (int64_t c = 0; c < s.ld; c++)
            p.z[i * s.ld + c] *= c < s.cols ? 20.0f : 1e30f; /* padding above any maximum */
        for (int64_t c = 0; i % 3 == 1 && c < s.cols; c++)
            p.z[i * s.ld + c] = p.z[i * s.ld + c] * 5.0f - 100.0f; /* down to where the exponential is subnormal or 0 */
    }
    return p;
}

static void test_maximum_over_the_real_columns_and_the_target_of_its_owner(void **state) {
    (void)state;
    for (int k = 0; k < NSHAPES; k++) {
        const Shape s = shapes[k];
        const Problem p = problem_create(s);
        float *max = cases_floats(s.n), *z_t = cases_copy(p.z_t, s.n);
        reference_max(&p, max, z_t);
        const LossMax a = {.max = p.max,
                           .z_t = p.z_t,
                           .z = p.z,
                           .target = p.target,
                           .n = s.n,
                           .ld = s.ld,
                           .cols = s.cols,
                           .first_col = s.first_col};
        CASES_RUN(LOSS_MAX, &a, CASES_OUTPUT(a.max, max, s.n), CASES_OUTPUT(a.z_t, z_t, s.n));
        cases_end();
    }
}

/* Parts as the ranks of a cut vocabulary gather them, [ranks][max of each row | target's logit of each row]: a row's
 * maximum is that over the ranks, its target's logit that of the rank whose columns hold the target, whatever stands
 * with the others. */
static void check_select(int64_t n, int ranks, int64_t rank_cols) {
    float *parts = cases_random(2 * n * ranks), *max = cases_floats(n), *z_t = cases_floats(n);
    int32_t *target = cases_bytes((size_t)n * sizeof *target);
    for (int64_t i = 0; i < n; i++) {
        target[i] = (int32_t)(cases_u32() % (uint32_t)(rank_cols * ranks));
        if (i % 4 == 2) /* a rank with padding only */
            parts[2 * (ranks - 1) * n + i] = ranks > 1 ? -INFINITY : -1.0f;
        max[i] = -INFINITY;
        for (int r = 0; r < ranks; r++) {
            float *of_rank = parts + 2 * r * n;
            of_rank[i] = of_rank[i] == 0.0f ? 0.0f : of_rank[i]; /* a maximum is never -0 */
            max[i] = of_rank[i] > max[i] ? of_rank[i] : max[i];
            if (target[i] >= r * rank_cols && target[i] < (r + 1) * rank_cols)
                z_t[i] = of_rank[n + i];
            else if (i % 3 == 0)
                of_rank[n + i] = NAN;
        }
    }
    const LossSelect a = {.max = cases_random(n),
                          .z_t = cases_random(n),
                          .parts = parts,
                          .target = target,
                          .n = n,
                          .rank_cols = rank_cols,
                          .ranks = ranks};
    CASES_RUN(LOSS_SELECT, &a, CASES_OUTPUT(a.max, max, n), CASES_OUTPUT(a.z_t, z_t, n));
    cases_end();
}

static void test_maximum_and_target_are_selected_among_the_ranks_of_a_cut_vocabulary(void **state) {
    (void)state;
    const int64_t rows[] = {0, 1, 5, 33, 300};
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
        for (int ranks = 1; ranks <= 8; ranks *= 2)
            for (int64_t rank_cols = 1; rank_cols <= 64; rank_cols *= 8)
                check_select(rows[k], ranks, rank_cols);
}

static void test_a_maximum_of_zeros_is_plus_zero(void **state) {
    (void)state;
    Problem p = problem_create((Shape){.n = 2, .ld = 40, .cols = 40, .vocabulary = 40});
    float *expected = cases_floats(2);
    for (int64_t i = 0; i < 80; i++)
        p.z[i] = i == 70 ? 0.0f : -0.0f;
    expected[0] = expected[1] = 0.0f;
    const LossMax a = {.max = p.max, .z_t = p.z_t, .z = p.z, .target = p.target, .n = 2, .ld = 40, .cols = 40};
    CASES_RUN(LOSS_MAX, &a, CASES_OUTPUT(a.max, expected, 2));
    cases_end();
}

static void test_sum_is_a_tree_over_segments_of_lane_sums(void **state) {
    (void)state;
    for (int k = 0; k < NSHAPES; k++) {
        const Shape s = shapes[k];
        const Problem p = problem_create(s);
        reference_max(&p, p.max, p.z_t);
        float *sum = cases_floats(s.n);
        reference_sum(&p, sum);
        const LossSum a = {.sum = p.sum,
                           .z = p.z,
                           .max = p.max,
                           .n = s.n,
                           .ld = s.ld,
                           .cols = s.cols,
                           .segment = s.segment,
                           .nsegments = s.nsegments};
        CASES_RUN(LOSS_SUM, &a, CASES_OUTPUT(a.sum, sum, s.n));
        cases_end();
    }
}

static void reference_grad(const Problem *p, float factor, float *loss, float *dz) {
    const Shape s = p->shape;
    for (int64_t i = 0; i < s.n; i++) {
        loss[i] = exact_log(p->sum[i]) - (p->z_t[i] - p->max[i]);
        const float inverse = 1.0f / p->sum[i];
        for (int64_t c = 0; c < s.ld; c++) {
            float probability = exact_exp(p->z[i * s.ld + c] - p->max[i]) * inverse;
            if (p->target[i] == s.first_col + c)
                probability = probability - 1.0f;
            dz[i * s.ld + c] = c < s.cols ? probability * factor : 0.0f;
        }
    }
}

static void check_grad(Shape s) {
    const Problem p = problem_create(s);
    reference_max(&p, p.max, p.z_t);
    reference_sum(&p, p.sum);
    float *loss = cases_floats(s.n), *dz = cases_floats(s.n * s.ld);
    reference_grad(&p, 0.37f, loss, dz);
    LossGrad a = {.loss = cases_random(s.n),
                  .dz = cases_random(s.n * s.ld),
                  .z = p.z,
                  .max = p.max,
                  .sum = p.sum,
                  .z_t = p.z_t,
                  .target = p.target,
                  .n = s.n,
                  .ld = s.ld,
                  .cols = s.cols,
                  .first_col = s.first_col,
                  .factor = 0.37f};
    CASES_RUN(LOSS_GRAD, &a, CASES_OUTPUT(a.loss, loss, s.n), CASES_OUTPUT(a.dz, dz, s.n * s.ld));
    a.dz = cases_copy(a.z, s.n * s.ld);
    a.z = a.dz;
    CASES_RUN(LOSS_GRAD, &a, CASES_OUTPUT(a.loss, loss, s.n), CASES_OUTPUT(a.dz, dz, s.n * s.ld));
    float *out = a.loss;
    a.loss = NULL;
    CASES_RUN(LOSS_GRAD, &a, CASES_OUTPUT(a.dz, dz, s.n * s.ld));
    a.loss = out;
    a.dz = NULL;
    CASES_RUN(LOSS_GRAD, &a, CASES_OUTPUT(a.loss, loss, s.n));
    cases_end();
}

static void test_loss_and_gradient_are_their_definitions_also_in_place(void **state) {
    (void)state;
    for (int k = 0; k < NSHAPES; k++)
        check_grad(shapes[k]);
}

static void test_lane_mean_is_a_lane_sum_times_a_factor(void **state) {
    (void)state;
    const int64_t shape[][2] = {{0, 4}, {3, 0}, {1, 1}, {2, 31}, {5, 33}, {100, 400}};
    for (size_t k = 0; k < sizeof shape / sizeof *shape; k++) {
        const int64_t rows = shape[k][0], n = shape[k][1];
        const LaneMean a = {
            .out = cases_random(rows), .x = cases_random(rows * n), .rows = rows, .n = n, .factor = 0.1f};
        float *expected = cases_floats(rows);
        for (int64_t r = 0; r < rows; r++)
            expected[r] = cases_lane_sum(a.x + r * n, n) * 0.1f;
        CASES_RUN(LANE_MEAN, &a, CASES_OUTPUT(a.out, expected, rows));
        cases_end();
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_maximum_over_the_real_columns_and_the_target_of_its_owner),
        cmocka_unit_test(test_maximum_and_target_are_selected_among_the_ranks_of_a_cut_vocabulary),
        cmocka_unit_test(test_a_maximum_of_zeros_is_plus_zero),
        cmocka_unit_test(test_sum_is_a_tree_over_segments_of_lane_sums),
        cmocka_unit_test(test_loss_and_gradient_are_their_definitions_also_in_place),
        cmocka_unit_test(test_lane_mean_is_a_lane_sum_times_a_factor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
