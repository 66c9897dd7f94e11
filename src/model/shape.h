/* The sizes of a Llama-like network, with what follows from them. */
#ifndef DMUON_MODEL_SHAPE_H
#define DMUON_MODEL_SHAPE_H

#include <stdbool.h>
#include <stdint.h>

#include "config/config.h"

/* Shape letters of the tree: B micro-batch, T sequence, C width, H query heads, K kv heads, D head size, F
 * feed-forward, V padded vocabulary. */
typedef struct ModelShape {
    int64_t C, L, H, K, D, F; /* L = layers */
    int64_t vocab;            /* real     */
    int64_t V;                /* vocabulary padded to a multiple of the segments, whatever tp is */
    int64_t max_T;
    double rope_theta;
    float eps;
    double init_std;
    bool tied, qkv_bias, qk_norm;
    int segments; /* S, lowered           */
    int kv_runs;  /* P: largest power of two dividing K: runs of q_norm's and k_norm's gradients */
} ModelShape;

ModelShape model_shape(const Config *config);
/* FLOPs of forward and backward of `tokens` tokens in sequences of length T (README, "MFU"):
 *   tokens * (6*(elements of the layers' matrices + vocab*C of the head) + 6*D*(T+1)*H*L of causal attention). */
double model_flops(const ModelShape *shape, int64_t tokens, int64_t T);
/* The forward alone: a third of it. */
double model_forward_flops(const ModelShape *shape, int64_t tokens, int64_t T);

#endif
