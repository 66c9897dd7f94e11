/* Attention against its definition in scalar loops, bit for bit. The AVX-512 tile is also run made of AVX2 halves, so
 * that its logic is tested where the processor has no AVX-512. */
#include "tests/unit/kernel_cases.h"

#include "kernels/exact_math.h"

#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define DM_ISA emulated_512
#define DM_EMULATE_512
#include "kernels/cpu/attention_backward.c"
#include "kernels/cpu/attention_forward.c"
#include "kernels/cpu/attention_tile.c"
#include "kernels/cpu/gemm_pack.c"
#include "kernels/cpu/row_ops.c"
#include "kernels/cpu/split.c"
#pragma GCC pop_options

typedef struct Shape {
    int64_t B, T, H, K, D, gap; /* gap: elements between the rows of two tokens beyond their heads */
} Shape;

typedef struct Problem {
    Shape shape;
    AttentionForward forward;
    AttentionBackward backward;
    int64_t nq, nkv, no, nrows; /* elements of q, of k, of o, of max */
} Problem;

/* Sequences that end inside a tile and inside a block, groups of one to three heads, head sizes around the vectors. */
static const Shape shapes[] = {
    {1, 1, 1, 1, 2, 0},   {1, 5, 2, 1, 16, 3},  {2, 24, 2, 2, 16, 0}, {1, 29, 3, 1, 10, 1},  {2, 33, 4, 2, 24, 5},
    {1, 57, 1, 1, 48, 0}, {1, 71, 6, 2, 64, 8}, {1, 97, 2, 1, 80, 0}, {1, 150, 2, 1, 32, 0}, {1, 112, 1, 1, 128, 2},
};
enum { NSHAPES = sizeof shapes / sizeof *shapes };

static Problem problem_create(Shape s) {
    const int64_t q_stride = s.H * s.D + s.gap, kv_stride = s.K * s.D + 2 * s.gap, o_stride = s.H * s.D + 3 * s.gap;
    Problem p = {.shape = s,
                 .nq = s.B * s.T * q_stride,
                 .nkv = s.B * s.T * kv_stride,
                 .no = s.B * s.T * o_stride,
                 .nrows = s.B * s.H * s.T};
    p.forward = (AttentionForward){.o = cases_floats(p.no),
                                   .max = cases_floats(p.nrows),
                                   .sum = cases_floats(p.nrows),
                                   .q = cases_random(p.nq),
                                   .k = cases_random(p.nkv),
                                   .v = cases_random(p.nkv),
                                   .B = s.B,
                                   .T = s.T,
                                   .H = s.H,
                                   .K = s.K,
                                   .D = s.D,
                                   .q_stride = q_stride,
                                   .kv_stride = kv_stride,
                                   .o_stride = o_stride,
                                   .scale = 0.7f};
    return p;
}

/* ---- the definition --------------------------------------------------------------------------------------------- */

static float chain(const float *a, const float *b, int64_t n) {
    float c = 0.0f;
    for (int64_t k = 0; k < n; k++)
        c = fmaf(a[k], b[k], c);
    return c;
}

/* The scores of row i, scaled; then their exponentials. */
static void scores(const AttentionForward *a, int64_t b, int64_t h, int64_t i, float *s) {
    const float *q = a->q + (b * a->T + i) * a->q_stride + h * a->D;
    for (int64_t j = 0; j <= i; j++)
        s[j] = chain(q, a->k + (b * a->T + j) * a->kv_stride + h / (a->H / a->K) * a->D, a->D) * a->scale;
}

static void reference_forward(const AttentionForward *a, float *o, float *max, float *sum) {
    float s[256];
    for (int64_t row = 0; row < a->B * a->H * a->T; row++) {
        const int64_t i = row % a->T, h = row / a->T % a->H, b = row / a->T / a->H;
        scores(a, b, h, i, s);
        float m = -INFINITY;
        for (int64_t j = 0; j <= i; j++)
            m = s[j] > m ? s[j] : m;
        m = m == 0.0f ? 0.0f : m;
        for (int64_t j = 0; j <= i; j++)
            s[j] = exact_exp(s[j] - m);
        const float l = cases_lane_sum(s, i + 1);
        const float inverse = 1.0f / l;
        max[row] = m;
        sum[row] = l;
        for (int64_t d = 0; d < a->D; d++) {
            float c = 0.0f;
            for (int64_t j = 0; j <= i; j++)
                c = fmaf(s[j] * inverse, a->v[(b * a->T + j) * a->kv_stride + h / (a->H / a->K) * a->D + d], c);
            o[(b * a->T + i) * a->o_stride + h * a->D + d] = c;
        }
    }
}

typedef struct Weights {
    float *p, *ds; /* [T, T], j <= i */
} Weights;

static void reference_weights(const Problem *problem, int64_t b, int64_t h, Weights w) {
    const AttentionBackward *a = &problem->backward;
    for (int64_t i = 0; i < a->T; i++) {
        const int64_t row = (b * a->H + h) * a->T + i;
        const float *d_o = a->d_o + (b * a->T + i) * a->o_stride + h * a->D;
        const float delta = cases_lane_dot(d_o, a->o + (b * a->T + i) * a->o_stride + h * a->D, a->D);
        float *p = w.p + i * a->T;
        scores(&problem->forward, b, h, i, p);
        for (int64_t j = 0; j <= i; j++) {
            const float *v = a->v + (b * a->T + j) * a->kv_stride + h / (a->H / a->K) * a->D;
            p[j] = exact_exp(p[j] - a->max[row]) * (1.0f / a->sum[row]);
            w.ds[i * a->T + j] = p[j] * (chain(d_o, v, a->D) - delta);
        }
    }
}

static void reference_queries(const AttentionBackward *a, int64_t b, int64_t h, Weights w, float *dq) {
    for (int64_t e = 0; e < a->T * a->D; e++) {
        const int64_t i = e / a->D, d = e % a->D;
        float c = 0.0f;
        for (int64_t j = 0; j <= i; j++)
            c = fmaf(w.ds[i * a->T + j], a->k[(b * a->T + j) * a->kv_stride + h / (a->H / a->K) * a->D + d], c);
        dq[(b * a->T + i) * a->q_stride + h * a->D + d] = c * a->scale;
    }
}

static void reference_keys(const AttentionBackward *a, int64_t b, int64_t h, Weights w, float *dk, float *dv) {
    const int64_t group = a->H / a->K;
    for (int64_t e = 0; e < a->T * a->D; e++) {
        const int64_t j = e / a->D, d = e % a->D;
        const int64_t at = (b * a->T + j) * a->kv_stride + h / group * a->D + d;
        float ck = 0.0f, cv = 0.0f;
        for (int64_t i = j; i < a->T; i++) {
            ck = fmaf(w.ds[i * a->T + j], a->q[(b * a->T + i) * a->q_stride + h * a->D + d], ck);
            cv = fmaf(w.p[i * a->T + j], a->d_o[(b * a->T + i) * a->o_stride + h * a->D + d], cv);
        }
        dk[at] = h % group == 0 ? ck * a->scale : dk[at] + ck * a->scale;
        dv[at] = h % group == 0 ? cv : dv[at] + cv;
    }
}

static void reference_backward(const Problem *problem, float *dq, float *dk, float *dv) {
    const AttentionBackward *a = &problem->backward;
    const Weights w = {.p = cases_floats(a->T * a->T), .ds = cases_floats(a->T * a->T)};
    for (int64_t b = 0; b < a->B; b++) {
        for (int64_t h = 0; h < a->H; h++) {
            reference_weights(problem, b, h, w);
            reference_queries(a, b, h, w, dq);
            reference_keys(a, b, h, w, dk, dv);
        }
    }
}

/* ---- the comparisons --------------------------------------------------------------------------------------------- */

static void add_backward(Problem *p) {
    const AttentionForward *f = &p->forward;
    reference_forward(f, f->o, f->max, f->sum);
    p->backward = (AttentionBackward){.dq = cases_floats(p->nq),
                                      .dk = cases_floats(p->nkv),
                                      .dv = cases_floats(p->nkv),
                                      .d_o = cases_random(p->no),
                                      .q = f->q,
                                      .k = f->k,
                                      .v = f->v,
                                      .o = f->o,
                                      .max = f->max,
                                      .sum = f->sum,
                                      .B = f->B,
                                      .T = f->T,
                                      .H = f->H,
                                      .K = f->K,
                                      .D = f->D,
                                      .q_stride = f->q_stride,
                                      .kv_stride = f->kv_stride,
                                      .o_stride = f->o_stride,
                                      .scale = f->scale};
}

static void check_forward(Problem *p) {
    const AttentionForward *a = &p->forward;
    float *o = cases_floats(p->no), *max = cases_floats(p->nrows), *sum = cases_floats(p->nrows);
    reference_forward(a, o, max, sum);
    CASES_RUN(ATTENTION_FORWARD, a, CASES_OUTPUT(a->o, o, p->no), CASES_OUTPUT(a->max, max, p->nrows),
              CASES_OUTPUT(a->sum, sum, p->nrows));
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return;
    memset(a->o, 0xA5, (size_t)p->no * sizeof(float));
    attention_forward_emulated_512(test_kernel_ctx(2), a);
    assert_bits_equal_f32(a->o, o, p->no, "o, AVX-512 emulated");
    cases_check_margins("AVX-512 emulated");
}

static void check_backward(Problem *p) {
    const AttentionBackward *a = &p->backward;
    float *dq = cases_floats(p->nq), *dk = cases_floats(p->nkv), *dv = cases_floats(p->nkv);
    reference_backward(p, dq, dk, dv);
    CASES_RUN(ATTENTION_BACKWARD, a, CASES_OUTPUT(a->dq, dq, p->nq), CASES_OUTPUT(a->dk, dk, p->nkv),
              CASES_OUTPUT(a->dv, dv, p->nkv));
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return;
    attention_backward_emulated_512(test_kernel_ctx(2), a);
    assert_bits_equal_f32(a->dq, dq, p->nq, "dq, AVX-512 emulated");
    assert_bits_equal_f32(a->dk, dk, p->nkv, "dk, AVX-512 emulated");
    assert_bits_equal_f32(a->dv, dv, p->nkv, "dv, AVX-512 emulated");
    cases_check_margins("AVX-512 emulated");
}

static void test_forward_is_its_definition_to_the_bit(void **state) {
    (void)state;
    for (int i = 0; i < NSHAPES; i++) {
        Problem p = problem_create(shapes[i]);
        check_forward(&p);
        cases_end();
    }
}

static void test_backward_is_its_definition_to_the_bit(void **state) {
    (void)state;
    for (int i = 0; i < NSHAPES; i++) {
        Problem p = problem_create(shapes[i]);
        add_backward(&p);
        check_backward(&p);
        cases_end();
    }
}

/* All products tiny and negative: chains round to -0, which a masked zero would turn into +0. */
static void test_negative_zeros_survive_the_causal_limit(void **state) {
    (void)state;
    Problem p = problem_create((Shape){1, 41, 2, 1, 16, 0});
    float *v = (float *)(uintptr_t)p.forward.v;
    for (int64_t i = 0; i < p.nkv; i++)
        v[i] = -0x1p-149f;
    add_backward(&p);
    float *d_o = (float *)(uintptr_t)p.backward.d_o;
    for (int64_t i = 0; i < p.no; i++)
        d_o[i] = -0x1p-149f;
    float *o = cases_floats(p.no), *max = cases_floats(p.nrows), *sum = cases_floats(p.nrows);
    reference_forward(&p.forward, o, max, sum);
    assert_true(bits_of_f32(o[40 * p.forward.o_stride]) == 0x80000000u);
    check_forward(&p);
    check_backward(&p);
    cases_end();
}

/* Scores far apart underflow to zero probabilities; nothing is lost in the lanes. */
static void test_large_scores_do_not_overflow(void **state) {
    (void)state;
    Problem p = problem_create((Shape){1, 65, 2, 2, 32, 0});
    p.forward.scale = 300.0f;
    add_backward(&p);
    for (int64_t i = 0; i < p.no; i++)
        assert_true(isfinite(p.forward.o[i]));
    check_forward(&p);
    check_backward(&p);
    cases_end();
}

static void test_nothing_is_legal(void **state) {
    (void)state;
    float sentinel = 1.0f;
    const AttentionForward forward = {.o = &sentinel, .H = 2, .K = 1, .D = 4};
    const AttentionBackward backward = {.dq = &sentinel, .H = 2, .K = 1, .D = 4, .T = 3};
    CASES_RUN(ATTENTION_FORWARD, &forward, CASES_OUTPUT(&sentinel, &(float){1.0f}, 1));
    CASES_RUN(ATTENTION_BACKWARD, &backward, CASES_OUTPUT(&sentinel, &(float){1.0f}, 1));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forward_is_its_definition_to_the_bit),
        cmocka_unit_test(test_backward_is_its_definition_to_the_bit),
        cmocka_unit_test(test_negative_zeros_survive_the_causal_limit),
        cmocka_unit_test(test_large_scores_do_not_overflow),
        cmocka_unit_test(test_nothing_is_legal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
