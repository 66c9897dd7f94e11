/* Token lookup, and its gradient: per table row one chain of adds over the tokens that carry it, ascending. */
#include "kernels/cpu/isa.h"

#include <string.h>

#include "kernels/cpu/split.h"

static void lookup_rows(const void *args, int64_t begin, int64_t end) {
    const EmbeddingForward *a = args;
    for (int64_t i = begin; i < end; i++) {
        const int64_t row = a->ids[i] - a->first_row;
        if (row >= 0 && row < a->nrows)
            memcpy(a->y + i * a->d, a->table + row * a->d, (size_t)a->d * sizeof *a->y);
    }
}

void ISA_NAME(embedding_forward)(const KernelCtx *ctx, const void *args) {
    const EmbeddingForward *a = args;
    split_ranges(ctx, a, lookup_rows, a->n, a->d, 1);
}

#define BLOCK 256 /* columns of one row's chain that are summed on the stack */

/* The tokens of each row as a list in ascending order: head[row], then next[token]; -1 ends it. */
typedef struct Scatter {
    const EmbeddingBackward *args;
    int64_t *head, *next;
} Scatter;

static void link_tokens(const Scatter *scatter) {
    const EmbeddingBackward *a = scatter->args;
    for (int64_t v = 0; v < a->nrows; v++)
        scatter->head[v] = -1;
    for (int64_t i = a->n - 1; i >= 0; i--) {
        const int64_t row = a->ids[i] - a->first_row;
        if (row < 0 || row >= a->nrows)
            continue;
        scatter->next[i] = scatter->head[row];
        scatter->head[row] = i;
    }
}

static void scatter_block(const Scatter *scatter, int64_t row, int64_t begin, int64_t n) {
    const EmbeddingBackward *a = scatter->args;
    float sum[BLOCK] = {0};
    for (int64_t i = scatter->head[row]; i >= 0; i = scatter->next[i]) {
        const float *restrict dy = a->dy + i * a->d + begin;
        for (int64_t c = 0; c < n; c++)
            sum[c] = sum[c] + dy[c];
    }
    float *restrict dtable = a->dtable + row * a->d + begin;
    if (!a->accumulate)
        memcpy(dtable, sum, (size_t)n * sizeof *dtable);
    else
        for (int64_t c = 0; c < n; c++)
            dtable[c] = dtable[c] + sum[c];
}

static void scatter_rows(const void *args, int64_t begin, int64_t end) {
    const Scatter *scatter = args;
    const int64_t d = scatter->args->d;
    for (int64_t row = begin; row < end; row++)
        for (int64_t c = 0; c < d; c += BLOCK)
            scatter_block(scatter, row, c, d - c < BLOCK ? d - c : BLOCK);
}

void ISA_NAME(embedding_backward)(const KernelCtx *ctx, const void *args) {
    const EmbeddingBackward *a = args;
    if (a->nrows <= 0)
        return;
    int64_t *lists = ctx->scratch(ctx, 0, (size_t)(a->nrows + a->n) * sizeof *lists);
    const Scatter scatter = {.args = a, .head = lists, .next = lists + a->nrows};
    link_tokens(&scatter);
    split_ranges(ctx, &scatter, scatter_rows, a->nrows, a->d * (1 + a->n / a->nrows), 1);
}
