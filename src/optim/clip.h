/* Gradient clipping: from binary64 sums of squares to one factor. */
#ifndef DMUON_OPTIM_CLIP_H
#define DMUON_OPTIM_CLIP_H

#include <stdbool.h>
#include <stdint.h>

/* tree(x[0..n)) in binary64 (split at the largest power of two below n); x is overwritten. n = 0: 0. */
double clip_tree_f64(double *x, int64_t n);
/* The same in binary32. */
float clip_tree_f32(float *x, int64_t n);

typedef struct ClipResult {
    float norm;   /* binary32(sqrt(sum))                           */
    bool clipped; /* norm above a positive limit                   */
    float factor; /* binary32(max_norm/(norm + 1e-6)) in binary64; 1 otherwise */
} ClipResult;
ClipResult clip_factor(double sumsq, double max_norm);

#endif
