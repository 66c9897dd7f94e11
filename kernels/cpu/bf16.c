/* Between binary32 and bf16, element by element. */
#include "kernels/cpu/isa.h"

#include "kernels/cpu/split.h"
#include "kernels/cpu/store.h"

static void round_range(const void *args, int64_t begin, int64_t end) {
    const RoundBf16 *a = args;
    store_rounded(a->y, a->x, begin, end);
    if (a->bits != NULL)
        store_bits(a->bits, a->y, begin, end);
}

void ISA_NAME(round_bf16)(const KernelCtx *ctx, const void *args) {
    split_ranges(ctx, args, round_range, ((const RoundBf16 *)args)->n, 1, 16);
}

static void pack_range(const void *args, int64_t begin, int64_t end) {
    const PackBf16 *a = args;
    const float *x = a->x;
    uint16_t *y = a->y;
    for (int64_t i = begin; i < end; i++)
        y[i] = exact_bf16(x[i]);
}

void ISA_NAME(pack_bf16)(const KernelCtx *ctx, const void *args) {
    split_ranges(ctx, args, pack_range, ((const PackBf16 *)args)->n, 1, 32);
}

static void unpack_range(const void *args, int64_t begin, int64_t end) {
    const UnpackBf16 *a = args;
    const uint16_t *x = a->x;
    float *y = a->y;
    for (int64_t i = begin; i < end; i++)
        y[i] = exact_from_bf16(x[i]);
}

void ISA_NAME(unpack_bf16)(const KernelCtx *ctx, const void *args) {
    split_ranges(ctx, args, unpack_range, ((const UnpackBf16 *)args)->n, 1, 32);
}
