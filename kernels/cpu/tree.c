#include "kernels/cpu/tree.h"

static int64_t left_count(int64_t n) {
    int64_t left = 1;
    while (left * 2 < n)
        left *= 2;
    return left;
}

float tree_sum(const float *x, int64_t n) {
    if (n <= 1)
        return n == 1 ? x[0] : 0.0f;
    const int64_t left = left_count(n);
    return tree_sum(x, left) + tree_sum(x + left, n - left);
}

double tree_sum64(const double *x, int64_t n, int64_t stride) {
    if (n <= 1)
        return n == 1 ? x[0] : 0.0;
    const int64_t left = left_count(n);
    return tree_sum64(x, left, stride) + tree_sum64(x + left * stride, n - left, stride);
}
