/* The canonical addition: tree over ranks, element by element, in blocks that stay in the first-level cache. One plain
 * addition per node, so the bits are those of any other way to add the same tree. */
#include "comm/collective.h"

#include <string.h>

#include "base/fatal.h"

#define BLOCK_BYTES 4096

typedef union Block {
    float f32[BLOCK_BYTES / sizeof(float)];
    double f64[BLOCK_BYTES / sizeof(double)];
    uint64_t u64[BLOCK_BYTES / sizeof(uint64_t)];
} Block;

static void add_f32(float *dst, const float *a, const float *b, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        dst[i] = a[i] + b[i];
}

static void add_f64(double *dst, const double *a, const double *b, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        dst[i] = a[i] + b[i];
}

static void add_u64(uint64_t *dst, const uint64_t *a, const uint64_t *b, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        dst[i] = a[i] + b[i];
}

void tree_add(Dtype dtype, void *dst, const void *a, const void *b, int64_t n) {
    if (dtype == DTYPE_F32)
        add_f32(dst, a, b, n);
    else if (dtype == DTYPE_F64)
        add_f64(dst, a, b, n);
    else if (dtype == DTYPE_U64)
        add_u64(dst, a, b, n);
    else
        fatal("no sum is defined for %s", dtype_name(dtype));
}

/* The block of `n` elements that starts at byte `at` of every part. */
static void sum_block(Dtype dtype, Block *out, const void *const *part, int count, int64_t at, int64_t n) {
    if (count == 1) {
        memcpy(out, (const char *)part[0] + at, (size_t)n * dtype_nbytes(dtype));
        return;
    }
    if (count == 2) {
        tree_add(dtype, out, (const char *)part[0] + at, (const char *)part[1] + at, n);
        return;
    }
    int left = 1;
    while (left * 2 < count)
        left *= 2;
    Block right;
    sum_block(dtype, out, part, left, at, n);
    sum_block(dtype, &right, part + left, count - left, at, n);
    tree_add(dtype, out, out, &right, n);
}

void tree_sum(Dtype dtype, void *dst, const void *const *part, int count, int64_t n) {
    const int64_t nbytes = (int64_t)dtype_nbytes(dtype);
    const int64_t block = BLOCK_BYTES / nbytes;
    Block out; /* dst may be a part that is read later in the block */
    for (int64_t i = 0; i < n; i += block) {
        const int64_t m = n - i < block ? n - i : block;
        sum_block(dtype, &out, part, count, i * nbytes, m);
        memcpy((char *)dst + i * nbytes, &out, (size_t)(m * nbytes));
    }
}
