/* Gradient clipping: tree sums and the one factor. */
#include "optim/clip.h"

#include <math.h>

/* Doubling the distance adds exactly the pairs of the tree that splits at the largest power of two below n. */
double clip_tree_f64(double *x, int64_t n) {
    for (int64_t stride = 1; stride < n; stride *= 2)
        for (int64_t i = 0; i + stride < n; i += 2 * stride)
            x[i] += x[i + stride];
    return n > 0 ? x[0] : 0.0;
}

float clip_tree_f32(float *x, int64_t n) {
    for (int64_t stride = 1; stride < n; stride *= 2)
        for (int64_t i = 0; i + stride < n; i += 2 * stride)
            x[i] += x[i + stride];
    return n > 0 ? x[0] : 0.0F;
}

ClipResult clip_factor(double sumsq, double max_norm) {
    ClipResult result = {.norm = (float)sqrt(sumsq), .factor = 1.0F};
    result.clipped = max_norm > 0 && (double)result.norm > max_norm;
    if (result.clipped)
        result.factor = (float)(max_norm / ((double)result.norm + 1e-6));
    return result;
}
