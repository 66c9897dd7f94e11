/* Splits of a length into runs. */
#include "mesh/extent.h"

#include "base/fatal.h"

Extent extent_of(int64_t n, int parts, int index) {
    DM_ASSERT(n >= 0 && parts >= 1 && index >= 0 && index < parts);
    const int64_t run = ceil_div(n, parts);
    const int64_t first = index * run < n ? index * run : n;
    const int64_t left = n - first;
    return (Extent){.first = first, .count = left < run ? left : run};
}

Extent extent_overlap(Extent a, Extent b) {
    const int64_t first = a.first > b.first ? a.first : b.first;
    const int64_t a_end = a.first + a.count, b_end = b.first + b.count;
    const int64_t end = a_end < b_end ? a_end : b_end;
    return (Extent){.first = first, .count = end > first ? end - first : 0};
}
