/* Causal grouped-query attention with its projections, optional biases and optional norms on each query and key head.
 */
#include "model/attention.h"

#include <math.h>

#include "model/linear.h"
#include "model/norm.h"
#include "tensor/ops.h"

/* Queries or keys of the leaf: what differs between the two on the way from the projection to attention. */
typedef struct Heads {
    int64_t count; /* heads of this rank             */
    float *raw;    /* before the norm; NULL without  */
    float *rstd;
    float *x; /* [N, count*D] after the rotation */
    Slot weight, bias, norm;
} Heads;

static Heads query_heads(const Leaf *leaf, const LayerActs *a) {
    return (Heads){leaf->local.H, a->q_raw, a->rstd_q, a->q, SLOT_Q, SLOT_Q_BIAS, SLOT_Q_NORM};
}

static Heads key_heads(const Leaf *leaf, const LayerActs *a) {
    return (Heads){leaf->local.K, a->k_raw, a->rstd_k, a->k, SLOT_K, SLOT_K_BIAS, SLOT_K_NORM};
}

static LinearDims head_dims(const Leaf *leaf, int64_t heads) {
    return linear_dims(leaf_tokens(leaf), heads * leaf->shape->D, leaf->shape->C);
}

static void rotate(const Leaf *leaf, Operand x, int64_t heads, bool inverse) {
    const int64_t D = leaf->shape->D;
    ops_rope(leaf->stream, (Rope){.x = x.x,
                                  .cos = leaf->rope.cos,
                                  .sin = leaf->rope.sin,
                                  .n = leaf_tokens(leaf),
                                  .heads = heads,
                                  .d = D,
                                  .stride = heads * D,
                                  .T = leaf->T,
                                  .store = leaf_store(leaf, x),
                                  .inverse = inverse});
}

static Norm head_norm(const Leaf *leaf, const UnitParams *p, Heads heads) {
    return (Norm){.x = heads.raw,
                  .gain = p->value[heads.norm].x,
                  .rstd = heads.rstd,
                  .tokens = leaf_tokens(leaf),
                  .heads = heads.count,
                  .d = leaf->shape->D,
                  .runs = leaf->local.kv_runs,
                  .cut_heads = true};
}

static void heads_forward(const Leaf *leaf, const UnitParams *p, Operand h, Heads heads) {
    float *projected = heads.raw != NULL ? heads.raw : heads.x;
    linear_forward(leaf, head_dims(leaf, heads.count), projected, h, p->value[heads.weight], p->value[heads.bias].x);
    if (heads.raw != NULL)
        norm_forward(leaf, head_norm(leaf, p, heads), leaf_only(heads.x));
    rotate(leaf, leaf_only(heads.x), heads.count, false);
}

/* The gradients of a projection's weight and bias from that of its output. */
static void projection_grads(const Leaf *leaf, const UnitParams *p, Operand dy, Operand h, Heads heads) {
    const LinearDims dims = head_dims(leaf, heads.count);
    linear_weight_grad(leaf, dims, p->grad[heads.weight], dy, h);
    if (p->grad[heads.bias] != NULL)
        ops_bias_grad(leaf->stream,
                      (BiasGrad){.db = p->grad[heads.bias], .dy = dy.x, .rows = dims.rows, .cols = dims.out});
}

/* dx: in the gradient of what attention took, out that of the projection's output. */
static void heads_backward(const Leaf *leaf, const UnitParams *p, Operand dx, Operand h, Heads heads) {
    rotate(leaf, dx, heads.count, true);
    if (heads.raw != NULL)
        norm_backward(leaf, head_norm(leaf, p, heads), dx, dx.x, NULL, p->grad[heads.norm]);
    projection_grads(leaf, p, dx, h, heads);
}

static float score_scale(const Leaf *leaf) {
    return (float)(1.0 / sqrt((double)leaf->shape->D));
}

void attention_forward(const Leaf *leaf, const UnitParams *params, const LayerActs *acts, float *y) {
    const int64_t D = leaf->shape->D, H = leaf->local.H, K = leaf->local.K;
    heads_forward(leaf, params, acts->h, query_heads(leaf, acts));
    heads_forward(leaf, params, acts->h, key_heads(leaf, acts));
    linear_forward(leaf, head_dims(leaf, K), acts->v, acts->h, params->value[SLOT_V], params->value[SLOT_V_BIAS].x);
    ops_attention_forward(leaf->stream, (AttentionForward){.o = acts->o.x,
                                                           .max = acts->att_max,
                                                           .sum = acts->att_sum,
                                                           .q = acts->q,
                                                           .k = acts->k,
                                                           .v = acts->v,
                                                           .B = leaf->B,
                                                           .T = leaf->T,
                                                           .H = H,
                                                           .K = K,
                                                           .D = D,
                                                           .q_stride = H * D,
                                                           .kv_stride = K * D,
                                                           .o_stride = H * D,
                                                           .scale = score_scale(leaf)});
    leaf_stored(leaf, acts->o, leaf_tokens(leaf) * H * D);
    const LinearDims out = linear_dims(leaf_tokens(leaf), leaf->shape->C, H * D);
    linear_forward_cut(leaf, out, y, acts->o, params->value[SLOT_O]);
}

static void scores_backward(const Leaf *leaf, const LayerActs *acts, const Scratch *scratch) {
    const int64_t D = leaf->shape->D, H = leaf->local.H, K = leaf->local.K;
    ops_attention_backward(leaf->stream, (AttentionBackward){.dq = scratch->dq.x,
                                                             .dk = scratch->dk.x,
                                                             .dv = scratch->dv.x,
                                                             .d_o = scratch->d_o,
                                                             .q = acts->q,
                                                             .k = acts->k,
                                                             .v = acts->v,
                                                             .o = acts->o.x,
                                                             .max = acts->att_max,
                                                             .sum = acts->att_sum,
                                                             .B = leaf->B,
                                                             .T = leaf->T,
                                                             .H = H,
                                                             .K = K,
                                                             .D = D,
                                                             .q_stride = H * D,
                                                             .kv_stride = K * D,
                                                             .o_stride = H * D,
                                                             .scale = score_scale(leaf)});
    leaf_stored(leaf, scratch->dq, leaf_tokens(leaf) * H * D);
    leaf_stored(leaf, scratch->dk, leaf_tokens(leaf) * K * D);
    leaf_stored(leaf, scratch->dv, leaf_tokens(leaf) * K * D);
}

void attention_backward(const Leaf *leaf, const UnitParams *params, const LayerActs *acts, const Scratch *scratch) {
    const int64_t N = leaf_tokens(leaf), C = leaf->shape->C, D = leaf->shape->D;
    const int64_t q_out = leaf->local.H * D, kv_out = leaf->local.K * D;
    const LinearDims out = linear_dims(N, C, q_out);
    linear_weight_grad(leaf, out, params->grad[SLOT_O], scratch->dx, acts->o);
    linear_input_grad(leaf, out, scratch->d_o, scratch->dx, params->value[SLOT_O]);
    scores_backward(leaf, acts, scratch);
    heads_backward(leaf, params, scratch->dq, acts->h, query_heads(leaf, acts));
    heads_backward(leaf, params, scratch->dk, acts->h, key_heads(leaf, acts));
    projection_grads(leaf, params, scratch->dv, acts->h,
                     (Heads){.count = leaf->local.K, .weight = SLOT_V, .bias = SLOT_V_BIAS});
    const LinearPart parts[] = {
        {.dy = scratch->dq, .w = params->value[SLOT_Q], .out = q_out, .ld = q_out, .padded_out = q_out},
        {.dy = scratch->dk, .w = params->value[SLOT_K], .out = kv_out, .ld = kv_out, .padded_out = kv_out},
        {.dy = scratch->dv, .w = params->value[SLOT_V], .out = kv_out, .ld = kv_out, .padded_out = kv_out},
    };
    linear_input_grad_cut(leaf, scratch->y, N, C, parts, 3);
}
