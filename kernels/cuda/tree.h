/* The tree of the numerics contract over values that come one after another: a binary counter. Level l waits for a
 * partner while it holds the sum of 2^l values; what is left at the end adds up from the lowest level. */
#ifndef DMUON_KERNELS_CUDA_TREE_H
#define DMUON_KERNELS_CUDA_TREE_H

#include "kernels/cuda/launch.h"

/* Fewer than 2^LEVELS values. Loops are unrolled so that the levels stay in registers. */
template <class T, int LEVELS> struct TreeCounter { T level[LEVELS]; };

/* Value number `index`, counted from 0, ascending without gaps. */
template <class T, int LEVELS>
static inline __device__ void tree_push(TreeCounter<T, LEVELS> &counter, unsigned index, T value) {
    bool rises = true;
    UNROLL for (int l = 0; l < LEVELS; l++) {
        const bool waits = (index >> l & 1u) != 0;
        if (rises && waits)
            value = counter.level[l] + value;
        else if (rises)
            counter.level[l] = value;
        rises = rises && waits;
    }
}

/* The sum of `count` values; +0 for none. */
template <class T, int LEVELS>
static inline __device__ T tree_total(const TreeCounter<T, LEVELS> &counter, unsigned count) {
    T total = 0;
    bool any = false;
    UNROLL for (int l = 0; l < LEVELS; l++) {
        if ((count >> l & 1u) == 0)
            continue;
        total = any ? counter.level[l] + total : counter.level[l];
        any = true;
    }
    return total;
}

#endif
