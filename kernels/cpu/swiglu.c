/* The gated unit and its gradient, element by element. */
#include "kernels/cpu/isa.h"

#include "kernels/cpu/split.h"
#include "kernels/cpu/store.h"

#define COST 16 /* an exponential and a division, in elements of a plain addition */

static void forward_range(const void *args, int64_t begin, int64_t end) {
    const SwigluForward *p = args;
    const float *z = p->z, *u = p->u;
    float *a = p->a;
#pragma GCC ivdep
    for (int64_t i = begin; i < end; i++)
        a[i] = exact_swiglu(z[i], u[i]);
    store_bf16(&p->store, a, begin, end);
}

void ISA_NAME(swiglu_forward)(const KernelCtx *ctx, const void *args) {
    split_ranges(ctx, args, forward_range, ((const SwigluForward *)args)->n, COST, 16);
}

static void backward_range(const void *args, int64_t begin, int64_t end) {
    const SwigluBackward *p = args;
    const float *da = p->da, *z = p->z, *u = p->u;
    float *dz = p->dz, *du = p->du;
#pragma GCC ivdep
    for (int64_t i = begin; i < end; i++) {
        const ExactSwigluGrad grad = exact_swiglu_grad(da[i], z[i], u[i]);
        dz[i] = grad.dz;
        du[i] = grad.du;
    }
    store_bf16(&p->store_dz, dz, begin, end);
    store_bf16(&p->store_du, du, begin, end);
}

void ISA_NAME(swiglu_backward)(const KernelCtx *ctx, const void *args) {
    split_ranges(ctx, args, backward_range, ((const SwigluBackward *)args)->n, COST, 16);
}
