/* AdamW on one flat run of elements. */
#ifndef DMUON_OPTIM_ADAMW_H
#define DMUON_OPTIM_ADAMW_H

#include "device/device.h"

typedef struct AdamwStep {
    double lr, beta1, beta2, eps,
        weight_decay; /* lr with the schedule applied; weight_decay 0 for parameters that are not decayed */
    int64_t t;        /* applied updates, from 1 */
    bool clipped;
    float grad_factor;
} AdamwStep;

void adamw_update(const AdamwStep *step, Stream *stream, float *w, float *m, float *v, const float *g, int64_t n);

#endif
