/* The bias of a projection: added to every row; its gradient is one chain of adds per column. */
#include "kernels/cpu/isa.h"

#include "kernels/cpu/split.h"

static void add_rows(const void *args, int64_t begin, int64_t end) {
    const BiasAdd *a = args;
    const float *restrict b = a->b;
    for (int64_t r = begin; r < end; r++) {
        float *restrict y = a->y + r * a->cols;
        for (int64_t c = 0; c < a->cols; c++)
            y[c] = y[c] + b[c];
    }
}

void ISA_NAME(bias_add)(const KernelCtx *ctx, const void *args) {
    const BiasAdd *a = args;
    split_ranges(ctx, a, add_rows, a->rows, a->cols, 1);
}

static void grad_columns(const void *args, int64_t begin, int64_t end) {
    const BiasGrad *a = args;
    float *restrict db = a->db;
    for (int64_t c = begin; c < end; c++)
        db[c] = 0.0f;
    for (int64_t r = 0; r < a->rows; r++) {
        const float *restrict dy = a->dy + r * a->cols;
        for (int64_t c = begin; c < end; c++)
            db[c] = db[c] + dy[c];
    }
}

void ISA_NAME(bias_grad)(const KernelCtx *ctx, const void *args) {
    const BiasGrad *a = args;
    split_ranges(ctx, a, grad_columns, a->cols, a->rows + 1, 16);
}
