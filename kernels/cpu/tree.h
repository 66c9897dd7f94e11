/* The tree of the numerics contract over a short array of scalars, in place of a library of reductions. */
#ifndef DMUON_KERNELS_CPU_TREE_H
#define DMUON_KERNELS_CPU_TREE_H

#include "kernels/cpu/isa.h"

#define tree_sum ISA_NAME(tree_sum)
#define tree_sum64 ISA_NAME(tree_sum64)

/* n = 0 gives +0, n = 1 gives x[0]. `stride` in elements. */
float tree_sum(const float *x, int64_t n);
double tree_sum64(const double *x, int64_t n, int64_t stride);

#endif
