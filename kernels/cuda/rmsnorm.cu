/* RMSNorm: forward, backward, and the gain's gradient. */
#include <math.h>

#include "kernels/cuda/grid.h"
#include "kernels/cuda/lanes.h"
#include "kernels/cuda/store.h"
#include "kernels/cuda/tree.h"

/* One warp per row. y may be x: a lane writes only what it alone reads, after the fold. */
__global__ void rmsnorm_forward_kernel(RmsnormForward a) {
    const int64_t r = warp_row();
    const int lane = warp_lane();
    if (r >= a.rows)
        return;
    const float *x = a.x + r * a.d;
    float squares = 0.0f;
    for (int64_t c = lane; c < a.d; c += LANES)
        squares = fmaf(x[c], x[c], squares);
    const float rstd = 1.0f / sqrtf(lanes_fold(squares) / static_cast<float>(a.d) + a.eps);
    if (lane == 0)
        a.rstd[r] = rstd;
    for (int64_t c = lane; c < a.d; c += LANES)
        a.y[r * a.d + c] = store_bf16(a.store, r * a.d + c, (x[c] * rstd) * a.w[c]);
}

void rmsnorm_forward_cuda(const KernelCtx *ctx, const void *args) {
    const RmsnormForward *a = static_cast<const RmsnormForward *>(args);
    if (a->rows <= 0)
        return;
    const Grid grid = grid_rows(a->rows);
    launch_check("rmsnorm_forward",
                 KLAUNCH(rmsnorm_forward_kernel, grid.blocks, grid.threads, 0, launch_stream(ctx), *a));
}

__global__ void rmsnorm_backward_kernel(RmsnormBackward a) {
    const int64_t r = warp_row();
    const int lane = warp_lane();
    if (r >= a.rows)
        return;
    const float *x = a.x + r * a.d, *dy = a.dy + r * a.d;
    const float rstd = a.rstd[r];
    float products = 0.0f;
    for (int64_t c = lane; c < a.d; c += LANES)
        products = fmaf(dy[c] * a.w[c], x[c] * rstd, products);
    const float mean = lanes_fold(products) / static_cast<float>(a.d);
    for (int64_t c = lane; c < a.d; c += LANES) {
        const float v = rstd * (dy[c] * a.w[c] - (x[c] * rstd) * mean);
        const float sum = a.residual == nullptr ? v : a.residual[r * a.d + c] + v;
        a.dx[r * a.d + c] = store_bf16(a.store, r * a.d + c, sum);
    }
}

void rmsnorm_backward_cuda(const KernelCtx *ctx, const void *args) {
    const RmsnormBackward *a = static_cast<const RmsnormBackward *>(args);
    if (a->rows <= 0)
        return;
    const Grid grid = grid_rows(a->rows);
    launch_check("rmsnorm_backward",
                 KLAUNCH(rmsnorm_backward_kernel, grid.blocks, grid.threads, 0, launch_stream(ctx), *a));
}

/* One thread per column of one run: heads outer, tokens inner. out [runs, d] */
__global__ void rmsnorm_gain_run_kernel(RmsnormGainGrad a, float *out) {
    const int64_t c = static_cast<int64_t>(blockIdx.x) * GRID_WARP + threadIdx.x;
    if (c >= a.d)
        return;
    const int64_t per_run = a.heads / a.runs, first = blockIdx.y * per_run;
    float sum = 0.0f;
    for (int64_t h = first; h < first + per_run; h++) {
        for (int64_t t = 0; t < a.tokens; t++) {
            const int64_t row = t * a.heads + h;
            sum = fmaf(a.dy[row * a.d + c], a.x[row * a.d + c] * a.rstd[row], sum);
        }
    }
    out[blockIdx.y * a.d + c] = sum;
}

enum { GAIN_LEVELS = 9 }; /* up to 256 runs */

__global__ void rmsnorm_gain_tree_kernel(RmsnormGainGrad a, const float *runs) {
    const int64_t c = static_cast<int64_t>(blockIdx.x) * GRID_WARP + threadIdx.x;
    if (c >= a.d)
        return;
    TreeCounter<float, GAIN_LEVELS> counter;
    for (int r = 0; r < a.runs; r++)
        tree_push(counter, static_cast<unsigned>(r), runs[r * a.d + c]);
    a.dw[c] = tree_total(counter, static_cast<unsigned>(a.runs));
}

void rmsnorm_gain_grad_cuda(const KernelCtx *ctx, const void *args) {
    const RmsnormGainGrad *a = static_cast<const RmsnormGainGrad *>(args);
    if (a->d <= 0)
        return;
    const cudaStream_t stream = launch_stream(ctx);
    const unsigned blocks = static_cast<unsigned>(grid_ceil_div(a->d, GRID_WARP));
    float *runs = a->dw;
    if (a->runs > 1)
        runs = static_cast<float *>(ctx->scratch(ctx, 0, static_cast<size_t>(a->runs * a->d) * sizeof *runs));
    launch_check("rmsnorm_gain_grad", KLAUNCH(rmsnorm_gain_run_kernel, dim3(blocks, static_cast<unsigned>(a->runs)),
                                              dim3(GRID_WARP), 0, stream, *a, runs));
    if (a->runs > 1)
        launch_check("rmsnorm_gain_grad",
                     KLAUNCH(rmsnorm_gain_tree_kernel, dim3(blocks), dim3(GRID_WARP), 0, stream, *a, runs));
}
