/* Products with a weight w [out,in] and their gradients, with the segments of the dimensions that tensor parallelism
 * cuts. */
#ifndef DMUON_MODEL_LINEAR_H
#define DMUON_MODEL_LINEAR_H

#include <stdint.h>

#include "model/leaf.h"

/* x [rows,in]; y and dy [rows,out] with rows `ld` elements apart. out and in are this rank's. */
typedef struct LinearDims {
    int64_t rows, out, in, ld;
} LinearDims;

LinearDims linear_dims(int64_t rows, int64_t out, int64_t in); /* ld = out */

/* y = x * w^T, then + bias [out] unless NULL. One plain chain over `in` per element. ld = out. */
void linear_forward(const Leaf *leaf, LinearDims dims, float *y, Operand x, Operand w, const float *bias);

/* The same without a bias, kept in f32 whatever precision.compute: logits. */
void linear_logits(const Leaf *leaf, LinearDims dims, float *y, Operand x, Operand w);

/* y = tree over the segments of `in` of x * w^T: where tensor parallelism cuts `in` (o_proj, down_proj). ld = out. */
void linear_forward_cut(const Leaf *leaf, LinearDims dims, float *y, Operand x, Operand w);

/* dx [rows,in] = dy * w, one plain chain over `out` per element (o_proj, down_proj). */
void linear_input_grad(const Leaf *leaf, LinearDims dims, float *dx, Operand dy, Operand w);

/* One of the products that add up to an input's gradient. */
typedef struct LinearPart {
    Operand dy, w;      /* dy [rows, out] with rows `ld` apart, w [out, in]                           */
    int64_t out, ld;    /* rows of w that are real: the segments beyond them are cut short or empty   */
    int64_t padded_out; /* rows of w with its padding: what the segments divide                       */
} LinearPart;

/* dx [rows,in] = tree over the segments of `out` of ((part 0 + part 1) + part 2): where tensor parallelism cuts `out`
 * ({q,k,v}, {gate,up}, the head). 1 <= nparts <= 3. */
void linear_input_grad_cut(const Leaf *leaf, float *dx, int64_t rows, int64_t in, const LinearPart *parts, int nparts);

/* dw [out,in] = dy^T * x, one chain over the leaf's tokens per element. */
void linear_weight_grad(const Leaf *leaf, LinearDims dims, float *dw, Operand dy, Operand x);

#endif
