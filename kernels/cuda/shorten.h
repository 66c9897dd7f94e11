/* One element on its way into an operand of the vendor's products: rounded once, to nearest even. C++ only. */
#ifndef DMUON_KERNELS_CUDA_SHORTEN_H
#define DMUON_KERNELS_CUDA_SHORTEN_H

#include <cuda_bf16.h>
#include <cuda_fp16.h>

/* The second argument only names the type. */
static inline __device__ __nv_bfloat16 shorten(float x, const __nv_bfloat16 *) {
    return __float2bfloat16_rn(x);
}

static inline __device__ __half shorten(float x, const __half *) {
    return __float2half_rn(x);
}

static inline __device__ float shorten(float x, const float *) {
    return x;
}

#endif
