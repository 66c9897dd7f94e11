/* Muon on whole matrices: momentum, Newton-Schulz, decoupled decay, scaled step. */
#ifndef DMUON_OPTIM_MUON_H
#define DMUON_OPTIM_MUON_H

#include "device/device.h"
#include "optim/newton_schulz.h"

typedef struct MuonStep {
    double lr, weight_decay, momentum; /* lr with the schedule applied */
    bool nesterov;
    MuonScale scale;
    bool clipped;
    float grad_factor; /* used when clipped */
} MuonStep;

/* 0.2*sqrt(max(m,n)) or sqrt(max(1, m/n)), m = out, n = in. */
double muon_scale(MuonScale scale, int64_t out, int64_t in);
/* From whole gradients to the directions of their steps: each matrix of the batch becomes NS of the momentum, each
 * momentum [out,in] is updated. scratch as ns_run. `repeat`: of these matrices, across steps; it may be NULL. */
void muon_direction(const MuonStep *step, const NsBatch *batch, float *const *momentum, Stream *stream, float *scratch,
                    Repeat *repeat);
/* The same for this rank's slices of a matrix that stays cut. Collective over slice->tp. */
void muon_direction_slice(const MuonStep *step, const NsPlan *plan, const NsSlice *slice, Stream *stream,
                          float *momentum, float *grad, float *scratch);
/* w -= lr*wd*w, then w -= lr*s*direction, [n] elements of the matrix of `plan`, whichever. */
void muon_apply(const MuonStep *step, const NsPlan *plan, Stream *stream, float *w, const float *direction, int64_t n);

#endif
