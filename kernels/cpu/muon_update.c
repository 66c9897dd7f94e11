/* The elementwise parts of Muon around Newton-Schulz: momentum before it, the update of the weights after it. */
#include "kernels/cpu/isa.h"

#include "kernels/cpu/split.h"
#include "kernels/exact_math.h"

static void momentum_range(const void *args, int64_t begin, int64_t end) {
    const MuonMomentum a = *(const MuonMomentum *)args;
    float *out = a.out, *momentum = a.momentum;
#pragma GCC ivdep
    for (int64_t i = begin; i < end; i++) {
        const float grad = a.clipped ? a.g[i] * a.grad_factor : a.g[i];
        const float moved = exact_momentum(a.mu, momentum[i], grad);
        momentum[i] = moved;
        out[i] = a.nesterov ? exact_momentum(a.mu, moved, grad) : moved;
    }
}

void ISA_NAME(muon_momentum)(const KernelCtx *ctx, const void *args) {
    split_ranges(ctx, args, momentum_range, ((const MuonMomentum *)args)->n, 1, 16);
}

static void apply_range(const void *args, int64_t begin, int64_t end) {
    const MuonApply a = *(const MuonApply *)args;
    float *restrict w = a.w;
    const float *restrict update = a.update;
    for (int64_t i = begin; i < end; i++) {
        const float decayed = exact_descend(w[i], a.lr_wd, w[i]);
        w[i] = exact_descend(decayed, a.lr_s, update[i]);
    }
}

void ISA_NAME(muon_apply)(const KernelCtx *ctx, const void *args) {
    split_ranges(ctx, args, apply_range, ((const MuonApply *)args)->n, 1, 16);
}
