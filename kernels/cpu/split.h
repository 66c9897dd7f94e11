/* Cutting a kernel's independent elements, rows or columns into ranges for the threads. How it is cut never shows in
 * the bits: a range computes whole chains and whole lane sums. */
#ifndef DMUON_KERNELS_CPU_SPLIT_H
#define DMUON_KERNELS_CPU_SPLIT_H

#include "kernels/cpu/isa.h"

/* Elements below which a range is not worth waking a thread for. */
#define SPLIT_GRAIN 16384

typedef void (*SplitRange)(const void *args, int64_t begin, int64_t end);

#define split_ranges ISA_NAME(split_ranges)
#define split_items ISA_NAME(split_items)
#define split_run ISA_NAME(split_run)

/* Runs range(args, begin, end) over a partition of [0, n) whose parts start at multiples of `align` and cost about
 * `cost` elements of work per unit. */
void split_ranges(const KernelCtx *ctx, const void *args, SplitRange range, int64_t n, int64_t cost, int64_t align);

/* How many parts [0, n) should have: enough to balance the threads, none smaller than the grain. At least 1. */
int split_items(const KernelCtx *ctx, int64_t n, int64_t cost);

/* ctx->parallel, but a single item runs in the caller. */
void split_run(const KernelCtx *ctx, int nitems, void (*body)(void *arg, int item, int thread), void *arg);

#endif
