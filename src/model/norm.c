/* RMSNorm over the width, or over each head. */
#include "model/norm.h"

#include "tensor/ops.h"

Norm norm_over_width(const Leaf *leaf, const float *x, const float *gain, float *rstd, int64_t rows) {
    return (Norm){.x = x, .gain = gain, .rstd = rstd, .tokens = rows, .heads = 1, .d = leaf->shape->C, .runs = 1};
}

void norm_forward(const Leaf *leaf, Norm norm, Operand y) {
    ops_rmsnorm_forward(leaf->stream, (RmsnormForward){.y = y.x,
                                                       .rstd = norm.rstd,
                                                       .x = norm.x,
                                                       .w = norm.gain,
                                                       .rows = norm.tokens * norm.heads,
                                                       .d = norm.d,
                                                       .store = leaf_store(leaf, y),
                                                       .eps = leaf->shape->eps});
}

void norm_backward(const Leaf *leaf, Norm norm, Operand dx, const float *dy, const float *residual, float *dgain) {
    ops_rmsnorm_gain_grad(leaf->stream, (RmsnormGainGrad){.dw = dgain,
                                                          .dy = dy,
                                                          .x = norm.x,
                                                          .rstd = norm.rstd,
                                                          .tokens = norm.tokens,
                                                          .heads = norm.heads,
                                                          .d = norm.d,
                                                          .runs = norm.runs});
    if (norm.cut_heads)
        comm_all_reduce(leaf->tp, leaf->stream, dgain, dgain, norm.d, DTYPE_F32,
                        leaf_tag(leaf, "tp norm gains", norm.d));
    ops_rmsnorm_backward(leaf->stream, (RmsnormBackward){.dx = dx.x,
                                                         .dy = dy,
                                                         .x = norm.x,
                                                         .w = norm.gain,
                                                         .rstd = norm.rstd,
                                                         .residual = residual,
                                                         .rows = norm.tokens * norm.heads,
                                                         .d = norm.d,
                                                         .store = leaf_store(leaf, dx)});
}
