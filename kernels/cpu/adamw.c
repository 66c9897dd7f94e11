/* One pass of AdamW over a flat shard. */
#include "kernels/cpu/isa.h"

#include "kernels/cpu/split.h"
#include "kernels/exact_math.h"

static void adamw_range(const void *args, int64_t begin, int64_t end) {
    const Adamw a = *(const Adamw *)args;
    float *restrict w = a.w, *restrict m = a.m, *restrict v = a.v;
    const float *restrict g = a.g;
    for (int64_t i = begin; i < end; i++) {
        const float grad = a.clipped ? g[i] * a.grad_factor : g[i];
        const ExactAdamw e = exact_adamw(&a, grad, (ExactAdamw){.w = w[i], .m = m[i], .v = v[i]});
        w[i] = e.w;
        m[i] = e.m;
        v[i] = e.v;
    }
}

void ISA_NAME(adamw)(const KernelCtx *ctx, const void *args) {
    split_ranges(ctx, args, adamw_range, ((const Adamw *)args)->n, 8, 16);
}
