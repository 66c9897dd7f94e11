/* Muon on whole matrices: momentum, orthogonalisation, decoupled decay and the scaled step. */
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

/* Newton-Schulz is the same launches in every step, unlike what takes the step's scalars. */
static void run_repeated(const NsBatch *batch, Stream *stream, float *scratch, Repeat *repeat) {
    struct {
        const void *scratch, *plan[NS_BATCH_MAX], *x[NS_BATCH_MAX];
    } key = {.scratch = scratch};
    for (int i = 0; i < batch->count; i++) {
        key.plan[i] = batch->plan[i];
        key.x[i] = batch->x[i];
    }
    if (repeat_begin(repeat, &key, sizeof key))
        return;
    ns_run(batch, stream, scratch);
    repeat_end(repeat);
}

void muon_direction(const MuonStep *step, const NsBatch *batch, float *const *momentum, Stream *stream, float *scratch,
                    Repeat *repeat) {
    for (int i = 0; i < batch->count; i++)
        update_momentum(step, stream, momentum[i], batch->x[i], batch->plan[i]->out * batch->plan[i]->in);
    run_repeated(batch, stream, scratch, repeat);
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
