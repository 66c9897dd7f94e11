/* Copy, fill, add, scale. In-place calls alias exactly, element on element. */
#include "kernels/cuda/grid.h"
#include "kernels/cuda/store.h"

__global__ void copy_kernel(Copy a) {
    const int64_t r = matrix_row();
    if (r >= a.rows)
        return;
    for (int64_t c = matrix_column(); c < a.cols; c += matrix_step())
        a.dst[r * a.dst_stride + c] = a.src[r * a.src_stride + c];
}

__global__ void copy_flat_kernel(float *dst, const float *src, int64_t n) {
    for (int64_t i = flat_begin(); i < flat_end(n); i += blockDim.x)
        dst[i] = src[i];
}

void copy_cuda(const KernelCtx *ctx, const void *args) {
    const Copy *a = static_cast<const Copy *>(args);
    if (a->rows <= 0 || a->cols <= 0)
        return;
    if (a->rows == 1 || (a->dst_stride == a->cols && a->src_stride == a->cols)) {
        const Grid flat = grid_flat(a->rows * a->cols);
        launch_check("copy", KLAUNCH(copy_flat_kernel, flat.blocks, flat.threads, 0, launch_stream(ctx), a->dst, a->src,
                                     a->rows * a->cols));
        return;
    }
    const Grid grid = grid_matrix(a->rows, a->cols);
    launch_check("copy", KLAUNCH(copy_kernel, grid.blocks, grid.threads, 0, launch_stream(ctx), *a));
}

__global__ void fill_kernel(Fill a) {
    for (int64_t i = flat_begin(); i < flat_end(a.n); i += blockDim.x)
        a.x[i] = a.value;
}

GRID_FLAT_ENTRY(fill, Fill)

__global__ void add_kernel(Add a) {
    for (int64_t i = flat_begin(); i < flat_end(a.n); i += blockDim.x)
        a.dst[i] = store_rounded(a.rounded, a.a[i] + a.b[i]);
}

GRID_FLAT_ENTRY(add, Add)

__global__ void scale_kernel(Scale a) {
    for (int64_t i = flat_begin(); i < flat_end(a.n); i += blockDim.x)
        a.x[i] = a.x[i] * a.factor;
}

GRID_FLAT_ENTRY(scale, Scale)
