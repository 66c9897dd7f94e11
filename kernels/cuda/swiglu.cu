/* The gated unit and its gradient, element by element. */
#include "kernels/cuda/grid.h"
#include "kernels/cuda/store.h"

__global__ void swiglu_forward_kernel(SwigluForward p) {
    for (int64_t i = flat_begin(); i < flat_end(p.n); i += blockDim.x)
        p.a[i] = store_bf16(p.store, i, exact_swiglu(p.z[i], p.u[i]));
}

GRID_FLAT_ENTRY(swiglu_forward, SwigluForward)

__global__ void swiglu_backward_kernel(SwigluBackward p) {
    for (int64_t i = flat_begin(); i < flat_end(p.n); i += blockDim.x) {
        const ExactSwigluGrad grad = exact_swiglu_grad(p.da[i], p.z[i], p.u[i]);
        p.dz[i] = store_bf16(p.store_dz, i, grad.dz);
        p.du[i] = store_bf16(p.store_du, i, grad.du);
    }
}

GRID_FLAT_ENTRY(swiglu_backward, SwigluBackward)
