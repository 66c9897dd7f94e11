/* Sums of squares in binary64 with an order of their own, for gradient norms and Frobenius norms; the largest
 * magnitude. */
#include <math.h>

#include "kernels/cuda/grid.h"
#include "kernels/cuda/lanes.h"
#include "kernels/exact_math.h"

/* The lane sum of the squares of x[0..n), by one warp. */
static __device__ double lane_squares(const float *x, int64_t n) {
    double squares = 0.0;
    for (int64_t c = warp_lane(); c < n; c += LANES)
        squares = fma(static_cast<double>(x[c]), static_cast<double>(x[c]), squares);
    return lanes_fold(squares);
}

/* sum [rows, pieces of a row]; one warp per piece */
__global__ void sum_squares_pieces_kernel(SumSquaresRows a, double *sum, int64_t pieces) {
    const int64_t piece = warp_row();
    if (piece >= a.rows * pieces)
        return;
    const int64_t r = piece / pieces, s = piece % pieces;
    const int64_t first = s * a.cols / pieces, last = (s + 1) * a.cols / pieces;
    const double squares = lane_squares(a.x + r * a.cols + first, last - first);
    if (warp_lane() == 0)
        sum[piece] = squares;
}

/* One block makes the tree over the rows of one segment, in place: neighbours add up, then neighbours of those.
 * Splitting at the largest power of two below n is the same as pairing from the left with what is left over passed on.
 */
__global__ void sum_squares_tree_kernel(SumSquaresRows a, double *sum, int64_t pieces) {
    const int64_t s = blockIdx.x;
    const int64_t first = pieces > 1 ? 0 : s * a.rows / a.nsegments;
    const int64_t last = pieces > 1 ? a.rows : (s + 1) * a.rows / a.nsegments;
    const int64_t n = last - first;
    double *x = sum + first * pieces + (pieces > 1 ? s : 0);
    for (int64_t reach = 1; reach < n; reach *= 2) {
        for (int64_t i = 2 * reach * threadIdx.x; i + reach < n; i += 2 * reach * blockDim.x)
            x[i * pieces] = x[i * pieces] + x[(i + reach) * pieces];
        __syncthreads();
    }
    if (threadIdx.x == 0)
        a.out[s] = n > 0 ? x[0] : 0.0;
}

void sum_squares_rows_cuda(const KernelCtx *ctx, const void *args) {
    const SumSquaresRows *a = static_cast<const SumSquaresRows *>(args);
    const cudaStream_t stream = launch_stream(ctx);
    const int64_t pieces = a->dim == 1 ? a->nsegments : 1;
    double *sum =
        static_cast<double *>(ctx->scratch(ctx, 0, static_cast<size_t>(a->rows * pieces + 1) * sizeof(double)));
    if (a->rows > 0) {
        const Grid grid = grid_rows(a->rows * pieces);
        launch_check("sum_squares_rows",
                     KLAUNCH(sum_squares_pieces_kernel, grid.blocks, grid.threads, 0, stream, *a, sum, pieces));
    }
    const int64_t longest = a->dim == 1 ? a->rows : grid_ceil_div(a->rows, a->nsegments);
    const int64_t threads = grid_power(longest / 2, 1, GRID_THREADS);
    launch_check("sum_squares_rows", KLAUNCH(sum_squares_tree_kernel, dim3(static_cast<unsigned>(a->nsegments)),
                                             dim3(static_cast<unsigned>(threads)), 0, stream, *a, sum, pieces));
}

enum { SQUARES_BLOCK = 1024 };

__global__ void sum_squares_blocks_kernel(SumSquaresBlocks a) {
    const int64_t b = warp_row();
    if (b >= a.nblocks)
        return;
    const double squares = lane_squares(a.x + SQUARES_BLOCK * b, a.size[b]);
    if (warp_lane() == 0)
        a.out[b] = squares;
}

void sum_squares_blocks_cuda(const KernelCtx *ctx, const void *args) {
    const SumSquaresBlocks *a = static_cast<const SumSquaresBlocks *>(args);
    if (a->nblocks <= 0)
        return;
    const Grid grid = grid_rows(a->nblocks);
    launch_check("sum_squares_blocks",
                 KLAUNCH(sum_squares_blocks_kernel, grid.blocks, grid.threads, 0, launch_stream(ctx), *a));
}

enum { MAGNITUDE_BLOCKS = 256 };

/* Magnitudes order as their bits do, and every NaN is above infinity: the maximum needs no order and loses no NaN. One
 * value per block; x [n] as bits, its sign removed. */
__global__ void abs_max_kernel(uint32_t *out, const float *x, int64_t n) {
    __shared__ uint32_t warp_largest[GRID_THREADS / GRID_WARP];
    uint32_t largest = 0;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
         i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
        const uint32_t magnitude = exact_bits(x[i]) & 0x7fffffffu;
        largest = magnitude > largest ? magnitude : largest;
    }
    UNROLL for (int half = LANES / 2; half > 0; half /= 2) {
        const uint32_t other = __shfl_down_sync(LANES_ALL, largest, half);
        largest = other > largest ? other : largest;
    }
    if (warp_lane() == 0)
        warp_largest[threadIdx.x / GRID_WARP] = largest;
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    for (unsigned w = 1; w < blockDim.x / GRID_WARP; w++)
        largest = warp_largest[w] > largest ? warp_largest[w] : largest;
    out[blockIdx.x] = largest;
}

void abs_max_cuda(const KernelCtx *ctx, const void *args) {
    const AbsMax *a = static_cast<const AbsMax *>(args);
    const cudaStream_t stream = launch_stream(ctx);
    uint32_t *out = reinterpret_cast<uint32_t *>(a->out); /* bits of a binary32 */
    const Grid grid = grid_flat(a->n > 0 ? a->n : 1);
    if (grid.blocks.x == 1) {
        launch_check("abs_max", KLAUNCH(abs_max_kernel, dim3(1), grid.threads, 0, stream, out, a->x, a->n));
        return;
    }
    const unsigned blocks = grid.blocks.x < MAGNITUDE_BLOCKS ? grid.blocks.x : unsigned{MAGNITUDE_BLOCKS};
    uint32_t *largest = static_cast<uint32_t *>(ctx->scratch(ctx, 0, MAGNITUDE_BLOCKS * sizeof *largest));
    launch_check("abs_max", KLAUNCH(abs_max_kernel, dim3(blocks), grid.threads, 0, stream, largest, a->x, a->n));
    launch_check("abs_max", KLAUNCH(abs_max_kernel, dim3(1), dim3(GRID_THREADS), 0, stream, out,
                                    reinterpret_cast<const float *>(largest), static_cast<int64_t>(blocks)));
}
