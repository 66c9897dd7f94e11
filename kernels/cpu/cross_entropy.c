/* Cross-entropy over a vocabulary that may be split by columns: maximum, sum of exponentials, loss and gradient; and
 * the mean over tokens or windows. One row per token, rows are independent. */
#include "kernels/cpu/isa.h"

#include "kernels/cpu/row_ops.h"
#include "kernels/cpu/split.h"
#include "kernels/cpu/tree.h"
#include "kernels/exact_math.h"

#define EXP_COST 8 /* an exponential, in elements of a plain addition */
#define MAX_SEGMENTS 64
#define BLOCK 512 /* columns that stay in the L1 cache between two passes */

static void max_rows(const void *args, int64_t begin, int64_t end) {
    const LossMax *a = args;
    for (int64_t i = begin; i < end; i++) {
        const float *z = a->z + i * a->ld;
        const int64_t target = a->target[i] - a->first_col;
        a->max[i] = row_max(z, a->cols);
        if (target >= 0 && target < a->cols)
            a->z_t[i] = z[target];
    }
}

void ISA_NAME(loss_max)(const KernelCtx *ctx, const void *args) {
    const LossMax *a = args;
    split_ranges(ctx, a, max_rows, a->n, a->cols + 1, 1);
}

static void sum_rows(const void *args, int64_t begin, int64_t end) {
    const LossSum *a = args;
    float sum[MAX_SEGMENTS];
    for (int64_t i = begin; i < end; i++) {
        for (int s = 0; s < a->nsegments; s++) {
            const int64_t first = s * a->segment;
            const int64_t left = a->cols > first ? a->cols - first : 0;
            const int64_t n = left < a->segment ? left : a->segment;
            sum[s] = row_exp_sum(NULL, a->z + i * a->ld + first, n, a->max[i]);
        }
        a->sum[i] = tree_sum(sum, a->nsegments);
    }
}

void ISA_NAME(loss_sum)(const KernelCtx *ctx, const void *args) {
    const LossSum *a = args;
    split_ranges(ctx, a, sum_rows, a->n, (a->cols + 1) * EXP_COST, 1);
}

static void grad_row(const LossGrad *a, int64_t i) {
    const float *z = a->z + i * a->ld;
    float *dz = a->dz + i * a->ld;
    const float max = a->max[i], inverse = 1.0f / a->sum[i], factor = a->factor;
    const int64_t target = a->target[i] - a->first_col;
    const bool here = target >= 0 && target < a->cols;
    const float at_target = here ? (exact_exp(z[target] - max) * inverse - 1.0f) * factor : 0.0f;
    for (int64_t c = 0; c < a->cols; c += BLOCK) {
        const int64_t n = a->cols - c < BLOCK ? a->cols - c : BLOCK;
        row_softmax(dz + c, z + c, n, max, inverse);
        row_scale(dz + c, n, factor);
    }
    for (int64_t c = a->cols; c < a->ld; c++)
        dz[c] = 0.0f;
    if (here)
        dz[target] = at_target;
}

static void grad_rows(const void *args, int64_t begin, int64_t end) {
    const LossGrad *a = args;
    for (int64_t i = begin; i < end; i++) {
        if (a->loss != NULL)
            a->loss[i] = exact_log(a->sum[i]) - (a->z_t[i] - a->max[i]);
        if (a->dz != NULL)
            grad_row(a, i);
    }
}

void ISA_NAME(loss_grad)(const KernelCtx *ctx, const void *args) {
    const LossGrad *a = args;
    split_ranges(ctx, a, grad_rows, a->n, a->dz == NULL ? EXP_COST : a->ld * EXP_COST, 1);
}

static void mean_rows(const void *args, int64_t begin, int64_t end) {
    const LaneMean *a = args;
    for (int64_t r = begin; r < end; r++)
        a->out[r] = row_sum(a->x + r * a->n, a->n) * a->factor;
}

void ISA_NAME(lane_mean)(const KernelCtx *ctx, const void *args) {
    const LaneMean *a = args;
    split_ranges(ctx, a, mean_rows, a->rows, a->n + 1, 1);
}
