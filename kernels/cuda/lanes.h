/* The lane sum of the numerics contract: a warp holds the 32 lanes, one per thread. Every lane calls these. */
#ifndef DMUON_KERNELS_CUDA_LANES_H
#define DMUON_KERNELS_CUDA_LANES_H

#include <math.h>

#include "kernels/cuda/launch.h"

enum { LANES = 32 };
#define LANES_ALL 0xffffffffu

/* lane[l] += lane[l+16], 8, 4, 2, 1. Both partners add the same two values, so every lane ends with that of lane 0. */
template <class T> static inline __device__ T lanes_fold(T lane) {
    UNROLL for (int half = LANES / 2; half > 0; half /= 2) lane = lane + __shfl_xor_sync(LANES_ALL, lane, half);
    return lane;
}

/* The largest of the lanes, none of them NaN, in every lane; a zero counts as +0. */
static inline __device__ float lanes_max(float lane) {
    UNROLL for (int half = LANES / 2; half > 0; half /= 2) {
        const float other = __shfl_xor_sync(LANES_ALL, lane, half);
        lane = other > lane ? other : lane;
    }
    return lane + 0.0f;
}

/* The larger of two, a NaN in x passed over. */
static inline __device__ float max_of(float largest, float x) {
    return x > largest ? x : largest;
}

#endif
