/* r buffers to one in the order of the tree: the reduction of every gradient and of every segment. */
#include "kernels/cpu/isa.h"

#include <string.h>

#include "kernels/cpu/split.h"

#define BLOCK 512 /* elements that go through the whole tree while they are in the first cache */
#define DEPTH 10  /* log2 of the largest count */

static void add_pair(float *out, const float *left, const float *right, int64_t n) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++)
        out[i] = left[i] + right[i];
}

static int64_t left_count(int64_t count) {
    int64_t left = 1;
    while (left * 2 < count)
        left *= 2;
    return left;
}

/* out = tree over `count` buffers; `rest` holds one block for each level below. out may be src[0]: that is read first.
 */
static void tree_block(float *out, const float *src, int64_t stride, int64_t count, int64_t n, float *rest) {
    if (count == 1) {
        if (out != src)
            memcpy(out, src, (size_t)n * sizeof *out);
        return;
    }
    if (count == 2) {
        add_pair(out, src, src + stride, n);
        return;
    }
    const int64_t left = left_count(count);
    tree_block(out, src, stride, left, n, rest);
    if (count - left == 1) {
        add_pair(out, out, src + left * stride, n);
        return;
    }
    tree_block(rest, src + left * stride, stride, count - left, n, rest + BLOCK);
    add_pair(out, out, rest, n);
}

static void sum_range(const void *args, int64_t begin, int64_t end) {
    const SumTree *a = args;
    float rest[DEPTH * BLOCK];
    for (int64_t i = begin; i < end; i += BLOCK) {
        const int64_t n = end - i < BLOCK ? end - i : BLOCK;
        tree_block(a->dst + i, a->src + i, a->stride, a->count, n, rest);
    }
}

void ISA_NAME(sum_tree)(const KernelCtx *ctx, const void *args) {
    const SumTree *a = args;
    split_ranges(ctx, a, sum_range, a->n, a->count, 16);
}
