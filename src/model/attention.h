/* The attention half of a decoder layer, from the normed input to o_proj's output, and back. */
#ifndef DMUON_MODEL_ATTENTION_H
#define DMUON_MODEL_ATTENTION_H

#include "model/activations.h"
#include "model/leaf.h"

/* y [N,C] = o_proj(attention(rope(norm(q, k)), v)) of acts->h. */
void attention_forward(const Leaf *leaf, const UnitParams *params, const LayerActs *acts, float *y);

/* scratch->dx [N,C]: the gradient of y, left alone. scratch->y [N,C]: out, the gradient of acts->h. Gradients of all
 * weights between are written. */
void attention_backward(const Leaf *leaf, const UnitParams *params, const LayerActs *acts, const Scratch *scratch);

#endif
