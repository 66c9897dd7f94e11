/* The final norm, the projection to the vocabulary, and the loss. */
#ifndef DMUON_MODEL_HEAD_H
#define DMUON_MODEL_HEAD_H

#include <stdint.h>

#include "model/activations.h"
#include "model/leaf.h"

/* The final norm's gain [C] and the head's weight [V,C], which a tied model takes from the embedding. */
typedef struct HeadParams {
    const float *gain;
    Operand weight;
    float *dgain, *dweight;
} HeadParams;

/* Logits of rows [first, first + rows) of acts->x, into the first `rows` rows of acts->logits. */
void head_logits(const Leaf *leaf, HeadParams params, const HeadActs *acts, int64_t first, int64_t rows);

/* acts->token_loss [N] from the logits of the whole leaf. */
void head_token_loss(const Leaf *leaf, const HeadActs *acts, const int32_t *targets);
/* acts->loss = the mean of the token losses. */
void head_leaf_loss(const Leaf *leaf, const HeadActs *acts);
/* acts->window_sum [B] = the sum of each sequence's token losses. */
void head_window_sums(const Leaf *leaf, const HeadActs *acts);

/* The first row of acts->logits over the whole vocabulary [V] (device). Collective over tp. */
const float *head_whole_logits(const Leaf *leaf, const HeadActs *acts);

/* Turns the logits into their gradient, writes the gradients of the parameters, and that of acts->x to scratch->dx. */
void head_backward(const Leaf *leaf, HeadParams params, const HeadActs *acts, const int32_t *targets,
                   const Scratch *scratch);

#endif
