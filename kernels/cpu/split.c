#include "kernels/cpu/split.h"

#define ITEMS_PER_THREAD 4

typedef struct Split {
    const void *args;
    SplitRange range;
    int64_t n, align;
    int nitems;
} Split;

static int64_t part_begin(const Split *split, int item) {
    const int64_t units = (split->n + split->align - 1) / split->align;
    const int64_t begin = units * item / split->nitems * split->align;
    return begin < split->n ? begin : split->n;
}

static void run_part(void *arg, int item, int thread) {
    const Split *split = arg;
    (void)thread;
    const int64_t begin = part_begin(split, item);
    const int64_t end = part_begin(split, item + 1);
    if (begin < end)
        split->range(split->args, begin, end);
}

int split_items(const KernelCtx *ctx, int64_t n, int64_t cost) {
    const int64_t most = ctx->nthreads > 1 ? (int64_t)ctx->nthreads * ITEMS_PER_THREAD : 1;
    const int64_t worth = n * cost / SPLIT_GRAIN;
    const int64_t items = worth < most ? worth : most;
    return (int)(items < n ? (items > 1 ? items : 1) : (n > 1 ? n : 1));
}

void split_run(const KernelCtx *ctx, int nitems, void (*body)(void *arg, int item, int thread), void *arg) {
    if (nitems == 1)
        body(arg, 0, 0);
    else if (nitems > 1)
        ctx->parallel(ctx, nitems, body, arg);
}

void split_ranges(const KernelCtx *ctx, const void *args, SplitRange range, int64_t n, int64_t cost, int64_t align) {
    if (n <= 0)
        return;
    Split split = {.args = args, .range = range, .n = n, .align = align, .nitems = split_items(ctx, n, cost)};
    split_run(ctx, split.nitems, run_part, &split);
}
