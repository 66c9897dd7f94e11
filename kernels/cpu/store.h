/* Results that are stored as the nearest bf16. */
#ifndef DMUON_KERNELS_CPU_STORE_H
#define DMUON_KERNELS_CPU_STORE_H

#include "kernels/exact_math.h"
#include "kernels/kernels.h"

/* Elements [begin, end): y = f32(bf16(x)). y may be x. */
static inline void store_rounded(float *y, const float *x, int64_t begin, int64_t end) {
#pragma GCC ivdep
    for (int64_t i = begin; i < end; i++)
        y[i] = exact_from_bf16(exact_bf16(x[i]));
}

/* bits = the 16 bits of y, which holds bf16 values: their upper halves. */
static inline void store_bits(uint16_t *restrict bits, const float *y, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++)
        bits[i] = exact_bf16(y[i]);
}

/* What a kernel has computed in y. */
static inline void store_bf16(const StoreBf16 *store, float *y, int64_t begin, int64_t end) {
    if (!store->rounded)
        return;
    store_rounded(y, y, begin, end);
    if (store->bits != NULL)
        store_bits(store->bits, y, begin, end);
}

#endif
