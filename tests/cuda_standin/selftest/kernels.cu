#include "tests/cuda_standin/selftest/kernels.h"

#include "kernels/cuda/launch.h"

__global__ void add_scaled(float *__restrict__ y, const float *__restrict__ x, float a, int64_t n) {
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x)
        y[i] = __fmaf_rn(a, x[i], y[i]);
}

template <bool BARRIER> __global__ void __launch_bounds__(128) row_sum(float *sum, const float *x, int cols) {
    __shared__ float part[4];
    float value = 0.0f;
    for (int c = (int)threadIdx.x; c < cols; c += 128)
        value += x[(int64_t)blockIdx.x * cols + c];
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2)
        value += __shfl_down_sync(~0u, value, (unsigned)offset);
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = value;
    if (BARRIER)
        __syncthreads();
    if (threadIdx.x == 0)
        sum[blockIdx.x] = (part[0] + part[1]) + (part[2] + part[3]);
}

__global__ void reverse(float *y, const float *x, int tile) {
    DYN_SMEM(float, shared);
    const int64_t base = (int64_t)blockIdx.x * tile;
    for (int i = (int)threadIdx.x; i < tile; i += (int)blockDim.x)
        shared[i] = x[base + i];
    __syncthreads();
    for (int i = (int)threadIdx.x; i < tile; i += (int)blockDim.x)
        y[base + i] = shared[tile - 1 - i];
}

__global__ void warp_functions(double *out) {
    const int t = (int)threadIdx.x, lane = t % 32;
    const unsigned half = lane < 16 ? 0xffffu : 0xffff0000u;
    double *mine = out + (int64_t)t * WARP_RESULTS;
    mine[0] = __shfl_xor_sync(~0u, t, 5);
    mine[1] = __shfl_down_sync(~0u, (float)t, 3);
    mine[2] = __shfl_up_sync(~0u, (double)t + 0.25, 2);
    mine[3] = __shfl_sync(~0u, (long long)t << 40, 7) >> 40;
    mine[4] = __shfl_xor_sync(~0u, t, 1, 8);
    mine[5] = __shfl_down_sync(~0u, t, 6, 16);
    mine[6] = __ballot_sync(~0u, lane % 3 == 0);
    mine[7] = __any_sync(~0u, lane == 31);
    mine[8] = __all_sync(~0u, lane < 31);
    mine[9] = __shfl_sync(half, t, lane < 16 ? 2 : 18); /* the halves meet apart */
    __syncwarp();
    mine[10] = __syncthreads_count(lane < 5);
    mine[11] = __syncthreads_or(t == 1);
    mine[12] = __syncthreads_and(t != 1);
    mine[13] = __popc(half) + __ffs(8) + __clz(1);
    mine[14] = __uint_as_float(__float_as_uint((float)t));
    mine[15] = __fma_rn((double)t, 2.0, 1.0);
}

__global__ void fill_window(Window window) {
    for (int64_t i = threadIdx.x; i < window.n; i += blockDim.x)
        window.y[window.offset + i] = (float)i;
}

__global__ void divergent_barrier(float *y) {
    if (threadIdx.x < 40)
        __syncthreads();
    y[threadIdx.x] = 1.0f;
}

__global__ void absent_lanes(float *y) {
    if (threadIdx.x % 32 < 20)
        y[threadIdx.x] = __shfl_xor_sync(~0u, (float)threadIdx.x, 1);
}

__global__ void misaligned(float *y) {
    reinterpret_cast<float4 *>(y + 1)[threadIdx.x] = make_float4(0.0f, 1.0f, 2.0f, 3.0f);
}

__global__ void shared_overrun(float *y) {
    __shared__ float tile[32];
    tile[threadIdx.x] = (float)threadIdx.x;
    __syncthreads();
    y[threadIdx.x] = tile[threadIdx.x];
}

cudaError_t add_scaled_launch(float *y, const float *x, float a, int64_t n, cudaStream_t stream) {
    return KLAUNCH(add_scaled, (unsigned)((n + 255) / 256), 128, 0, stream, y, x, a, n);
}

cudaError_t row_sum_launch(float *sum, const float *x, int rows, int cols, int barrier, cudaStream_t stream) {
    return barrier ? KLAUNCH((row_sum<true>), (unsigned)rows, 128, 0, stream, sum, x, cols)
                   : KLAUNCH((row_sum<false>), (unsigned)rows, 128, 0, stream, sum, x, cols);
}

cudaError_t reverse_launch(float *y, const float *x, int tile, int64_t n, cudaStream_t stream) {
    return KLAUNCH(reverse, (unsigned)(n / tile), 64, (size_t)tile * sizeof(float), stream, y, x, tile);
}

cudaError_t reverse_allow(int tile) {
    return cudaFuncSetAttribute((const void *)reverse, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                tile * (int)sizeof(float));
}

cudaError_t warp_functions_launch(double *out, int nthreads, cudaStream_t stream) {
    return KLAUNCH(warp_functions, 1, (unsigned)nthreads, 0, stream, out);
}

cudaError_t fill_window_launch(Window window, cudaStream_t stream) {
    return KLAUNCH(fill_window, 1, 64, 0, stream, window);
}

cudaError_t wrong_launch(Wrong wrong, float *y, cudaStream_t stream) {
    switch (wrong) {
    case WRONG_DIVERGENT_BARRIER:
        return KLAUNCH(divergent_barrier, 1, 64, 0, stream, y);
    case WRONG_ABSENT_LANES:
        return KLAUNCH(absent_lanes, 1, 64, 0, stream, y);
    case WRONG_MISALIGNED:
        return KLAUNCH(misaligned, 1, 8, 0, stream, y);
    case WRONG_SHARED_OVERRUN:
        return KLAUNCH(shared_overrun, 1, 64, 0, stream, y);
    }
    return cudaErrorInvalidValue;
}
