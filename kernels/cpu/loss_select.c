/* A vocabulary cut over ranks: the rows' maxima and the targets' logits, selected from every rank's part. */
#include "kernels/cpu/isa.h"

#include "kernels/cpu/split.h"

static void select_rows(const void *args, int64_t begin, int64_t end) {
    const LossSelect *a = args;
    for (int64_t i = begin; i < end; i++) {
        float max = a->parts[i];
        for (int r = 1; r < a->ranks; r++) {
            const float other = a->parts[2 * r * a->n + i];
            max = other > max ? other : max;
        }
        a->max[i] = max;
        a->z_t[i] = a->parts[(2 * (a->target[i] / a->rank_cols) + 1) * a->n + i];
    }
}

void ISA_NAME(loss_select)(const KernelCtx *ctx, const void *args) {
    const LossSelect *a = args;
    split_ranges(ctx, a, select_rows, a->n, a->ranks + 1, 1);
}
