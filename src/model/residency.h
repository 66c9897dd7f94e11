/* The one upward call of the engine: the model asks that a unit's weights be whole; who makes them so is not its business. */
#ifndef DMUON_MODEL_RESIDENCY_H
#define DMUON_MODEL_RESIDENCY_H

#include <stdbool.h>

#include "base/status.h"

/* A unit is where hooks sit: 0 the embedding, 1..L the decoder layers, L+1 the final norm with the head. */
typedef struct Residency {
    void *self;
    void (*acquire)(void *self, int unit, bool backward); /* weights whole, and in backward gradient storage ready, for compute work queued after this call */
    void (*release)(void *self, int unit, bool backward); /* may be resharded; storage may be reused. In backward, gradients of the unit are done with too */
    void (*grads_done)(void *self, int unit);             /* the unit's gradients of this leaf are final on this rank: reduce them */
    /* Both arrays are indexed by ParamTable row. value: whole (tp-local) tensor, valid from acquire to release. grad: where the
     * backward writes (overwrites) the leaf's gradient, valid from backward acquire to grads_done. */
    float *const *value;
    float *const *grad;
} Residency;

#endif
