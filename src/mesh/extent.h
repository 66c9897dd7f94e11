/* Pure arithmetic of splits. */
#ifndef DMUON_MESH_EXTENT_H
#define DMUON_MESH_EXTENT_H

#include <stdint.h>

typedef struct Extent {
    int64_t first, count;
} Extent;

static inline int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}
static inline int64_t round_up(int64_t a, int64_t b) {
    return ceil_div(a, b) * b;
}
/* Part `index` of `parts` equal runs of ceil(n/parts), cut off at n: the last ones may be short or empty. */
Extent extent_of(int64_t n, int parts, int index);
/* The overlap of two extents; count 0 when there is none. */
Extent extent_overlap(Extent a, Extent b);

#endif
