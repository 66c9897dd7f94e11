/* Causal grouped-query attention, forward and backward, one query row at a time. */
#include "kernels/cpu/isa.h"

#include <string.h>

#include "kernels/cpu/row_ops.h"
#include "kernels/cpu/split.h"
#include "kernels/exact_math.h"

static float chain(const float *a, const float *b, int64_t n) {
    float c = 0.0f;
    for (int64_t k = 0; k < n; k++)
        c = fmaf(a[k], b[k], c);
    return c;
}

typedef struct Forward {
    const AttentionForward *args;
    const KernelCtx *ctx;
} Forward;

static void forward_item(void *arg, int item, int thread) {
    const Forward *f = arg;
    const AttentionForward *a = f->args;
    const int64_t b = item / a->H, h = item % a->H, kh = h / (a->H / a->K);
    float *s = f->ctx->scratch(f->ctx, thread, (size_t)a->T * sizeof *s);
    for (int64_t i = 0; i < a->T; i++) {
        const float *q = a->q + (b * a->T + i) * a->q_stride + h * a->D;
        const float *k = a->k + b * a->T * a->kv_stride + kh * a->D;
        const float *v = a->v + b * a->T * a->kv_stride + kh * a->D;
        float *o = a->o + (b * a->T + i) * a->o_stride + h * a->D;
        for (int64_t j = 0; j <= i; j++)
            s[j] = chain(q, k + j * a->kv_stride, a->D) * a->scale;
        const float max = row_max(s, i + 1);
        const float sum = row_exp_sum(s, s, i + 1, max);
        a->max[item * a->T + i] = max;
        a->sum[item * a->T + i] = sum;
        memset(o, 0, (size_t)a->D * sizeof *o);
        for (int64_t j = 0; j <= i; j++)
            for (int64_t d = 0; d < a->D; d++)
                o[d] = fmaf(s[j] * (1.0f / sum), v[j * a->kv_stride + d], o[d]);
    }
}

void ISA_NAME(attention_forward)(const KernelCtx *ctx, const void *args) {
    const AttentionForward *a = args;
    Forward forward = {.args = a, .ctx = ctx};
    split_run(ctx, (int)(a->B * a->H), forward_item, &forward);
}

typedef struct Backward {
    const AttentionBackward *args;
    const KernelCtx *ctx;
} Backward;

static void backward_row(const AttentionBackward *a, int64_t b, int64_t h, int64_t i, float *s) {
    const int64_t kh = h / (a->H / a->K);
    float *ds = s + a->T, *dk = s + 2 * a->T, *dv = dk + a->T * a->D;
    const float *q = a->q + (b * a->T + i) * a->q_stride + h * a->D;
    const float *k = a->k + b * a->T * a->kv_stride + kh * a->D;
    const float *v = a->v + b * a->T * a->kv_stride + kh * a->D;
    const float *d_o = a->d_o + (b * a->T + i) * a->o_stride + h * a->D;
    float *dq = a->dq + (b * a->T + i) * a->q_stride + h * a->D;
    const int64_t row = (b * a->H + h) * a->T + i;
    const float delta = row_dot(d_o, a->o + (b * a->T + i) * a->o_stride + h * a->D, a->D);
    for (int64_t j = 0; j <= i; j++)
        s[j] = chain(q, k + j * a->kv_stride, a->D) * a->scale;
    row_softmax(s, s, i + 1, a->max[row], 1.0f / a->sum[row]);
    for (int64_t j = 0; j <= i; j++)
        ds[j] = s[j] * (chain(d_o, v + j * a->kv_stride, a->D) - delta);
    memset(dq, 0, (size_t)a->D * sizeof *dq);
    for (int64_t j = 0; j <= i; j++) {
        for (int64_t d = 0; d < a->D; d++) {
            dq[d] = fmaf(ds[j], k[j * a->kv_stride + d], dq[d]);
            dk[j * a->D + d] = fmaf(ds[j], q[d], dk[j * a->D + d]);
            dv[j * a->D + d] = fmaf(s[j], d_o[d], dv[j * a->D + d]);
        }
    }
    for (int64_t d = 0; d < a->D; d++)
        dq[d] = dq[d] * a->scale;
}

static void backward_item(void *arg, int item, int thread) {
    const Backward *f = arg;
    const AttentionBackward *a = f->args;
    const int64_t b = item / a->K, kh = item % a->K, group = a->H / a->K;
    const int64_t size = a->T * a->D;
    float *s = f->ctx->scratch(f->ctx, thread, (size_t)(2 * a->T + 2 * size) * sizeof *s);
    const float *head = s + 2 * a->T;
    for (int64_t g = 0; g < group; g++) {
        memset(s + 2 * a->T, 0, (size_t)(2 * size) * sizeof *s);
        for (int64_t i = 0; i < a->T; i++)
            backward_row(a, b, kh * group + g, i, s);
        for (int64_t j = 0; j < size; j++) {
            const int64_t at = (b * a->T + j / a->D) * a->kv_stride + kh * a->D + j % a->D;
            a->dk[at] = g == 0 ? head[j] * a->scale : a->dk[at] + head[j] * a->scale;
            a->dv[at] = g == 0 ? head[size + j] : a->dv[at] + head[size + j];
        }
    }
}

void ISA_NAME(attention_backward)(const KernelCtx *ctx, const void *args) {
    const AttentionBackward *a = args;
    Backward backward = {.args = a, .ctx = ctx};
    split_run(ctx, (int)(a->B * a->K), backward_item, &backward);
}
