/* The elementary functions and element formulas of the numerics contract, from IEEE + - * / sqrt fma and integer
 * operations only, compiled by the C compiler and by nvcc: the same bits on every machine. The C library's own exp,
 * log, sin and cos are never used on a value that reaches a tensor. Code stands in this header, against the custom,
 * because both backends must inline the very same operations; binary32 bodies have no branches, so that loops over them
 * vectorise. Polynomials are minimax fits made in 300-bit arithmetic, their coefficients rounded once. */
#ifndef DMUON_KERNELS_EXACT_MATH_H
#define DMUON_KERNELS_EXACT_MATH_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "kernels/kernels.h"

#ifdef __CUDACC__
#define DM_HD __host__ __device__
#else
#define DM_HD
#endif

static inline DM_HD uint32_t exact_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline DM_HD float exact_from_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline DM_HD uint64_t exact_bits64(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline DM_HD double exact_from_bits64(uint64_t bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* 2^n as a binary32 (binary64); n must name a normal number. */
static inline DM_HD float exact_pow2(int32_t n) {
    return exact_from_bits((uint32_t)(n + 127) << 23);
}

static inline DM_HD double exact_pow2_64(int64_t n) {
    return exact_from_bits64((uint64_t)(n + 1023) << 52);
}

/* ---- bf16: the upper half of a binary32 ---------------------------------------------------------------------------
 */

/* To nearest even. A NaN is kept, quiet, so that a payload in the lower half does not become infinity. */
static inline DM_HD uint16_t exact_bf16(float x) {
    const uint32_t bits = exact_bits(x);
    const uint32_t nearest = bits + 0x7fffu + ((bits >> 16) & 1u);
    return (uint16_t)(((bits & 0x7fffffffu) > 0x7f800000u ? bits | 0x400000u : nearest) >> 16);
}

static inline DM_HD float exact_from_bf16(uint16_t x) {
    return exact_from_bits((uint32_t)x << 16);
}

/* ---- binary32, at most 1 ulp over the whole range --------------------------------------------------------------- */

/* exp(x) = fraction * 2^exponent, fraction in [0.7, 1.5): n = round(x/ln 2) by the magic addition 1.5*2^23 (exact under
 * round to nearest), r = x - n ln 2 in two parts, a polynomial for exp(r). */
typedef struct ExactExp {
    float fraction;
    uint32_t exponent;
} ExactExp;

static inline DM_HD ExactExp exact_exp_parts(float x) {
    const float magic = 12582912.0f;
    const float shifted = fmaf(x, 0x1.715476p+0f, magic);
    const float n = shifted - magic;
    float r = fmaf(n, -0x1.62e430p-1f, x);
    r = fmaf(n, 0x1.05c610p-29f, r);
    float p = 0x1.6a23d0p-10f;
    p = fmaf(p, r, 0x1.123a20p-7f);
    p = fmaf(p, r, 0x1.5558f2p-5f);
    p = fmaf(p, r, 0x1.555492p-3f);
    p = fmaf(p, r, 0x1.fffffcp-2f);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    ExactExp parts;
    parts.fraction = p;
    parts.exponent = exact_bits(shifted) - exact_bits(magic);
    return parts;
}

/* exp(x): 2^n in two exact halves, so that a subnormal result is rounded once. The bounds are beyond overflow and
 * beyond underflow to +0; a NaN passes through both comparisons. */
static inline DM_HD float exact_exp(float x) {
    x = x > 89.0f ? 89.0f : x;
    x = x < -104.0f ? -104.0f : x;
    const ExactExp parts = exact_exp_parts(x);
    const uint32_t half = (parts.exponent + 1024u) / 2u - 512u; /* floor(n/2) without a signed shift */
    const float scale0 = exact_from_bits((half + 127u) << 23);
    const float scale1 = exact_from_bits((parts.exponent - half + 127u) << 23);
    return parts.fraction * scale0 * scale1;
}

/* exp(x) for |x| <= EXACT_EXP_NEAR, at half the cost and with the same bits: nothing to bound, and every product with a
 * power of two is exact. */
#define EXACT_EXP_NEAR 86.0f

static inline DM_HD float exact_exp_near(float x) {
    const ExactExp parts = exact_exp_parts(x);
    return parts.fraction * exact_from_bits((parts.exponent + 127u) << 23);
}

/* log(x): x = 2^e (1+f) with 1+f in [sqrt(1/2), sqrt 2); log(1+f) = f - f^2/2 + f^3 p(f); e ln 2 in two parts.
 * log(+-0) = -inf, log(negative) = NaN, log(+inf) = +inf. */
static inline DM_HD float exact_log(float x) {
    const bool tiny = x < 0x1p-126f;
    const uint32_t bits = exact_bits(tiny ? x * 0x1p25f : x);
    const uint32_t from_sqrt_half = bits - 0x3f3504f3u;
    const uint32_t biased = (from_sqrt_half + (128u << 23)) >> 23; /* e + 128 */
    const float e = (float)((int32_t)biased - 128 - (tiny ? 25 : 0));
    const float f = exact_from_bits((from_sqrt_half & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
    float p = 0x1.1b4f82p-4f;
    p = fmaf(p, f, -0x1.e2fd20p-4f);
    p = fmaf(p, f, 0x1.e6553ep-4f);
    p = fmaf(p, f, -0x1.fb4062p-4f);
    p = fmaf(p, f, 0x1.23324ap-3f);
    p = fmaf(p, f, -0x1.5562f2p-3f);
    p = fmaf(p, f, 0x1.99a54cp-3f);
    p = fmaf(p, f, -0x1.ffffeep-3f);
    p = fmaf(p, f, 0x1.555546p-2f);
    p = fmaf(p, f, -0.5f);
    const float low = fmaf(e, -0x1.05c610p-29f, (f * f) * p);
    float y = fmaf(e, 0x1.62e430p-1f, f + low);
    y = x == 0.0f ? -INFINITY : y;
    y = x < 0.0f ? NAN : y;
    return x < INFINITY ? y : x; /* +inf and NaN are their own logarithms */
}

/* ---- binary64, for tables and initial weights; good to a few ulp --------------------------------------------------
 */

static inline DM_HD double exact_exp64(double x) {
    const double magic = 6755399441055744.0; /* 1.5 * 2^52 */
    x = x > 710.0 ? 710.0 : x;
    x = x < -746.0 ? -746.0 : x;
    const double shifted = fma(x, 0x1.71547652b82fep+0, magic);
    const double n = shifted - magic;
    double r = fma(n, -0x1.62e42fefa4000p-1, x);
    r = fma(n, 0x1.8432a1b0e2634p-43, r);
    double p = 0x1.1e3d0a7f4462ap-29;
    p = fma(p, r, 0x1.af6c1dc4438afp-26);
    p = fma(p, r, 0x1.27e5b490f1d4ap-22);
    p = fma(p, r, 0x1.71ddf0027a13bp-19);
    p = fma(p, r, 0x1.a01a01364f1d4p-16);
    p = fma(p, r, 0x1.a01a01b38a1adp-13);
    p = fma(p, r, 0x1.6c16c16c305dap-10);
    p = fma(p, r, 0x1.111111110ec3fp-7);
    p = fma(p, r, 0x1.5555555555503p-5);
    p = fma(p, r, 0x1.555555555555bp-3);
    p = fma(p, r, 0.5);
    p = fma(p, r, 1.0);
    p = fma(p, r, 1.0);
    const uint64_t whole = exact_bits64(shifted) - exact_bits64(magic);
    const uint64_t half = (whole + 8192u) / 2u - 4096u;
    return p * exact_from_bits64((half + 1023u) << 52) * exact_from_bits64((whole - half + 1023u) << 52);
}

/* log(1+f) = 2 atanh(s), s = f/(2+f); the division's error is kept out of the leading term, f - s*(f - s^2 R). */
static inline DM_HD double exact_log64(double x) {
    const bool tiny = x < 0x1p-1022;
    const uint64_t bits = exact_bits64(tiny ? x * 0x1p54 : x);
    const uint64_t from_sqrt_half = bits - 0x3fe6a09e667f3bcdu;
    const uint64_t biased = (from_sqrt_half + ((uint64_t)1024 << 52)) >> 52; /* e + 1024 */
    const double e = (double)((int64_t)biased - 1024 - (tiny ? 54 : 0));
    const double f = exact_from_bits64((from_sqrt_half & 0xfffffffffffffu) + 0x3fe6a09e667f3bcdu) - 1.0;
    const double s = f / (2.0 + f);
    const double z = s * s;
    double p = 0x1.0f6a9a7498644p-3;
    p = fma(p, z, 0x1.0f5bf6003ec97p-3);
    p = fma(p, z, 0x1.3b20b4defefcfp-3);
    p = fma(p, z, 0x1.745cddff65cb3p-3);
    p = fma(p, z, 0x1.c71c7259aa360p-3);
    p = fma(p, z, 0x1.249249242aaf7p-2);
    p = fma(p, z, 0x1.9999999999e06p-2);
    p = fma(p, z, 0x1.5555555555555p-1);
    const double low = fma(e, -0x1.8432a1b0e2634p-43, -s * (f - z * p));
    double y = fma(e, 0x1.62e42fefa4000p-1, f + low);
    y = x == 0.0 ? -(double)INFINITY : y;
    y = x < 0.0 ? (double)NAN : y;
    return x < (double)INFINITY ? y : x;
}

/* x - n*pi/2 as hi + lo, |hi| <= pi/4 or a hair more, for |x| <= 2^22. With n below 2^23 the first fma is exact; the
 * second part's product and subtraction are carried with their errors, the third part only corrects. */
typedef struct ExactAngle {
    double hi, lo;
    uint64_t quadrant;
} ExactAngle;

static inline DM_HD ExactAngle exact_reduce64(double x) {
    const double magic = 6755399441055744.0;
    const double shifted = fma(x, 0x1.45f306dc9c883p-1, magic);
    const double n = shifted - magic;
    const double first = fma(-n, 0x1.921fb54442d18p+0, x);
    const double product = n * 0x1.1a62633145c07p-54;
    const double product_error = fma(n, 0x1.1a62633145c07p-54, -product);
    const double second = first - product;
    const double second_error = (first - second) - product;
    const double tail = fma(n, 0x1.f1976b7ed8fbcp-110, second_error - product_error);
    ExactAngle angle;
    angle.hi = second + tail;
    angle.lo = (second - angle.hi) + tail;
    angle.quadrant = (exact_bits64(shifted) - exact_bits64(magic)) & 3u;
    return angle;
}

static inline DM_HD double exact_sin64_part(ExactAngle a) {
    const double z = a.hi * a.hi;
    double p = -0x1.aa9ba72c5df88p-41;
    p = fma(p, z, 0x1.61207f918acb0p-33);
    p = fma(p, z, -0x1.ae64527aae2dfp-26);
    p = fma(p, z, 0x1.71de3a5323175p-19);
    p = fma(p, z, -0x1.a01a01a0189d5p-13);
    p = fma(p, z, 0x1.111111111110bp-7);
    p = fma(p, z, -0x1.5555555555555p-3);
    return a.hi + fma(p * z, a.hi, a.lo * fma(z, -0.5, 1.0));
}

static inline DM_HD double exact_cos64_part(ExactAngle a) {
    const double z = a.hi * a.hi;
    double p = 0x1.aabc5c14c1611p-45;
    p = fma(p, z, -0x1.939323c27bf32p-37);
    p = fma(p, z, 0x1.1eed8c91bf58fp-29);
    p = fma(p, z, -0x1.27e4fb75edb0bp-22);
    p = fma(p, z, 0x1.a01a01a018d01p-16);
    p = fma(p, z, -0x1.6c16c16c16c10p-10);
    p = fma(p, z, 0x1.5555555555555p-5);
    const double half = 0.5 * z;
    const double lead = 1.0 - half;
    return lead + (((1.0 - lead) - half) + fma(p * z, z, -a.hi * a.lo));
}

/* sin(x) and cos(x) for |x| <= 2^22; RoPE needs 131072 radians. */
static inline DM_HD double exact_sin64(double x) {
    const ExactAngle a = exact_reduce64(x);
    const double y = (a.quadrant & 1u) != 0 ? exact_cos64_part(a) : exact_sin64_part(a);
    return (a.quadrant & 2u) != 0 ? -y : y;
}

static inline DM_HD double exact_cos64(double x) {
    const ExactAngle a = exact_reduce64(x);
    const double y = (a.quadrant & 1u) != 0 ? exact_sin64_part(a) : exact_cos64_part(a);
    return ((a.quadrant + 1u) & 2u) != 0 ? -y : y;
}

/* ---- elements of the layers and of the optimizer, one formula for both backends -----------------------------------
 */

/* a = (z/(1+exp(-z)))*u */
static inline DM_HD float exact_swiglu(float z, float u) {
    return (z / (1.0f + exact_exp(-z))) * u;
}

typedef struct ExactSwigluGrad {
    float dz, du;
} ExactSwigluGrad;

/* s = 1/(1+exp(-z)); du = da*(z*s); dz = (da*u)*fma(z, s*(1-s), s) */
static inline DM_HD ExactSwigluGrad exact_swiglu_grad(float da, float z, float u) {
    const float s = 1.0f / (1.0f + exact_exp(-z));
    ExactSwigluGrad grad;
    grad.dz = (da * u) * fmaf(z, s * (1.0f - s), s);
    grad.du = da * (z * s);
    return grad;
}

typedef struct ExactAdamw {
    float w, m, v;
} ExactAdamw;

/* One element of Adamw; g is clipped already. */
static inline DM_HD ExactAdamw exact_adamw(const Adamw *a, float g, ExactAdamw e) {
    e.m = fmaf(a->b1, e.m, a->one_minus_b1 * g);
    e.v = fmaf(a->b2, e.v, a->one_minus_b2 * (g * g));
    e.w = e.w - a->lr_wd * e.w;
    e.w = e.w - (a->lr * (e.m * a->c1)) / (sqrtf(e.v * a->c2) + a->eps);
    return e;
}

/* One step of momentum, and Nesterov's look ahead from it: M = fma(mu, M, g), then the same once more. */
static inline DM_HD float exact_momentum(float mu, float momentum, float g) {
    return fmaf(mu, momentum, g);
}

/* w - rate*x, unfused: weight decay (x = w) and the update of Muon. */
static inline DM_HD float exact_descend(float w, float rate, float x) {
    return w - rate * x;
}

static inline DM_HD float exact_ns_combine(float c, float x, float b, float y) {
    return fmaf(c, x, b * y);
}

typedef struct ExactPow2 {
    float first, second; /* multiply by first, then by second; second is 1 where one factor is enough */
} ExactPow2;

/* The exact power of two that brings abs_max > 0 to [1,2). Where it is no normal binary32 it is 2^127 and the rest, or
 * 2^-1 and 2^-126: the first product is exact wherever the second does not give 0 anyway. */
static inline DM_HD ExactPow2 exact_ns_scale(float abs_max) {
    const bool tiny = abs_max < 0x1p-126f;
    const uint32_t bits = exact_bits(tiny ? abs_max * 0x1p25f : abs_max);
    const int32_t shift = (tiny ? 25 : 0) - ((int32_t)((bits >> 23) & 255u) - 127); /* -e */
    const int32_t normal = shift > 127 ? 127 : (shift < -126 ? -126 : shift);
    ExactPow2 factor;
    factor.first = exact_pow2(shift < -126 ? shift - normal : normal);
    factor.second = exact_pow2(shift < -126 ? normal : shift - normal);
    return factor;
}

#endif
