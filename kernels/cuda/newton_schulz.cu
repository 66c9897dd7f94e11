/* The elementwise parts of Newton-Schulz: scaling, combination of products, the diagonal. */
#include "kernels/cuda/grid.h"
#include "kernels/cuda/tree.h"
#include "kernels/exact_math.h"

__global__ void ns_scale_pow2_kernel(NsScalePow2 a) {
    const float abs_max = *a.abs_max;
    const ExactPow2 factor = exact_ns_scale(abs_max);
    for (int64_t i = flat_begin(); i < flat_end(a.n); i += blockDim.x)
        a.y[i] = abs_max == 0.0f ? 0.0f : a.x[i] * factor.first * factor.second;
}

GRID_FLAT_ENTRY(ns_scale_pow2, NsScalePow2)

enum { NORM_LEVELS = 16 }; /* far more segments than there are */

/* One thread of a block makes the norm for all of them. */
__global__ void ns_normalize_kernel(NsNormalize a) {
    __shared__ float shared_norm;
    if (threadIdx.x == 0) {
        TreeCounter<double, NORM_LEVELS> counter;
        for (int s = 0; s < a.nsegments; s++)
            tree_push(counter, static_cast<unsigned>(s), a.sumsq[s]);
        shared_norm = static_cast<float>(sqrt(tree_total(counter, static_cast<unsigned>(a.nsegments))));
    }
    __syncthreads();
    const float norm = shared_norm;
    for (int64_t i = flat_begin(); i < flat_end(a.n); i += blockDim.x)
        a.y[i] = norm == 0.0f ? 0.0f : a.x[i] / norm;
}

GRID_FLAT_ENTRY(ns_normalize, NsNormalize)

__global__ void ns_combine_kernel(NsCombine a) {
    for (int64_t i = flat_begin(); i < flat_end(a.n); i += blockDim.x)
        a.out[i] = a.scale_y ? exact_ns_combine(a.c, a.x[i], a.b, a.y[i]) : fmaf(a.c, a.x[i], a.y[i]);
}

GRID_FLAT_ENTRY(ns_combine, NsCombine)

__global__ void add_diagonal_kernel(AddDiagonal a) {
    const int64_t r = matrix_row();
    if (r >= a.m)
        return;
    for (int64_t c = matrix_column(); c < a.m; c += matrix_step()) {
        const float x = a.x[r * a.m + c];
        a.out[r * a.m + c] = c == r ? x + a.a : x;
    }
}

__global__ void add_diagonal_in_place_kernel(AddDiagonal a) {
    for (int64_t i = flat_begin(); i < flat_end(a.m); i += blockDim.x)
        a.out[i * a.m + i] = a.out[i * a.m + i] + a.a;
}

void add_diagonal_cuda(const KernelCtx *ctx, const void *args) {
    const AddDiagonal *a = static_cast<const AddDiagonal *>(args);
    if (a->m <= 0)
        return;
    const Grid grid = a->out == a->x ? grid_flat(a->m) : grid_matrix(a->m, a->m);
    const cudaError_t error =
        a->out == a->x ? KLAUNCH(add_diagonal_in_place_kernel, grid.blocks, grid.threads, 0, launch_stream(ctx), *a)
                       : KLAUNCH(add_diagonal_kernel, grid.blocks, grid.threads, 0, launch_stream(ctx), *a);
    launch_check("add_diagonal", error);
}
