/* RMSNorm: forward, backward, and the gain's gradient. */
#include "kernels/cpu/isa.h"

#include <math.h>

#include "kernels/cpu/lanes.h"
#include "kernels/cpu/split.h"
#include "kernels/cpu/store.h"

static float sum_of_squares(const float *restrict x, int64_t n) {
    float lane[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            lane[l] = fmaf(x[i + l], x[i + l], lane[l]);
    for (int64_t l = 0; l < n - i; l++)
        lane[l] = fmaf(x[i + l], x[i + l], lane[l]);
    return lanes_fold(lane);
}

static void forward_rows(const void *args, int64_t begin, int64_t end) {
    const RmsnormForward *a = args;
    const int64_t d = a->d;
    for (int64_t r = begin; r < end; r++) {
        const float *x = a->x + r * d, *w = a->w;
        float *y = a->y + r * d;
        const float rstd = 1.0f / sqrtf(sum_of_squares(x, d) / (float)d + a->eps);
        a->rstd[r] = rstd;
#pragma GCC ivdep
        for (int64_t c = 0; c < d; c++)
            y[c] = (x[c] * rstd) * w[c];
        store_bf16(&a->store, a->y, r * d, (r + 1) * d);
    }
}

void ISA_NAME(rmsnorm_forward)(const KernelCtx *ctx, const void *args) {
    const RmsnormForward *a = args;
    split_ranges(ctx, a, forward_rows, a->rows, a->d, 1);
}

/* lane sum of g*xh, g = dy*w, xh = x*rstd */
static float sum_of_products(const float *restrict dy, const float *restrict w, const float *restrict x, float rstd,
                             int64_t n) {
    float lane[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            lane[l] = fmaf(dy[i + l] * w[i + l], x[i + l] * rstd, lane[l]);
    for (int64_t l = 0; l < n - i; l++)
        lane[l] = fmaf(dy[i + l] * w[i + l], x[i + l] * rstd, lane[l]);
    return lanes_fold(lane);
}

static void backward_rows(const void *args, int64_t begin, int64_t end) {
    const RmsnormBackward *a = args;
    const int64_t d = a->d;
    for (int64_t r = begin; r < end; r++) {
        const float *x = a->x + r * d, *dy = a->dy + r * d, *w = a->w;
        const float *residual = a->residual == NULL ? NULL : a->residual + r * d;
        const float rstd = a->rstd[r];
        const float mean = sum_of_products(dy, w, x, rstd, d) / (float)d;
        float *dx = a->dx + r * d;
#pragma GCC ivdep
        for (int64_t c = 0; c < d; c++) {
            const float v = rstd * (dy[c] * w[c] - (x[c] * rstd) * mean);
            dx[c] = residual == NULL ? v : residual[c] + v;
        }
        store_bf16(&a->store, a->dx, r * d, (r + 1) * d);
    }
}

void ISA_NAME(rmsnorm_backward)(const KernelCtx *ctx, const void *args) {
    const RmsnormBackward *a = args;
    split_ranges(ctx, a, backward_rows, a->rows, a->d, 1);
}

#define BLOCK 256 /* columns whose chains run together on the stack */
#define DEPTH 8   /* log2 of the largest number of runs */

/* One run: heads outer, tokens inner, one chain per column. */
static void gain_run(float *restrict sum, const RmsnormGainGrad *a, int64_t run, int64_t column, int64_t n) {
    const int64_t per_run = a->heads / a->runs;
    for (int64_t c = 0; c < n; c++)
        sum[c] = 0.0f;
    for (int64_t h = run * per_run; h < (run + 1) * per_run; h++) {
        for (int64_t t = 0; t < a->tokens; t++) {
            const int64_t row = t * a->heads + h;
            const float rstd = a->rstd[row];
            const float *restrict dy = a->dy + row * a->d + column;
            const float *restrict x = a->x + row * a->d + column;
            for (int64_t c = 0; c < n; c++)
                sum[c] = fmaf(dy[c], x[c] * rstd, sum[c]);
        }
    }
}

typedef struct Runs {
    int64_t first, count;
} Runs;

/* out = tree over the runs; `rest` holds one block for each level below. */
static void gain_tree(float *out, const RmsnormGainGrad *a, Runs runs, int64_t column, int64_t n, float *rest) {
    if (runs.count == 1) {
        gain_run(out, a, runs.first, column, n);
        return;
    }
    int64_t left = 1;
    while (left * 2 < runs.count)
        left *= 2;
    gain_tree(out, a, (Runs){runs.first, left}, column, n, rest);
    gain_tree(rest, a, (Runs){runs.first + left, runs.count - left}, column, n, rest + BLOCK);
    for (int64_t c = 0; c < n; c++)
        out[c] = out[c] + rest[c];
}

static void gain_columns(const void *args, int64_t begin, int64_t end) {
    const RmsnormGainGrad *a = args;
    float rest[DEPTH * BLOCK];
    for (int64_t c = begin; c < end; c += BLOCK)
        gain_tree(a->dw + c, a, (Runs){0, a->runs}, c, end - c < BLOCK ? end - c : BLOCK, rest);
}

void ISA_NAME(rmsnorm_gain_grad)(const KernelCtx *ctx, const void *args) {
    const RmsnormGainGrad *a = args;
    split_ranges(ctx, a, gain_columns, a->d, a->tokens * a->heads + 1, 16);
}
