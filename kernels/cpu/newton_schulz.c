/* The elementwise parts of Newton-Schulz: scaling, combination of products, the diagonal. */
#include "kernels/cpu/isa.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/split.h"
#include "kernels/cpu/tree.h"
#include "kernels/exact_math.h"

static void zero_range(float *y, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++)
        y[i] = 0.0f;
}

static void scale_range(const void *args, int64_t begin, int64_t end) {
    const NsScalePow2 *a = args;
    const float *x = a->x;
    float *y = a->y;
    if (*a->abs_max == 0.0f) {
        zero_range(y, begin, end);
        return;
    }
    const ExactPow2 factor = exact_ns_scale(*a->abs_max);
    /* The second factor is 1 but for extreme matrices, and multiplying by 1 is exact. */
#pragma GCC ivdep
    for (int64_t i = begin; i < end; i++)
        y[i] = x[i] * factor.first * factor.second;
}

void ISA_NAME(ns_scale_pow2)(const KernelCtx *ctx, const void *args) {
    split_ranges(ctx, args, scale_range, ((const NsScalePow2 *)args)->n, 1, 16);
}

static void normalize_range(const void *args, int64_t begin, int64_t end) {
    const NsNormalize *a = args;
    const float norm = (float)sqrt(tree_sum64(a->sumsq, a->nsegments, 1));
    const float *x = a->x;
    float *y = a->y;
    if (norm == 0.0f) {
        zero_range(y, begin, end);
        return;
    }
#pragma GCC ivdep
    for (int64_t i = begin; i < end; i++)
        y[i] = x[i] / norm;
}

void ISA_NAME(ns_normalize)(const KernelCtx *ctx, const void *args) {
    split_ranges(ctx, args, normalize_range, ((const NsNormalize *)args)->n, 2, 16);
}

static void combine_range(const void *args, int64_t begin, int64_t end) {
    const NsCombine a = *(const NsCombine *)args;
    float *out = a.out;
    if (!a.scale_y) {
#pragma GCC ivdep
        for (int64_t i = begin; i < end; i++)
            out[i] = fmaf(a.c, a.x[i], a.y[i]);
        return;
    }
#pragma GCC ivdep
    for (int64_t i = begin; i < end; i++)
        out[i] = exact_ns_combine(a.c, a.x[i], a.b, a.y[i]);
}

void ISA_NAME(ns_combine)(const KernelCtx *ctx, const void *args) {
    split_ranges(ctx, args, combine_range, ((const NsCombine *)args)->n, 1, 16);
}

static void diagonal_rows(const void *args, int64_t begin, int64_t end) {
    const AddDiagonal *a = args;
    for (int64_t i = begin; i < end; i++) {
        const float *x = a->x + i * a->m;
        float *out = a->out + i * a->m;
        const float sum = x[i] + a->a;
        if (out != x)
            memcpy(out, x, (size_t)a->m * sizeof *out);
        out[i] = sum;
    }
}

void ISA_NAME(add_diagonal)(const KernelCtx *ctx, const void *args) {
    const AddDiagonal *a = args;
    split_ranges(ctx, a, diagonal_rows, a->m, a->out == a->x ? 1 : a->m, 1);
}
