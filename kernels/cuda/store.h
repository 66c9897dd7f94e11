/* Results that are stored as the nearest bf16. C++ only. */
#ifndef DMUON_KERNELS_CUDA_STORE_H
#define DMUON_KERNELS_CUDA_STORE_H

#include "kernels/cuda/launch.h"
#include "kernels/exact_math.h"

static inline __device__ float store_rounded(bool rounded, float value) {
    return rounded ? exact_from_bf16(exact_bf16(value)) : value;
}

/* What element i becomes; its bits are written. */
static inline __device__ float store_bf16(const StoreBf16 &store, int64_t i, float value) {
    if (!store.rounded)
        return value;
    const uint16_t bits = exact_bf16(value);
    if (store.bits != nullptr)
        store.bits[i] = bits;
    return exact_from_bf16(bits);
}

#endif
