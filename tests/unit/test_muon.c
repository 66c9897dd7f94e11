/* Muon against three steps of the reference, and bit by bit. */
#include "optim/muon.h"

#include "tests/unit/bits.h"

#include "tests/fixtures/newton_schulz.h"
#include "tests/unit/golden.h"

#define GOLDEN "tests/golden/upstream_step_golden.json"

static JsonValue *golden;
static Device *device;
static Stream *stream;

typedef struct Matrix {
    NsPlan plan;
    int64_t n;
    float *w, *momentum, *grad, *scratch; /* owned */
} Matrix;

static Matrix matrix_create(int64_t out, int64_t in) {
    const NsConfig config = ns_default_config(NS_GRAM);
    Matrix matrix = {.plan = ns_plan(&config, out, in, -1, 1), .n = out * in};
    matrix.w = ns_floats(matrix.n);
    matrix.momentum = ns_floats(matrix.n);
    matrix.grad = ns_floats(matrix.n);
    matrix.scratch = ns_floats(ns_scratch_nelem(&matrix.plan, 1));
    return matrix;
}

static void matrix_destroy(Matrix *matrix) {
    free(matrix->w);
    free(matrix->momentum);
    free(matrix->grad);
    free(matrix->scratch);
}

static void take_step(const MuonStep *step, Matrix *matrix) {
    const NsPlan *plan = &matrix->plan;
    muon_direction(step, &(NsBatch){.count = 1, .plan = &plan, .x = &matrix->grad}, &matrix->momentum, stream,
                   matrix->scratch, NULL);
    muon_apply(step, &matrix->plan, stream, matrix->w, matrix->grad, matrix->n);
}

static void set_grad(Matrix *matrix, int step) {
    for (int64_t e = 0; e < matrix->n; e++)
        matrix->grad[e] = (float)ns_input(e / matrix->plan.in, e % matrix->plan.in, step);
}

static void assert_golden(double value, const JsonValue *want, double tol) {
    double number = NAN;
    assert_true(json_as_double(want, &number));
    if (!(fabs(value - number) <= tol))
        fail_msg("%.9g, golden %.9g", value, number);
}

/* Recipe: W0 = 0.05 * input 7, gradient of step t = input t; lr 0.02, momentum 0.95 with Nesterov, weight decay 0.01,
 * match_rms, gram. The reference computed in binary64. */
static void test_three_steps_follow_the_golden_weights(void **state) {
    (void)state;
    const JsonValue *w0 = json_get(golden, "W0"), *steps = json_get(golden, "steps");
    const MuonStep step = {
        .lr = 0.02, .weight_decay = 0.01, .momentum = 0.95, .nesterov = true, .scale = SCALE_MATCH_RMS};
    Matrix matrix = matrix_create(4, 6);
    for (int e = 0; e < 24; e++) {
        matrix.w[e] = (float)(0.05 * ns_input(e / 6, e % 6, 7));
        assert_golden(0.05 * ns_input(e / 6, e % 6, 7), json_at(json_at(w0, e / 6), e % 6), 1e-15);
    }
    assert_int_equal(json_count(steps), 3);
    for (int t = 0; t < 3; t++) {
        const JsonValue *want = json_at(steps, t);
        double sum = 0;
        set_grad(&matrix, t);
        const double g00 = (double)matrix.grad[0];
        take_step(&step, &matrix);
        assert_golden((double)matrix.momentum[0], json_get(want, "buf00"), 1e-6);
        assert_golden(0.95 * (double)matrix.momentum[0] + g00, json_get(want, "ns00"), 1e-6); /* what NS was given */
        for (int e = 0; e < 24; e++)
            sum += (double)matrix.w[e];
        for (int j = 0; j < 6; j++)
            assert_golden((double)matrix.w[j], json_at(json_get(want, "W_row0"), j), 1e-7);
        assert_golden(sum, json_get(want, "W_sum"), 1e-6);
    }
    matrix_destroy(&matrix);
}

/* One update written out: momentum, Nesterov, NS, decay, step. */
static void spell(const MuonStep *step, Matrix *matrix, float *w, float *momentum, float *update) {
    const float mu = (float)step->momentum, lr_wd = (float)(step->lr * step->weight_decay);
    const float lr_s = (float)(step->lr * muon_scale(step->scale, matrix->plan.out, matrix->plan.in));
    for (int64_t e = 0; e < matrix->n; e++) {
        const float g = step->clipped ? matrix->grad[e] * step->grad_factor : matrix->grad[e];
        momentum[e] = fmaf(mu, momentum[e], g);
        update[e] = step->nesterov ? fmaf(mu, momentum[e], g) : momentum[e];
    }
    assert_true(ns_run_on_copy(&matrix->plan, stream, update, update));
    for (int64_t e = 0; e < matrix->n; e++) {
        const float decayed = w[e] - lr_wd * w[e];
        w[e] = decayed - lr_s * update[e];
    }
}

static void check_bits(MuonStep step, int64_t out, int64_t in) {
    static float w[1024], momentum[1024], update[1024];
    Matrix matrix = matrix_create(out, in);
    for (int64_t e = 0; e < matrix.n; e++)
        w[e] = matrix.w[e] = (float)(0.05 * ns_input(e / in, e % in, 7));
    memset(momentum, 0, sizeof momentum);
    for (int t = 0; t < 3; t++) {
        set_grad(&matrix, t);
        spell(&step, &matrix, w, momentum, update);
        take_step(&step, &matrix);
        assert_bits_equal_f32(matrix.momentum, momentum, matrix.n, "momentum");
        assert_bits_equal_f32(matrix.w, w, matrix.n, "w");
    }
    matrix_destroy(&matrix);
}

static void test_every_bit_follows_the_sequence(void **state) {
    (void)state;
    MuonStep step = {.lr = 0.0123, .weight_decay = 0.07, .momentum = 0.9, .grad_factor = 0.3F};
    for (int kind = 0; kind < 8; kind++) {
        step.nesterov = (kind & 1) != 0;
        step.clipped = (kind & 2) != 0;
        step.scale = (kind & 4) != 0 ? SCALE_SPECTRAL : SCALE_MATCH_RMS;
        check_bits(step, 24, 40);
        check_bits(step, 40, 24);
        check_bits(step, 16, 16);
    }
}

static void test_scale_sees_the_whole_matrix(void **state) {
    (void)state;
    assert_true(muon_scale(SCALE_MATCH_RMS, 100, 25) == 0.2 * 10);
    assert_true(muon_scale(SCALE_MATCH_RMS, 25, 100) == 0.2 * 10);
    assert_true(muon_scale(SCALE_SPECTRAL, 400, 100) == 2.0);
    assert_true(muon_scale(SCALE_SPECTRAL, 100, 400) == 1.0);
    assert_true(muon_scale(SCALE_SPECTRAL, 100, 100) == 1.0);
}

static void test_no_gradient_only_decays(void **state) {
    (void)state;
    const MuonStep step = {.lr = 0.5, .weight_decay = 0.5, .momentum = 0.95, .nesterov = true};
    Matrix matrix = matrix_create(4, 6);
    for (int e = 0; e < 24; e++)
        matrix.w[e] = (float)(e + 1);
    take_step(&step, &matrix);
    for (int e = 0; e < 24; e++)
        assert_true(matrix.w[e] == 0.75F * (float)(e + 1));
    matrix_destroy(&matrix);
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
        cmocka_unit_test(test_three_steps_follow_the_golden_weights),
        cmocka_unit_test(test_every_bit_follows_the_sequence),
        cmocka_unit_test(test_scale_sees_the_whole_matrix),
        cmocka_unit_test(test_no_gradient_only_decays),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
