#include "kernels/cpu/row_ops.h"

#include "kernels/cpu/lanes.h"
#include "kernels/exact_math.h"

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

static float exp_sum(const float *x, int64_t n, float max) {
    float lane[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            lane[l] = lane[l] + exact_exp(x[i + l] - max);
    for (int64_t l = 0; l < n - i; l++)
        lane[l] = lane[l] + exact_exp(x[i + l] - max);
    return lanes_fold(lane);
}

float row_exp_sum(float *e, const float *x, int64_t n, float max) {
    if (e == NULL)
        return exp_sum(x, n, max);
    float lane[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        float value[LANES]; /* apart, because e may be x */
        for (int l = 0; l < LANES; l++)
            value[l] = exact_exp(x[i + l] - max);
        for (int l = 0; l < LANES; l++) {
            lane[l] = lane[l] + value[l];
            e[i + l] = value[l];
        }
    }
    for (int64_t l = 0; l < n - i; l++) {
        e[i + l] = exact_exp(x[i + l] - max);
        lane[l] = lane[l] + e[i + l];
    }
    return lanes_fold(lane);
}

void row_scale(float *x, int64_t n, float factor) {
    for (int64_t i = 0; i < n; i++)
        x[i] = x[i] * factor;
}

void row_softmax(float *out, const float *x, int64_t n, float max, float inverse) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++)
        out[i] = exact_exp(x[i] - max) * inverse;
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
