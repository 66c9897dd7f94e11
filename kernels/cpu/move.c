/* Copy, fill, add, scale. In-place calls alias exactly, element on element, which `ivdep` states. */
#include "kernels/cpu/isa.h"

#include <string.h>

#include "kernels/cpu/split.h"
#include "kernels/cpu/store.h"

static void copy_rows(const void *args, int64_t begin, int64_t end) {
    const Copy *a = args;
    for (int64_t r = begin; r < end; r++)
        memcpy(a->dst + r * a->dst_stride, a->src + r * a->src_stride, (size_t)a->cols * sizeof *a->dst);
}

static void copy_flat(const void *args, int64_t begin, int64_t end) {
    const Copy *a = args;
    memcpy(a->dst + begin, a->src + begin, (size_t)(end - begin) * sizeof *a->dst);
}

void ISA_NAME(copy)(const KernelCtx *ctx, const void *args) {
    const Copy *a = args;
    if (a->rows <= 0 || a->cols <= 0)
        return;
    const bool flat = a->rows == 1 || (a->dst_stride == a->cols && a->src_stride == a->cols);
    if (flat)
        split_ranges(ctx, a, copy_flat, a->rows * a->cols, 1, 16);
    else
        split_ranges(ctx, a, copy_rows, a->rows, a->cols, 1);
}

static void fill_range(const void *args, int64_t begin, int64_t end) {
    const Fill *a = args;
    const float value = a->value;
    float *x = a->x;
    for (int64_t i = begin; i < end; i++)
        x[i] = value;
}

void ISA_NAME(fill)(const KernelCtx *ctx, const void *args) {
    split_ranges(ctx, args, fill_range, ((const Fill *)args)->n, 1, 16);
}

static void add_range(const void *args, int64_t begin, int64_t end) {
    const Add *a = args;
    const float *x = a->a, *y = a->b;
    float *dst = a->dst;
#pragma GCC ivdep
    for (int64_t i = begin; i < end; i++)
        dst[i] = x[i] + y[i];
    if (a->rounded)
        store_rounded(dst, dst, begin, end);
}

void ISA_NAME(add)(const KernelCtx *ctx, const void *args) {
    split_ranges(ctx, args, add_range, ((const Add *)args)->n, 1, 16);
}

static void scale_range(const void *args, int64_t begin, int64_t end) {
    const Scale *a = args;
    const float factor = a->factor;
    float *x = a->x;
    for (int64_t i = begin; i < end; i++)
        x[i] = x[i] * factor;
}

void ISA_NAME(scale)(const KernelCtx *ctx, const void *args) {
    split_ranges(ctx, args, scale_range, ((const Scale *)args)->n, 1, 16);
}
