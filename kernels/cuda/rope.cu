/* Rotate-half position encoding, in place, and its inverse. */
#include <math.h>

#include "kernels/cuda/grid.h"
#include "kernels/cuda/store.h"

/* A thread turns pairs of one token: pair c is pair c mod d/2 of head c / (d/2). */
__global__ void rope_kernel(Rope a) {
    const int64_t i = matrix_row();
    if (i >= a.n)
        return;
    const unsigned half = static_cast<unsigned>(a.d / 2);
    const int64_t row = i % a.T * half;
    const float sign = a.inverse ? -1.0f : 1.0f;
    for (int64_t c = matrix_column(); c < a.heads * half; c += matrix_step()) {
        const unsigned head = static_cast<unsigned>(c) / half, j = static_cast<unsigned>(c) % half;
        const int64_t at = i * a.stride + head * a.d + j;
        const float x0 = a.x[at], x1 = a.x[at + half];
        const float cosine = a.cos[row + j], sine = sign * a.sin[row + j];
        a.x[at] = store_bf16(a.store, at, fmaf(-x1, sine, x0 * cosine));
        a.x[at + half] = store_bf16(a.store, at + half, fmaf(x0, sine, x1 * cosine));
    }
}

void rope_cuda(const KernelCtx *ctx, const void *args) {
    const Rope *a = static_cast<const Rope *>(args);
    if (a->n <= 0 || a->heads <= 0)
        return;
    const Grid grid = grid_matrix(a->n, a->heads * (a->d / 2));
    launch_check("rope", KLAUNCH(rope_kernel, grid.blocks, grid.threads, 0, launch_stream(ctx), *a));
}
