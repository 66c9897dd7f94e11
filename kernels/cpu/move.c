/* Copy, fill, add, scale, transpose. In-place calls alias exactly, element on element, which `ivdep` states. */
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
        store_rounded(dst, begin, end);
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

#define TILE 16

/* A square tile of rows read as whole cache lines; its columns are written as whole lines. */
static void transpose_tile(const Transpose *a, int64_t r0, int64_t c0) {
    float tile[TILE][TILE];
    const float *src = a->src + r0 * a->cols + c0;
    float *dst = a->dst + c0 * a->rows + r0;
    for (int r = 0; r < TILE; r++)
        for (int c = 0; c < TILE; c++)
            tile[c][r] = src[r * a->cols + c];
    for (int c = 0; c < TILE; c++)
        memcpy(dst + c * a->rows, tile[c], sizeof tile[c]);
}

static void transpose_edge(const Transpose *a, int64_t r0, int64_t r1, int64_t c0, int64_t c1) {
    for (int64_t r = r0; r < r1; r++)
        for (int64_t c = c0; c < c1; c++)
            a->dst[c * a->rows + r] = a->src[r * a->cols + c];
}

static void transpose_rows(const void *args, int64_t begin, int64_t end) {
    const Transpose *a = args;
    const int64_t whole_rows = begin + (end - begin) / TILE * TILE;
    const int64_t whole_cols = a->cols / TILE * TILE;
    for (int64_t r = begin; r < whole_rows; r += TILE) {
        for (int64_t c = 0; c < whole_cols; c += TILE)
            transpose_tile(a, r, c);
        transpose_edge(a, r, r + TILE, whole_cols, a->cols);
    }
    transpose_edge(a, whole_rows, end, 0, a->cols);
}

void ISA_NAME(transpose)(const KernelCtx *ctx, const void *args) {
    const Transpose *a = args;
    split_ranges(ctx, a, transpose_rows, a->rows, a->cols, TILE);
}
