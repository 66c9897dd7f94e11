/* The elementwise parts of Muon around Newton-Schulz: momentum before it, the update of the weights after it. */
#include "kernels/cuda/grid.h"
#include "kernels/exact_math.h"

__global__ void muon_momentum_kernel(MuonMomentum a) {
    for (int64_t i = flat_begin(); i < flat_end(a.n); i += blockDim.x) {
        const float grad = a.clipped ? a.g[i] * a.grad_factor : a.g[i];
        const float moved = exact_momentum(a.mu, a.momentum[i], grad);
        a.momentum[i] = moved;
        a.out[i] = a.nesterov ? exact_momentum(a.mu, moved, grad) : moved;
    }
}

GRID_FLAT_ENTRY(muon_momentum, MuonMomentum)

__global__ void muon_apply_kernel(MuonApply a) {
    for (int64_t i = flat_begin(); i < flat_end(a.n); i += blockDim.x) {
        const float decayed = exact_descend(a.w[i], a.lr_wd, a.w[i]);
        a.w[i] = exact_descend(decayed, a.lr_s, a.update[i]);
    }
}

GRID_FLAT_ENTRY(muon_apply, MuonApply)
