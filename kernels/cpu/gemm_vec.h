/* The vector unit as the matrix product sees it: a handful of operations and the register tile they suit. The tile is
 * GEMM_MR rows by GEMM_NV vectors; it fills the register file but for the operands of one step.
 * DM_EMULATE_512 (tests only) builds the AVX-512 tile from AVX2 halves. */
#ifndef DMUON_KERNELS_CPU_GEMM_VEC_H
#define DMUON_KERNELS_CPU_GEMM_VEC_H

#if defined(DM_EMULATE_512)

#include <immintrin.h>

enum { GEMM_LANES = 16, GEMM_MR = 14, GEMM_NV = 2 };
typedef struct Vec {
    __m256 lo, hi;
} Vec;
static inline Vec vec_zero(void) {
    return (Vec){_mm256_setzero_ps(), _mm256_setzero_ps()};
}
static inline Vec vec_load(const float *p) {
    return (Vec){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
static inline void vec_store(float *p, Vec v) {
    _mm256_storeu_ps(p, v.lo);
    _mm256_storeu_ps(p + 8, v.hi);
}
static inline Vec vec_set1(float x) {
    return (Vec){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
static inline Vec vec_fma(Vec a, Vec b, Vec c) {
    return (Vec){_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
static inline Vec vec_add(Vec a, Vec b) {
    return (Vec){_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}

#elif defined(DM_ISA_avx512)

#include <immintrin.h>

enum { GEMM_LANES = 16, GEMM_MR = 14, GEMM_NV = 2 };
typedef __m512 Vec;
static inline Vec vec_zero(void) {
    return _mm512_setzero_ps();
}
static inline Vec vec_load(const float *p) {
    return _mm512_loadu_ps(p);
}
static inline void vec_store(float *p, Vec v) {
    _mm512_storeu_ps(p, v);
}
static inline Vec vec_set1(float x) {
    return _mm512_set1_ps(x);
}
static inline Vec vec_fma(Vec a, Vec b, Vec c) {
    return _mm512_fmadd_ps(a, b, c);
}
static inline Vec vec_add(Vec a, Vec b) {
    return _mm512_add_ps(a, b);
}

#elif defined(DM_ISA_avx2)

#include <immintrin.h>

enum { GEMM_LANES = 8, GEMM_MR = 6, GEMM_NV = 2 };
typedef __m256 Vec;
static inline Vec vec_zero(void) {
    return _mm256_setzero_ps();
}
static inline Vec vec_load(const float *p) {
    return _mm256_loadu_ps(p);
}
static inline void vec_store(float *p, Vec v) {
    _mm256_storeu_ps(p, v);
}
static inline Vec vec_set1(float x) {
    return _mm256_set1_ps(x);
}
static inline Vec vec_fma(Vec a, Vec b, Vec c) {
    return _mm256_fmadd_ps(a, b, c);
}
static inline Vec vec_add(Vec a, Vec b) {
    return _mm256_add_ps(a, b);
}

#else

#include <math.h>

enum { GEMM_LANES = 1, GEMM_MR = 4, GEMM_NV = 4 };
typedef float Vec;
static inline Vec vec_zero(void) {
    return 0.0f;
}
static inline Vec vec_load(const float *p) {
    return *p;
}
static inline void vec_store(float *p, Vec v) {
    *p = v;
}
static inline Vec vec_set1(float x) {
    return x;
}
static inline Vec vec_fma(Vec a, Vec b, Vec c) {
    return fmaf(a, b, c);
}
static inline Vec vec_add(Vec a, Vec b) {
    return a + b;
}

#endif

enum { GEMM_NR = GEMM_LANES * GEMM_NV, GEMM_TILE = GEMM_MR * GEMM_NR };

#endif
