/* Passes over one row of scores or logits, shared by attention and the loss. */
#ifndef DMUON_KERNELS_CPU_ROW_OPS_H
#define DMUON_KERNELS_CPU_ROW_OPS_H

#include "kernels/cpu/isa.h"

#define row_max ISA_NAME(row_max)
#define row_exp_sum ISA_NAME(row_exp_sum)
#define row_scale ISA_NAME(row_scale)
#define row_softmax ISA_NAME(row_softmax)
#define row_dot ISA_NAME(row_dot)
#define row_sum ISA_NAME(row_sum)

/* The maximum of x[0..n), -inf over nothing. A NaN is passed over; a zero counts as +0, whatever the order. */
float row_max(const float *x, int64_t n);

/* The lane sum of exp(x - max); where e is not NULL the exponentials are kept there (e may be x). */
float row_exp_sum(float *e, const float *x, int64_t n, float max);

/* x = x*factor */
void row_scale(float *x, int64_t n, float factor);

/* out = exp(x - max)*inverse; out may be x. */
void row_softmax(float *out, const float *x, int64_t n, float max, float inverse);

/* The lane sum of a*b, by fma. */
float row_dot(const float *a, const float *b, int64_t n);

/* The lane sum of x, by add. */
float row_sum(const float *x, int64_t n);

#endif
