/* One pass of AdamW over a flat shard. */
#include "kernels/cuda/grid.h"
#include "kernels/exact_math.h"

__global__ void adamw_kernel(Adamw a) {
    for (int64_t i = flat_begin(); i < flat_end(a.n); i += blockDim.x) {
        const float grad = a.clipped ? a.g[i] * a.grad_factor : a.g[i];
        const ExactAdamw e = exact_adamw(&a, grad, ExactAdamw{a.w[i], a.m[i], a.v[i]});
        a.w[i] = e.w;
        a.m[i] = e.m;
        a.v[i] = e.v;
    }
}

GRID_FLAT_ENTRY(adamw, Adamw)
