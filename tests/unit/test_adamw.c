/* AdamW against three steps of the reference, and bit by bit. */
#include "optim/adamw.h"

#include "tests/unit/bits.h"

#include "tests/fixtures/newton_schulz.h"
#include "tests/unit/golden.h"

#define GOLDEN "tests/golden/upstream_step_golden.json"
enum { MAX_N = 1100 };

static JsonValue *golden;
static Device *device;
static Stream *stream;

typedef struct Run {
    float w[MAX_N], m[MAX_N], v[MAX_N], g[MAX_N];
} Run;

/* Recipe: weights are row 0 of input 3, the gradient of step t that of input t; lr 1e-3, betas 0.9 and 0.999, eps 1e-8,
 * weight decay 0.01. The reference computed in binary64. */
static void test_three_steps_follow_the_golden_weights(void **state) {
    (void)state;
    static Run run;
    const JsonValue *steps = json_get(golden, "adamw");
    AdamwStep step = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01};
    for (int j = 0; j < 5; j++)
        run.w[j] = (float)ns_input(0, j, 3);
    assert_int_equal(json_count(steps), 3);
    for (step.t = 1; step.t <= 3; step.t++) {
        for (int j = 0; j < 5; j++)
            run.g[j] = (float)ns_input(0, j, (int)step.t);
        adamw_update(&step, stream, run.w, run.m, run.v, run.g, 5);
        for (int j = 0; j < 5; j++) {
            double want = NAN;
            assert_true(json_as_double(json_at(json_at(steps, (int)step.t - 1), j), &want));
            if (!(fabs((double)run.w[j] - want) <= 2e-7))
                fail_msg("step %d [%d]: %.9g, golden %.9g", (int)step.t, j, (double)run.w[j], want);
        }
    }
}

/* 1/(1 - beta^t), with the power in extended precision. */
static float correction(double beta, int64_t t) {
    return (float)(1.0 / (double)(1.0L - powl((long double)beta, (long double)t)));
}

static void spell(const AdamwStep *s, Run *run, int64_t n) {
    const float b1 = (float)s->beta1, b2 = (float)s->beta2, lr = (float)s->lr;
    const float lr_wd = (float)(s->lr * s->weight_decay), eps = (float)s->eps;
    const float c1 = correction(s->beta1, s->t), c2 = correction(s->beta2, s->t);
    for (int64_t i = 0; i < n; i++) {
        const float g = s->clipped ? run->g[i] * s->grad_factor : run->g[i];
        run->m[i] = fmaf(b1, run->m[i], (float)(1.0 - s->beta1) * g);
        run->v[i] = fmaf(b2, run->v[i], (float)(1.0 - s->beta2) * (g * g));
        const float w = run->w[i] - lr_wd * run->w[i];
        run->w[i] = w - (lr * (run->m[i] * c1)) / (sqrtf(run->v[i] * c2) + eps);
    }
}

static void check_bits(AdamwStep step, int64_t n) {
    static Run run, want;
    memset(&run, 0, sizeof run);
    for (int64_t i = 0; i < MAX_N; i++)
        run.w[i] = (float)ns_input(i, 0, 3);
    want = run;
    for (int k = 0; k < 4; k++, step.t += 1 + 7 * k) {
        for (int64_t i = 0; i < MAX_N; i++)
            want.g[i] = run.g[i] = (float)ns_input(i, 1, k);
        spell(&step, &want, n);
        adamw_update(&step, stream, run.w, run.m, run.v, run.g, n);
        assert_bits_equal_f32(run.w, want.w, MAX_N, "w");
        assert_bits_equal_f32(run.m, want.m, MAX_N, "m");
        assert_bits_equal_f32(run.v, want.v, MAX_N, "v");
    }
}

static void test_every_bit_follows_the_sequence(void **state) {
    (void)state;
    const int64_t sizes[] = {0, 1, 31, 33, 1000, 1024};
    AdamwStep step = {.lr = 3.7e-4, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .t = 1, .grad_factor = 0.37F};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        step.clipped = i % 2 == 0;
        step.weight_decay = i % 3 == 0 ? 0.0 : 0.1;
        check_bits(step, sizes[i]);
    }
}

static void test_late_steps_are_not_corrected(void **state) {
    (void)state;
    AdamwStep step = {.lr = 1.0, .beta1 = 0.5, .beta2 = 0.5, .eps = 0.0, .t = INT64_MAX};
    float w = 0, m = 0, v = 0;
    const float g = 2;
    adamw_update(&step, stream, &w, &m, &v, &g, 1);
    assert_true(m == 1.0F && v == 2.0F);
    assert_true(w == -1.0F / sqrtf(2.0F));
}

/* The first step is lr * sign(g), whatever the betas. */
static void test_first_step_has_the_size_of_the_rate(void **state) {
    (void)state;
    AdamwStep step = {.lr = 0.25, .beta1 = 0.75, .beta2 = 0.9375, .eps = 0.0, .t = 1};
    float w[2] = {1, 1}, m[2] = {0}, v[2] = {0};
    const float g[2] = {4, -0.5F};
    adamw_update(&step, stream, w, m, v, g, 2);
    assert_true(w[0] == 0.75F && w[1] == 1.25F);
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
        cmocka_unit_test(test_late_steps_are_not_corrected),
        cmocka_unit_test(test_first_step_has_the_size_of_the_rate),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
