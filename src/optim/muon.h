/* Muon on one whole matrix: momentum, Newton-Schulz, decoupled decay, scaled step. */
#ifndef DMUON_OPTIM_MUON_H
#define DMUON_OPTIM_MUON_H

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
/* grad [out,in] is overwritten. w, momentum updated. scratch as ns_run. */
void muon_update(const MuonStep *step, const NsPlan *plan, Stream *stream, float *w, float *momentum, float *grad, float *scratch);

#endif
