/* RMSNorm over the width, or over each head. */
#ifndef DMUON_MODEL_NORM_H
#define DMUON_MODEL_NORM_H

#include <stdint.h>

#include "model/leaf.h"

typedef struct Norm {
    const float *x;        /* [tokens, heads, d]                                            */
    const float *gain;     /* [d]                                                           */
    float *rstd;           /* [tokens, heads] written by the forward, read by the backward  */
    int64_t tokens, heads; /* heads 1: a norm over the width                                */
    int64_t d;
    bool cut_heads; /* tp cuts the heads: the tree over their runs goes on across the ranks */
    int runs;       /* of the gain's gradient; 1 over the width                      */
} Norm;

/* Over the width of `rows` rows of x. */
Norm norm_over_width(const Leaf *leaf, const float *x, const float *gain, float *rstd, int64_t rows);

/* y [tokens, heads, d] */
void norm_forward(const Leaf *leaf, Norm norm, Operand y);

/* dx = residual + the input's gradient (residual NULL: without it), dgain [d]. dx may alias dy or residual. */
void norm_backward(const Leaf *leaf, Norm norm, Operand dx, const float *dy, const float *residual, float *dgain);

#endif
