/* The network: forward and backward over one leaf (B sequences of T tokens) on the compute stream, unit by unit. Knows
 * parameters, not where they live. */
#ifndef DMUON_MODEL_MODEL_H
#define DMUON_MODEL_MODEL_H

#include "base/arena.h"
#include "comm/comm.h"
#include "device/device.h"
#include "model/params.h"
#include "model/residency.h"

typedef struct Model Model; /* opaque, owned by the session */

typedef struct ModelOptions {
    const ParamTable *params;   /* borrowed */
    const Residency *residency; /* borrowed; its fields may be filled after model_create */
    Device *device;             /* borrowed; NULL while measuring */
    Comm *tp;                   /* borrowed; size 1 without tensor parallelism; NULL while measuring */
    int tp_size;                /* read while measuring only: ranks of the tp axis, 0 like 1 */
    int64_t B, T;               /* a leaf: sequences, tokens per sequence (upper bounds) */
    bool recompute;             /* keep only each layer's input and recompute in backward */
    bool bf16; /* round activations and their gradients to bf16; the residency's weights are rounded already */
    bool bits; /* with bf16: keep what products read as 16 bits too */
} ModelOptions;

/* Places RoPE tables and activations in `arena` (may be measuring: nothing is touched then). */
DM_NODISCARD Status model_create(Model **model, const ModelOptions *options, Arena *arena);
void model_destroy(Model *model);

/* Bytes of activations, for --plan. */
size_t model_activation_nbytes(const ModelOptions *options);

/* Forward over tokens [B,T], targets [B,T] (host memory): the leaf loss, lane sum of the token losses times 1/(B*T),
 * stays in the model; read it with model_loss. Then backward: all gradients of the leaf are computed and reported.
 * Collective over tp and over whatever the residency uses. */
void model_forward_backward(Model *model, const int32_t *tokens, const int32_t *targets);
/* Forward only: window_sum [B] (host) = lane sum of each window's T token losses. */
void model_eval(Model *model, const int32_t *tokens, const int32_t *targets, float *window_sum);
/* Forward of one sequence of n <= T tokens: logits [vocab] of the last position, to the host. */
void model_logits(Model *model, const int32_t *tokens, int64_t n, float *logits);
/* The last model_forward_backward's leaf loss. */
float model_loss(Model *model);
/* Milliseconds spent in forward and backward since the last take. */
void model_take_times(Model *model, double *forward_ms, double *backward_ms);

#endif
