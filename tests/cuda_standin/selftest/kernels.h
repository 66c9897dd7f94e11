/* Launchers of the self-tests' kernels. All sizes in elements. */
#ifndef CUDA_STANDIN_SELFTEST_KERNELS_H
#define CUDA_STANDIN_SELFTEST_KERNELS_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* y += a*x. */
cudaError_t add_scaled_launch(float *y, const float *x, float a, int64_t n, cudaStream_t stream);
/* sum[r] = the sum of row r of x, [rows, cols], through shared memory. Not `barrier`: without the __syncthreads. */
cudaError_t row_sum_launch(float *sum, const float *x, int rows, int cols, int barrier, cudaStream_t stream);
/* Each tile of `tile` elements backwards, through dynamic shared memory; n is a multiple of it. */
cudaError_t reverse_launch(float *y, const float *x, int tile, int64_t n, cudaStream_t stream);
/* May take up to this many elements of dynamic shared memory from now on. */
cudaError_t reverse_allow(int tile);

#define WARP_RESULTS 16
/* out[thread][i]: what each warp function gives; see warp_expected in api.c. */
cudaError_t warp_functions_launch(double *out, int nthreads, cudaStream_t stream);

typedef struct Window {
    float *y;
    int64_t offset, n;
} Window;
/* window.y[offset + i] = i: pointers inside a struct. */
cudaError_t fill_window_launch(Window window, cudaStream_t stream);

/* Kernels that are wrong. */
typedef enum Wrong { WRONG_DIVERGENT_BARRIER, WRONG_ABSENT_LANES, WRONG_MISALIGNED, WRONG_SHARED_OVERRUN } Wrong;
cudaError_t wrong_launch(Wrong wrong, float *y, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
