/* The bias of a projection: added to every row; its gradient is one chain of adds per column. */
#include "kernels/cuda/grid.h"

__global__ void bias_add_kernel(BiasAdd a) {
    const int64_t r = matrix_row();
    if (r >= a.rows)
        return;
    for (int64_t c = matrix_column(); c < a.cols; c += matrix_step())
        a.y[r * a.cols + c] = a.y[r * a.cols + c] + a.b[c];
}

void bias_add_cuda(const KernelCtx *ctx, const void *args) {
    const BiasAdd *a = static_cast<const BiasAdd *>(args);
    if (a->rows <= 0 || a->cols <= 0)
        return;
    const Grid grid = grid_matrix(a->rows, a->cols);
    launch_check("bias_add", KLAUNCH(bias_add_kernel, grid.blocks, grid.threads, 0, launch_stream(ctx), *a));
}

/* One thread per column; a block is one warp, because columns are few and each has a long way to go. */
__global__ void bias_grad_kernel(BiasGrad a) {
    const int64_t c = static_cast<int64_t>(blockIdx.x) * GRID_WARP + threadIdx.x;
    if (c >= a.cols)
        return;
    float sum = 0.0f;
    for (int64_t r = 0; r < a.rows; r++)
        sum = sum + a.dy[r * a.cols + c];
    a.db[c] = sum;
}

void bias_grad_cuda(const KernelCtx *ctx, const void *args) {
    const BiasGrad *a = static_cast<const BiasGrad *>(args);
    if (a->cols <= 0)
        return;
    const unsigned blocks = static_cast<unsigned>(grid_ceil_div(a->cols, GRID_WARP));
    launch_check("bias_grad", KLAUNCH(bias_grad_kernel, dim3(blocks), dim3(GRID_WARP), 0, launch_stream(ctx), *a));
}
