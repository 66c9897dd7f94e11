/* The elementary functions and element formulas of the numerics contract, from IEEE + - * / sqrt fma only.
 * Compiled by the C compiler and by nvcc; the C library's own are never used on a value that reaches a tensor. */
#ifndef DMUON_KERNELS_EXACT_MATH_H
#define DMUON_KERNELS_EXACT_MATH_H
/* Filled by the kernels room. Names: exact_exp, exact_log (binary32, at most 1 ulp), exact_sin64, exact_cos64,
 * exact_exp64, exact_log64 (binary64, for tables and initial weights only). */
#endif
