/* Everything that a leaf's forward keeps for its backward, and the scratch of both, placed by one function that also
 * measures. */
#ifndef DMUON_MODEL_ACTIVATIONS_H
#define DMUON_MODEL_ACTIVATIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "model/leaf.h"

/* Of one decoder layer. N = B*T tokens; H, K, F this rank's. Operands are what products read. */
typedef struct LayerActs {
    float *x;                 /* [N,C] input                                               */
    Operand h;                /* [N,C] after input_layernorm                               */
    float *rstd;              /* [N]                                                       */
    float *q_raw, *k_raw;     /* [N,H*D], [N,K*D] before q_norm, k_norm; NULL without them */
    float *rstd_q, *rstd_k;   /* [N,H], [N,K]                                              */
    float *q, *k, *v;         /* [N,H*D], [N,K*D] as attention takes them                  */
    float *att_max, *att_sum; /* [B,H,T]                                                   */
    Operand o;                /* [N,H*D]                                                   */
    float *x1;                /* [N,C] after attention's residual                          */
    Operand h2;               /* [N,C] after post_attention_layernorm                      */
    float *rstd2;             /* [N]                                                       */
    Operand gate, up;         /* [N,F]; the backward writes their gradients over them, which are the operands */
    Operand a;                /* [N,F] SwiGLU's output                                     */
} LayerActs;

/* Of the final norm, the head and the loss. */
typedef struct HeadActs {
    float *x;               /* [N,C] the last layer's output                              */
    Operand h;              /* [N,C] after the final norm                                 */
    float *rstd;            /* [N]                                                        */
    Operand logits;         /* [N,V], columns [0, vocab) are defined; then their gradient, which is the operand */
    float *max, *sum, *z_t; /* [N]                                                        */
    float *parts;           /* [tp][2][N] every rank's maxima and target logits, under tp     */
    float *all_logits;      /* [V] of one row, under tp                                       */
    float *token_loss;      /* [N]                                                        */
    float *loss;            /* [1] of the leaf                                            */
    float *window_sum;      /* [B]                                                        */
} HeadActs;

/* Gradients in flight, shared by all layers. */
typedef struct Scratch {
    Operand dx;     /* [N,C] of the residual stream                              */
    float *y;       /* [N,C] a projection's output or a norm's output's gradient */
    float *da;      /* [N,F]                                                     */
    float *d_o;     /* [N,H*D]                                                   */
    Operand dq;     /* [N,H*D]                                                   */
    Operand dk, dv; /* [N,K*D]                                                   */
} Scratch;

typedef struct Activations {
    LayerActs *layer; /* [L] owned (heap). With recompute all but x are one layer's, shared */
    HeadActs head;
    Scratch scratch;
    int32_t *ids, *targets; /* [N] */
} Activations;

void activations_layout(Activations *acts, const Leaf *leaf, bool recompute, Arena *arena);
void activations_destroy(Activations *acts);

#endif
