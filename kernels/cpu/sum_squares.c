/* Sums of squares in binary64 with an order of their own, for gradient norms and Frobenius norms; the largest
 * magnitude. A square of a binary32 is exact in binary64, so adding it is the fma of the contract, bit for bit. */
#include "kernels/cpu/isa.h"

#include <string.h>

#include "kernels/cpu/lanes.h"
#include "kernels/cpu/split.h"
#include "kernels/cpu/tree.h"
#include "kernels/exact_math.h"

static double lane_squares(const float *restrict x, int64_t n) {
    double lane[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            lane[l] = lane[l] + (double)x[i + l] * (double)x[i + l];
    for (int64_t l = 0; l < n - i; l++)
        lane[l] = lane[l] + (double)x[i + l] * (double)x[i + l];
    return lanes_fold64(lane);
}

typedef struct RowSums {
    const SumSquaresRows *args;
    double *sum; /* [rows, pieces of a row] */
} RowSums;

static void sum_rows(const void *args, int64_t begin, int64_t end) {
    const RowSums *rows = args;
    const SumSquaresRows *a = rows->args;
    const int64_t pieces = a->dim == 1 ? a->nsegments : 1;
    for (int64_t r = begin; r < end; r++) {
        for (int64_t s = 0; s < pieces; s++) {
            const int64_t first = s * a->cols / pieces;
            const int64_t last = (s + 1) * a->cols / pieces;
            rows->sum[r * pieces + s] = lane_squares(a->x + r * a->cols + first, last - first);
        }
    }
}

void ISA_NAME(sum_squares_rows)(const KernelCtx *ctx, const void *args) {
    const SumSquaresRows *a = args;
    const int64_t pieces = a->dim == 1 ? a->nsegments : 1;
    const size_t nbytes = (size_t)(a->rows * pieces + 1) * sizeof(double);
    const RowSums rows = {.args = a, .sum = ctx->scratch(ctx, 0, nbytes)};
    split_ranges(ctx, &rows, sum_rows, a->rows, a->cols, 1);
    for (int64_t s = 0; s < a->nsegments; s++) {
        const int64_t first = a->dim == 1 ? 0 : s * a->rows / a->nsegments;
        const int64_t last = a->dim == 1 ? a->rows : (s + 1) * a->rows / a->nsegments;
        const double *sum = rows.sum + first * pieces + (a->dim == 1 ? s : 0);
        a->out[s] = tree_sum64(sum, last - first, pieces);
    }
}

#define BLOCK 1024

static void sum_blocks(const void *args, int64_t begin, int64_t end) {
    const SumSquaresBlocks *a = args;
    for (int64_t b = begin; b < end; b++)
        a->out[b] = lane_squares(a->x + BLOCK * b, a->size[b]);
}

void ISA_NAME(sum_squares_blocks)(const KernelCtx *ctx, const void *args) {
    const SumSquaresBlocks *a = args;
    split_ranges(ctx, a, sum_blocks, a->nblocks, BLOCK, 1);
}

#define MAX_PARTS 64

typedef struct Magnitudes {
    const AbsMax *args;
    uint32_t largest[MAX_PARTS];
    int nparts;
} Magnitudes;

/* Magnitudes order as their bits do, and every NaN is above infinity: the maximum needs no order and loses no NaN. */
static void max_part(void *arg, int item, int thread) {
    Magnitudes *parts = arg;
    const AbsMax *a = parts->args;
    (void)thread;
    uint32_t largest = 0;
    for (int64_t i = a->n * item / parts->nparts; i < a->n * (item + 1) / parts->nparts; i++) {
        const uint32_t magnitude = exact_bits(a->x[i]) & 0x7fffffffu;
        largest = magnitude > largest ? magnitude : largest;
    }
    parts->largest[item] = largest;
}

void ISA_NAME(abs_max)(const KernelCtx *ctx, const void *args) {
    const AbsMax *a = args;
    const int nparts = split_items(ctx, a->n, 1);
    Magnitudes parts = {.args = a, .nparts = nparts < MAX_PARTS ? nparts : MAX_PARTS};
    split_run(ctx, parts.nparts, max_part, &parts);
    uint32_t largest = 0;
    for (int i = 0; i < parts.nparts; i++)
        largest = parts.largest[i] > largest ? parts.largest[i] : largest;
    a->out[0] = exact_from_bits(largest);
}
