/* One decoder layer: x1 = x + attention(norm(x)), out = x1 + mlp(norm(x1)). A residual is added after the segments'
 * tree and the tp reduction, in the backward pass likewise. */
#include "model/block.h"

#include "model/attention.h"
#include "model/linear.h"
#include "model/norm.h"
#include "tensor/ops.h"

static Norm input_norm(const Leaf *leaf, const UnitParams *p, const LayerActs *a) {
    return norm_over_width(leaf, a->x, p->value[SLOT_INPUT_NORM].x, a->rstd, leaf_tokens(leaf));
}

static Norm post_norm(const Leaf *leaf, const UnitParams *p, const LayerActs *a) {
    return norm_over_width(leaf, a->x1, p->value[SLOT_POST_NORM].x, a->rstd2, leaf_tokens(leaf));
}

static void residual_add(const Leaf *leaf, float *out, const float *x, const float *y) {
    const int64_t n = leaf_tokens(leaf) * leaf->shape->C;
    ops_add(leaf->stream, (Add){.dst = out, .a = x, .b = y, .n = n, .rounded = leaf->bf16});
}

static void mlp_forward(const Leaf *leaf, const UnitParams *p, const LayerActs *a) {
    const int64_t N = leaf_tokens(leaf), F = leaf->local.F;
    const LinearDims in = linear_dims(N, F, leaf->shape->C);
    norm_forward(leaf, post_norm(leaf, p, a), a->h2);
    linear_forward(leaf, in, a->gate.x, a->h2, p->value[SLOT_GATE], NULL);
    linear_forward(leaf, in, a->up.x, a->h2, p->value[SLOT_UP], NULL);
    ops_swiglu_forward(
        leaf->stream,
        (SwigluForward){.a = a->a.x, .z = a->gate.x, .u = a->up.x, .n = N * F, .store = leaf_store(leaf, a->a)});
}

static void mlp_backward(const Leaf *leaf, const UnitParams *p, const LayerActs *a, const Scratch *s) {
    const int64_t N = leaf_tokens(leaf), F = leaf->local.F, C = leaf->shape->C;
    const LinearDims in = linear_dims(N, F, C), down = linear_dims(N, C, F);
    linear_weight_grad(leaf, down, p->grad[SLOT_DOWN], s->dx, a->a);
    linear_input_grad(leaf, down, s->da, s->dx, p->value[SLOT_DOWN]);
    const Operand dgate = a->gate, dup = a->up; /* in place: nothing needs the values again */
    ops_swiglu_backward(leaf->stream, (SwigluBackward){.dz = dgate.x,
                                                       .du = dup.x,
                                                       .da = s->da,
                                                       .z = a->gate.x,
                                                       .u = a->up.x,
                                                       .n = N * F,
                                                       .store_dz = leaf_store(leaf, dgate),
                                                       .store_du = leaf_store(leaf, dup)});
    linear_weight_grad(leaf, in, p->grad[SLOT_GATE], dgate, a->h2);
    linear_weight_grad(leaf, in, p->grad[SLOT_UP], dup, a->h2);
    const LinearPart parts[] = {
        {.dy = dgate, .w = p->value[SLOT_GATE], .out = F, .ld = F, .padded_out = F},
        {.dy = dup, .w = p->value[SLOT_UP], .out = F, .ld = F, .padded_out = F},
    };
    linear_input_grad_cut(leaf, s->y, N, C, parts, 2);
    norm_backward(leaf, post_norm(leaf, p, a), s->dx, s->y, s->dx.x, p->grad[SLOT_POST_NORM]);
}

void block_forward(const Leaf *leaf, const UnitParams *params, const LayerActs *acts, const Scratch *scratch,
                   float *out) {
    const int64_t N = leaf_tokens(leaf), C = leaf->shape->C;
    norm_forward(leaf, input_norm(leaf, params, acts), acts->h);
    attention_forward(leaf, params, acts, scratch->y);
    residual_add(leaf, acts->x1, acts->x, scratch->y);
    mlp_forward(leaf, params, acts);
    if (out == NULL)
        return;
    linear_forward_cut(leaf, linear_dims(N, C, leaf->local.F), scratch->y, acts->a, params->value[SLOT_DOWN]);
    residual_add(leaf, out, acts->x1, scratch->y);
}

void block_backward(const Leaf *leaf, const UnitParams *params, const LayerActs *acts, const Scratch *scratch) {
    mlp_backward(leaf, params, acts, scratch);
    attention_backward(leaf, params, acts, scratch);
    norm_backward(leaf, input_norm(leaf, params, acts), scratch->dx, scratch->y, scratch->dx.x,
                  params->grad[SLOT_INPUT_NORM]);
}
