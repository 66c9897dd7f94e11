/* AdamW on one flat run of elements: the scalars in binary64, rounded once. */
#include "optim/adamw.h"

#include "base/fatal.h"
#include "tensor/ops.h"

/* base^exponent by squaring: the C library's pow is not the same on every machine. */
static double power(double base, int64_t exponent) {
    double result = 1.0;
    for (; exponent > 0; exponent /= 2) {
        if (exponent % 2 == 1)
            result *= base;
        base *= base;
    }
    return result;
}

void adamw_update(const AdamwStep *step, Stream *stream, float *w, float *m, float *v, const float *g, int64_t n) {
    DM_ASSERT(step->t >= 1);
    ops_adamw(stream, (Adamw){.w = w,
                              .m = m,
                              .v = v,
                              .g = g,
                              .n = n,
                              .clipped = step->clipped,
                              .grad_factor = step->grad_factor,
                              .b1 = (float)step->beta1,
                              .one_minus_b1 = (float)(1.0 - step->beta1),
                              .b2 = (float)step->beta2,
                              .one_minus_b2 = (float)(1.0 - step->beta2),
                              .c1 = (float)(1.0 / (1.0 - power(step->beta1, step->t))),
                              .c2 = (float)(1.0 / (1.0 - power(step->beta2, step->t))),
                              .lr = (float)step->lr,
                              .lr_wd = (float)(step->lr * step->weight_decay),
                              .eps = (float)step->eps});
}
