/* Results that are stored as the nearest bf16. */
#ifndef DMUON_KERNELS_CPU_STORE_H
#define DMUON_KERNELS_CPU_STORE_H

#include "kernels/exact_math.h"
#include "kernels/kernels.h"

/* Elements [begin, end) of y, just computed, are in the cache still. */
static inline void store_rounded(float *y, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++)
        y[i] = exact_from_bf16(exact_bf16(y[i]));
}

static inline void store_bf16(const StoreBf16 *store, float *y, int64_t begin, int64_t end) {
    uint16_t *restrict bits = store->bits;
    if (!store->rounded)
        return;
    store_rounded(y, begin, end);
    for (int64_t i = begin; i < end && bits != NULL; i++)
        bits[i] = exact_bf16(y[i]); /* of a bf16 value: its upper half */
}

#endif
