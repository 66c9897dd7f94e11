/* The one upward call of the engine: the model asks that a unit's weights be whole; who makes them so is not its
 * business. */
#ifndef DMUON_MODEL_RESIDENCY_H
#define DMUON_MODEL_RESIDENCY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

/* A unit is where hooks sit: 0 the embedding, 1..L the decoder layers, L+1 the final norm with the head. The order of
 * one leaf: acquire(u, forward), release(u, forward) for u ascending; then acquire(u, backward), grads_done(u),
 * release(u, backward) descending. A tied embedding is the exception, since the head uses it: unit 0 is acquired for
 * the forward and not released; acquire(0, backward) comes right before acquire(L+1, backward); grads_done(0) and
 * release(0, backward) come last. A forward alone (evaluation, sampling) releases every unit, a tied embedding last. */
typedef struct Residency {
    void *self;
    /* Weights are whole, and in backward gradient storage is ready, for compute work queued after this call. */
    void (*acquire)(void *self, int unit, bool backward);
    /* May be resharded; storage may be reused. In backward, gradients of the unit are done with too. */
    void (*release)(void *self, int unit, bool backward);
    /* The unit's gradients of this leaf are final on this rank: reduce them. */
    void (*grads_done)(void *self, int unit);
    /* The arrays are indexed by ParamTable row. value: whole (tp-local) tensor, valid from acquire to release. grad:
     * where the backward writes (overwrites) the leaf's gradient, valid from backward acquire to grads_done. */
    float *const *value;
    uint16_t *const *bits; /* of values that are bf16: the same as 16 bits, NULL where they are not kept */
    float *const *grad;
} Residency;

#endif
