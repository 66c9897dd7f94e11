/* Muon on one whole matrix: momentum, orthogonalisation, decoupled decay and the scaled step. */
#include "optim/muon.h"

#include <math.h>

#include "tensor/ops.h"

double muon_scale(MuonScale scale, int64_t out, int64_t in) {
    const double m = (double)out, n = (double)in;
    if (scale == SCALE_SPECTRAL)
        return sqrt(m > n ? m / n : 1.0);
    return 0.2 * sqrt(m > n ? m : n);
}

static void update_momentum(const MuonStep *step, Stream *stream, float *momentum, float *grad, int64_t n) {
    ops_muon_momentum(stream, (MuonMomentum){.out = grad,
                                             .momentum = momentum,
                                             .g = grad,
                                             .n = n,
                                             .clipped = step->clipped,
                                             .nesterov = step->nesterov,
                                             .grad_factor = step->grad_factor,
                                             .mu = (float)step->momentum});
}

void muon_direction(const MuonStep *step, const NsPlan *plan, Stream *stream, float *momentum, float *grad,
                    float *scratch) {
    update_momentum(step, stream, momentum, grad, plan->out * plan->in);
    ns_run(plan, stream, grad, scratch);
}

void muon_direction_slice(const MuonStep *step, const NsPlan *plan, const NsSlice *slice, Stream *stream,
                          float *momentum, float *grad, float *scratch) {
    update_momentum(step, stream, momentum, grad, ns_slice_nelem(plan, comm_size(slice->tp)));
    ns_run_slice(plan, slice, stream, grad, scratch);
}

void muon_apply(const MuonStep *step, const NsPlan *plan, Stream *stream, float *w, const float *direction, int64_t n) {
    ops_muon_apply(stream, (MuonApply){.w = w,
                                       .update = direction,
                                       .n = n,
                                       .lr_wd = (float)(step->lr * step->weight_decay),
                                       .lr_s = (float)(step->lr * muon_scale(step->scale, plan->out, plan->in))});
}
