/* Cross-entropy over a vocabulary that may be split by columns: maximum, sum of exponentials, loss and gradient; and
 * the mean over tokens or windows. One row per token, rows are independent. */
#include "kernels/cuda/grid.h"
#include "kernels/cuda/lanes.h"
#include "kernels/cuda/tree.h"
#include "kernels/exact_math.h"

__global__ void loss_max_kernel(LossMax a) {
    const int64_t i = warp_row();
    if (i >= a.n)
        return;
    const float *z = a.z + i * a.ld;
    float largest = -INFINITY;
    for (int64_t c = warp_lane(); c < a.cols; c += LANES)
        largest = max_of(largest, z[c]);
    largest = lanes_max(largest);
    if (warp_lane() != 0)
        return;
    const int64_t target = a.target[i] - a.first_col;
    a.max[i] = largest;
    if (target >= 0 && target < a.cols)
        a.z_t[i] = z[target];
}

void loss_max_cuda(const KernelCtx *ctx, const void *args) {
    const LossMax *a = static_cast<const LossMax *>(args);
    if (a->n <= 0)
        return;
    const Grid grid = grid_rows(a->n);
    launch_check("loss_max", KLAUNCH(loss_max_kernel, grid.blocks, grid.threads, 0, launch_stream(ctx), *a));
}

enum { LOSS_LEVELS = 7 }; /* up to 64 segments */

__global__ void loss_sum_kernel(LossSum a) {
    const int64_t i = warp_row();
    if (i >= a.n)
        return;
    const float max = a.max[i];
    TreeCounter<float, LOSS_LEVELS> counter;
    for (int s = 0; s < a.nsegments; s++) {
        const int64_t first = s * a.segment;
        const int64_t end = first + a.segment < a.cols ? first + a.segment : a.cols;
        float sum = 0.0f;
        for (int64_t c = first + warp_lane(); c < end; c += LANES)
            sum = sum + exact_exp(a.z[i * a.ld + c] - max);
        tree_push(counter, static_cast<unsigned>(s), lanes_fold(sum));
    }
    if (warp_lane() == 0)
        a.sum[i] = tree_total(counter, static_cast<unsigned>(a.nsegments));
}

void loss_sum_cuda(const KernelCtx *ctx, const void *args) {
    const LossSum *a = static_cast<const LossSum *>(args);
    if (a->n <= 0)
        return;
    const Grid grid = grid_rows(a->n);
    launch_check("loss_sum", KLAUNCH(loss_sum_kernel, grid.blocks, grid.threads, 0, launch_stream(ctx), *a));
}

__global__ void loss_kernel(LossGrad a) {
    for (int64_t i = flat_begin(); i < flat_end(a.n); i += blockDim.x)
        a.loss[i] = exact_log(a.sum[i]) - (a.z_t[i] - a.max[i]);
}

__global__ void loss_grad_kernel(LossGrad a) {
    const int64_t i = matrix_row();
    if (i >= a.n)
        return;
    const float max = a.max[i], inverse = 1.0f / a.sum[i];
    const int64_t target = a.target[i] - a.first_col;
    for (int64_t c = matrix_column(); c < a.ld; c += matrix_step()) {
        float dz = 0.0f;
        if (c < a.cols) {
            const float p = exact_exp(a.z[i * a.ld + c] - max) * inverse;
            dz = (c == target ? p - 1.0f : p) * a.factor;
        }
        a.dz[i * a.ld + c] = dz;
    }
}

void loss_grad_cuda(const KernelCtx *ctx, const void *args) {
    const LossGrad *a = static_cast<const LossGrad *>(args);
    if (a->n <= 0)
        return;
    if (a->loss != nullptr) {
        const Grid grid = grid_flat(a->n);
        launch_check("loss_grad", KLAUNCH(loss_kernel, grid.blocks, grid.threads, 0, launch_stream(ctx), *a));
    }
    if (a->dz != nullptr && a->ld > 0) {
        const Grid grid = grid_matrix(a->n, a->ld);
        launch_check("loss_grad", KLAUNCH(loss_grad_kernel, grid.blocks, grid.threads, 0, launch_stream(ctx), *a));
    }
}

__global__ void lane_mean_kernel(LaneMean a) {
    const int64_t r = warp_row();
    if (r >= a.rows)
        return;
    float sum = 0.0f;
    for (int64_t c = warp_lane(); c < a.n; c += LANES)
        sum = sum + a.x[r * a.n + c];
    sum = lanes_fold(sum);
    if (warp_lane() == 0)
        a.out[r] = sum * a.factor;
}

void lane_mean_cuda(const KernelCtx *ctx, const void *args) {
    const LaneMean *a = static_cast<const LaneMean *>(args);
    if (a->rows <= 0)
        return;
    const Grid grid = grid_rows(a->rows);
    launch_check("lane_mean", KLAUNCH(lane_mean_kernel, grid.blocks, grid.threads, 0, launch_stream(ctx), *a));
}
