/* Which thread works on what, for kernels without products: flat arrays, matrices by element, matrices by row. Blocks
 * shrink with the problem, so that a small one does not start threads that have nothing to do. */
#ifndef DMUON_KERNELS_CUDA_GRID_H
#define DMUON_KERNELS_CUDA_GRID_H

#include "kernels/cuda/launch.h"

enum { GRID_THREADS = 256, GRID_PER_THREAD = 4, GRID_WARP = 32, GRID_MAX_Y = 65535 };

typedef struct Grid {
    dim3 blocks, threads;
} Grid;

static inline int64_t grid_ceil_div(int64_t x, int64_t y) {
    return (x + y - 1) / y;
}

/* The smallest power of two that is at least n and at least `least`, but not above `most`; both powers of two. */
static inline int64_t grid_power(int64_t n, int64_t least, int64_t most) {
    int64_t power = least;
    while (power < n && power < most)
        power *= 2;
    return power;
}

/* ---- flat arrays: for (int64_t i = flat_begin(); i < flat_end(n); i += blockDim.x) ---------------------------------
 */

static inline Grid grid_flat(int64_t n) {
    const int64_t threads = grid_power(grid_ceil_div(n, GRID_PER_THREAD), GRID_WARP, GRID_THREADS);
    const int64_t blocks = grid_ceil_div(n, threads * GRID_PER_THREAD);
    return Grid{dim3(static_cast<unsigned>(blocks)), dim3(static_cast<unsigned>(threads))};
}

static inline __device__ int64_t flat_begin() {
    return static_cast<int64_t>(blockIdx.x) * blockDim.x * GRID_PER_THREAD + threadIdx.x;
}

static inline __device__ int64_t flat_end(int64_t n) {
    const int64_t end = (static_cast<int64_t>(blockIdx.x) + 1) * blockDim.x * GRID_PER_THREAD;
    return end < n ? end : n;
}

/* The entry of name_kernel(Args) over a flat array of n elements. */
#define GRID_FLAT_ENTRY(name, Args)                                                                                    \
    void name##_cuda(const KernelCtx *ctx, const void *args) {                                                         \
        const Args *a = static_cast<const Args *>(args);                                                               \
        if (a->n <= 0)                                                                                                 \
            return;                                                                                                    \
        const Grid grid = grid_flat(a->n);                                                                             \
        launch_check(#name, KLAUNCH(name##_kernel, grid.blocks, grid.threads, 0, launch_stream(ctx), *a));             \
    }

/* ---- matrices by element: row matrix_row(), columns matrix_column() in steps of matrix_step() ---------------------
 */

static inline Grid grid_matrix(int64_t rows, int64_t cols) {
    const int64_t x = grid_power(grid_ceil_div(cols, GRID_PER_THREAD), 1, GRID_THREADS);
    const int64_t y = grid_power(rows, 1, GRID_THREADS / x);
    const int64_t chunks = grid_ceil_div(cols, x * GRID_PER_THREAD);
    return Grid{dim3(static_cast<unsigned>(grid_ceil_div(rows, y)),
                     static_cast<unsigned>(chunks < GRID_MAX_Y ? chunks : +GRID_MAX_Y)),
                dim3(static_cast<unsigned>(x), static_cast<unsigned>(y))};
}

static inline __device__ int64_t matrix_row() {
    return static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
}

static inline __device__ int64_t matrix_column() {
    return static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x;
}

static inline __device__ int64_t matrix_step() {
    return static_cast<int64_t>(gridDim.y) * blockDim.x;
}

/* ---- matrices by row, one warp each: all lanes of a warp share warp_row() -----------------------------------------
 */

static inline Grid grid_rows(int64_t rows) {
    const int64_t warps = grid_power(rows, 1, 4);
    return Grid{dim3(static_cast<unsigned>(grid_ceil_div(rows, warps))),
                dim3(static_cast<unsigned>(warps * GRID_WARP))};
}

static inline __device__ int64_t warp_row() {
    return static_cast<int64_t>(blockIdx.x) * (blockDim.x / GRID_WARP) + threadIdx.x / GRID_WARP;
}

static inline __device__ int warp_lane() {
    return static_cast<int>(threadIdx.x % GRID_WARP);
}

#endif
