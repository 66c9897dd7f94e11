/* Rotate-half position encoding, in place, and its inverse. */
#include "kernels/cpu/isa.h"

#include <math.h>

#include "kernels/cpu/split.h"
#include "kernels/cpu/store.h"

static void rotate_head(float *restrict x0, float *restrict x1, const float *restrict cosine,
                        const float *restrict sine, int64_t half, float sign) {
    for (int64_t j = 0; j < half; j++) {
        const float a = x0[j], b = x1[j];
        const float c = cosine[j], s = sign * sine[j];
        x0[j] = fmaf(-b, s, a * c);
        x1[j] = fmaf(a, s, b * c);
    }
}

static void rotate_tokens(const void *args, int64_t begin, int64_t end) {
    const Rope *a = args;
    const int64_t half = a->d / 2;
    for (int64_t i = begin; i < end; i++) {
        const int64_t row = i % a->T * half;
        for (int64_t h = 0; h < a->heads; h++) {
            float *x = a->x + i * a->stride + h * a->d;
            rotate_head(x, x + half, a->cos + row, a->sin + row, half, a->inverse ? -1.0f : 1.0f);
        }
        store_bf16(&a->store, a->x, i * a->stride, i * a->stride + a->heads * a->d);
    }
}

void ISA_NAME(rope)(const KernelCtx *ctx, const void *args) {
    const Rope *a = args;
    split_ranges(ctx, a, rotate_tokens, a->n, a->heads * a->d, 1);
}
