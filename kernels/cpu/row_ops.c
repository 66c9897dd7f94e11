#include "kernels/cpu/row_ops.h"

#include "kernels/cpu/lanes.h"
#include "kernels/exact_math.h"

#define ALWAYS_INLINE __attribute__((always_inline)) static inline

float row_max(const float *x, int64_t n) {
    float lane[LANES];
    for (int l = 0; l < LANES; l++)
        lane[l] = -INFINITY;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            lane[l] = x[i + l] > lane[l] ? x[i + l] : lane[l];
    for (int64_t l = 0; l < n - i; l++)
        lane[l] = x[i + l] > lane[l] ? x[i + l] : lane[l];
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++)
            lane[l] = lane[l + half] > lane[l] ? lane[l + half] : lane[l];
    return lane[0] + 0.0f;
}

/* Elements whose exponentials take one form: whole blocks of lanes, in the L1 cache. */
#define BLOCK (8 * LANES)

/* Whether the short form of the exponential serves x[0..n) - max, n <= BLOCK. A NaN is not near. */
static bool all_near(const float *x, int64_t n, float max) {
    int far = 0;
    for (int64_t i = 0; i < n; i++)
        far |= !(fabsf(x[i] - max) <= EXACT_EXP_NEAR);
    return far == 0;
}

ALWAYS_INLINE float exp_form(float x, bool near) {
    return near ? exact_exp_near(x) : exact_exp(x);
}

/* One block of row_exp_sum; `near` and whether e is NULL are known where this is inlined. */
ALWAYS_INLINE void exp_block(float lane[LANES], float *e, const float *x, int64_t n, float max, bool near) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        float value[LANES]; /* apart, because e may be x */
        for (int l = 0; l < LANES; l++)
            value[l] = exp_form(x[i + l] - max, near);
        for (int l = 0; l < LANES; l++)
            lane[l] = lane[l] + value[l];
        for (int l = 0; e != NULL && l < LANES; l++)
            e[i + l] = value[l];
    }
    for (int64_t l = 0; l < n - i; l++) {
        const float value = exp_form(x[i + l] - max, near);
        lane[l] = lane[l] + value;
        if (e != NULL)
            e[i + l] = value;
    }
}

ALWAYS_INLINE float exp_sum(float *e, const float *x, int64_t n, float max) {
    float lane[LANES] = {0};
    for (int64_t i = 0; i < n; i += BLOCK) {
        const int64_t count = n - i < BLOCK ? n - i : BLOCK;
        if (all_near(x + i, count, max))
            exp_block(lane, e == NULL ? NULL : e + i, x + i, count, max, true);
        else
            exp_block(lane, e == NULL ? NULL : e + i, x + i, count, max, false);
    }
    return lanes_fold(lane);
}

float row_exp_sum(float *e, const float *x, int64_t n, float max) {
    return e == NULL ? exp_sum(NULL, x, n, max) : exp_sum(e, x, n, max);
}

void row_scale(float *x, int64_t n, float factor) {
    for (int64_t i = 0; i < n; i++)
        x[i] = x[i] * factor;
}

ALWAYS_INLINE void softmax_block(float *out, const float *x, int64_t n, float max, float inverse, bool near) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++)
        out[i] = exp_form(x[i] - max, near) * inverse;
}

void row_softmax(float *out, const float *x, int64_t n, float max, float inverse) {
    for (int64_t i = 0; i < n; i += BLOCK) {
        const int64_t count = n - i < BLOCK ? n - i : BLOCK;
        if (all_near(x + i, count, max))
            softmax_block(out + i, x + i, count, max, inverse, true);
        else
            softmax_block(out + i, x + i, count, max, inverse, false);
    }
}

float row_dot(const float *a, const float *b, int64_t n) {
    float lane[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            lane[l] = fmaf(a[i + l], b[i + l], lane[l]);
    for (int64_t l = 0; l < n - i; l++)
        lane[l] = fmaf(a[i + l], b[i + l], lane[l]);
    return lanes_fold(lane);
}

float row_sum(const float *x, int64_t n) {
    float lane[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            lane[l] = lane[l] + x[i + l];
    for (int64_t l = 0; l < n - i; l++)
        lane[l] = lane[l] + x[i + l];
    return lanes_fold(lane);
}
