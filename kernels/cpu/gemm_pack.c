/* Packs operands of the matrix product into panels whose rows are contracted elements, and mirrors a triangle. */
#include "kernels/cpu/gemm_tile.h"

#include <string.h>

enum { STRIP = 8 };

#if defined(DM_EMULATE_512) || defined(DM_ISA_avx2) || defined(DM_ISA_avx512)

typedef __m256 Strip;

static inline Strip strip_load(const float *p) {
    return _mm256_loadu_ps(p);
}

/* Stores the first `width` (4, 6 or 8) elements and touches no others: what follows may be another thread's. */
static inline void strip_store(float *p, Strip v, int width) {
    if (width == STRIP) {
        _mm256_storeu_ps(p, v);
        return;
    }
    _mm_storeu_ps(p, _mm256_castps256_ps128(v));
    if (width == 6)
        _mm_storel_pi((__m64 *)(void *)(p + 4), _mm256_extractf128_ps(v, 1));
}

static inline void strip_transpose(Strip x[STRIP]) {
    Strip s[STRIP], t[STRIP];
    for (int i = 0; i < STRIP; i += 2) {
        s[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
        s[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
    }
    for (int i = 0; i < STRIP; i += 4) {
        t[i] = _mm256_shuffle_ps(s[i], s[i + 2], 0x44);
        t[i + 1] = _mm256_shuffle_ps(s[i], s[i + 2], 0xee);
        t[i + 2] = _mm256_shuffle_ps(s[i + 1], s[i + 3], 0x44);
        t[i + 3] = _mm256_shuffle_ps(s[i + 1], s[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        x[i] = _mm256_permute2f128_ps(t[i], t[i + 4], 0x20);
        x[i + 4] = _mm256_permute2f128_ps(t[i], t[i + 4], 0x31);
    }
}

#else

typedef struct Strip {
    float x[STRIP];
} Strip;

static inline Strip strip_load(const float *p) {
    Strip v;
    memcpy(v.x, p, sizeof v.x);
    return v;
}

static inline void strip_store(float *p, Strip v, int width) {
    memcpy(p, v.x, (size_t)width * sizeof *p);
}

static inline void strip_transpose(Strip x[STRIP]) {
    for (int i = 0; i < STRIP; i++)
        for (int j = 0; j < i; j++) {
            const float lower = x[i].x[j];
            x[i].x[j] = x[j].x[i];
            x[j].x[i] = lower;
        }
}

#endif

/* dst[k*stride + r] = src[r*ld + k] for r < width (at most 8, of which `valid` exist) and k < len. */
__attribute__((always_inline)) static inline void pack_strip(float *dst, int64_t stride, const float *src, int64_t ld,
                                                             int64_t len, int width, int valid) {
    static const float zeros[STRIP];
    int64_t k = 0;
    for (; k + STRIP <= len; k += STRIP) {
        Strip x[STRIP];
        for (int r = 0; r < STRIP; r++)
            x[r] = strip_load(r < valid ? src + r * ld + k : zeros);
        strip_transpose(x);
        for (int r = 0; r < STRIP; r++)
            strip_store(dst + (k + r) * stride, x[r], width);
    }
    for (; k < len; k++)
        for (int r = 0; r < width; r++)
            dst[k * stride + r] = r < valid ? src[r * ld + k] : 0.0f;
}

static int clamp_width(int64_t valid, int width) {
    return valid < 0 ? 0 : valid < width ? (int)valid : width;
}

/* Panel rows are gathered from `width` rows of the source: transpose 8 x 8 strips. */
__attribute__((always_inline)) static inline void pack_across(float *dst, const float *src, int64_t ld, int64_t len,
                                                              int width, int64_t valid) {
    for (int r = 0; r < width; r += STRIP) {
        const int strip = width - r < STRIP ? width - r : STRIP;
        const float *from = src + r * ld;
        const int exist = clamp_width(valid - r, strip);
        if (exist == strip)
            pack_strip(dst + r, width, from, ld, len, strip, strip);
        else
            pack_strip(dst + r, width, exist > 0 ? from : src, ld, len, strip, exist);
    }
}

/* Panel rows are adjacent in the source. */
__attribute__((always_inline)) static inline void pack_along(float *dst, const float *src, int64_t ld, int64_t len,
                                                             int width, int64_t valid) {
    if (valid >= width) {
        for (int64_t k = 0; k < len; k++)
            memcpy(dst + k * width, src + k * ld, (size_t)width * sizeof *dst);
        return;
    }
    for (int64_t k = 0; k < len; k++)
        for (int r = 0; r < width; r++)
            dst[k * width + r] = r < valid ? src[k * ld + r] : 0.0f;
}

__attribute__((always_inline)) static inline void
pack_panel(float *dst, const GemmBlock *block, const GemmSource *parts, int64_t first, int64_t valid, int width) {
    for (int s = 0; s < block->nsteps; s++) {
        const GemmStep *step = &block->step[s];
        const GemmSource *from = &parts[step->part];
        if (step->len == 0)
            continue;
        if (from->along)
            pack_along(dst, from->x + step->k0 * from->ld + first, from->ld, step->len, width, valid);
        else
            pack_across(dst, from->x + first * from->ld + step->k0, from->ld, step->len, width, valid);
        dst += step->len * width;
    }
}

void ISA_NAME(gemm_pack_a)(float *dst, const GemmBlock *block, const GemmSource *parts, int64_t first, int64_t valid) {
    pack_panel(dst, block, parts, first, valid, GEMM_MR);
}

void ISA_NAME(gemm_pack_b)(float *dst, const GemmBlock *block, const GemmSource *parts, int64_t first, int64_t valid) {
    pack_panel(dst, block, parts, first, valid, GEMM_NR);
}

void ISA_NAME(gemm_mirror)(float *c, int64_t ldc, int64_t row0, int64_t row1) {
    for (int64_t i = row0; i < row1; i += STRIP) {
        const int rows = clamp_width(row1 - i, STRIP);
        if (rows == STRIP)
            pack_strip(c + i, ldc, c + i * ldc, ldc, i, STRIP, STRIP);
        const int64_t done = rows == STRIP ? i : 0;
        for (int64_t r = i; r < i + rows; r++)
            for (int64_t s = done; s < r; s++)
                c[s * ldc + r] = c[r * ldc + s];
    }
}
