/* One decoder layer, forward and backward. */
#ifndef DMUON_MODEL_BLOCK_H
#define DMUON_MODEL_BLOCK_H

#include "model/activations.h"
#include "model/leaf.h"

/* Reads acts->x, fills the rest of acts, writes the layer's output [N,C] to `out` (NULL: everything but the output, as
 * the backward of a recomputed layer needs it). */
void block_forward(const Leaf *leaf, const UnitParams *params, const LayerActs *acts, const Scratch *scratch,
                   float *out);

/* scratch->dx: in the gradient of the layer's output, out that of its input. All gradients of the unit are written. */
void block_backward(const Leaf *leaf, const UnitParams *params, const LayerActs *acts, const Scratch *scratch);

#endif
