/* Causal grouped-query attention, forward. An item is one batch row, one kv head and a range of query rows, for all the
 * heads of its group: K and V are packed once for it. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/attention_tile.h"
#include "kernels/cpu/row_ops.h"
#include "kernels/cpu/split.h"

#define RANGES_PER_THREAD 3 /* the causal limit makes items unequal */

typedef struct ForwardPlan {
    const AttentionForward *args;
    const KernelCtx *ctx;
    int64_t nranges, range_rows; /* query rows of an item, a multiple of ATTENTION_ROWS */
    int64_t ldd, lds;            /* D and T in whole panels */
} ForwardPlan;

typedef struct ForwardBuffers {
    float *k_columns, *v_rows; /* packed */
    int64_t padded_n;          /* rows in a panel of v_rows */
    float *q;                  /* [ATTENTION_ROWS, D] */
    float *s;                  /* [ATTENTION_ROWS, lds] scores, then probabilities */
    float *o;                  /* [ATTENTION_ROWS, ldd] */
} ForwardBuffers;

/* Rows [first, first + n) of head h. */
typedef struct ForwardBlock {
    int64_t b, h, first, n;
} ForwardBlock;

static size_t forward_nbytes(const ForwardPlan *plan) {
    const int64_t padded_n = attention_round(plan->args->T, GEMM_MR);
    return sizeof(float) * (size_t)(plan->lds * plan->args->D + plan->ldd * padded_n +
                                    ATTENTION_ROWS * (plan->args->D + plan->lds + plan->ldd));
}

static ForwardBuffers forward_place(const ForwardPlan *plan, float *memory, int64_t nkeys) {
    ForwardBuffers buffers = {.padded_n = attention_round(nkeys, GEMM_MR)};
    buffers.k_columns = memory;
    buffers.v_rows = buffers.k_columns + plan->lds * plan->args->D;
    buffers.s = buffers.v_rows + plan->ldd * buffers.padded_n;
    buffers.o = buffers.s + ATTENTION_ROWS * plan->lds;
    buffers.q = buffers.o + ATTENTION_ROWS * plan->ldd;
    return buffers;
}

static void pack_keys(const ForwardPlan *plan, const ForwardBuffers *buffers, int64_t b, int64_t kv_head,
                      int64_t nkeys) {
    const AttentionForward *a = plan->args;
    const int64_t at = b * a->T * a->kv_stride + kv_head * a->D;
    attention_pack_columns(buffers->k_columns, (Rows){a->k + at, a->kv_stride, nkeys, a->D});
    attention_pack_rows(buffers->v_rows, (Rows){a->v + at, a->kv_stride, nkeys, a->D}, buffers->padded_n);
}

static void load_queries(const ForwardPlan *plan, const ForwardBuffers *buffers, ForwardBlock block) {
    const AttentionForward *a = plan->args;
    for (int64_t r = 0; r < block.n; r++)
        memcpy(buffers->q + r * a->D, a->q + (block.b * a->T + block.first + r) * a->q_stride + block.h * a->D,
               (size_t)a->D * sizeof(float));
    memset(buffers->q + block.n * a->D, 0, (size_t)((ATTENTION_ROWS - block.n) * a->D) * sizeof(float));
}

/* Whole tiles: a few scores beyond the diagonal or the last row are computed and never read. */
static void compute_scores(const ForwardPlan *plan, const ForwardBuffers *buffers, ForwardBlock block) {
    const int64_t D = plan->args->D;
    for (int64_t j = 0; j < block.first + block.n; j += GEMM_NR) {
        for (int64_t r = 0; r < block.n; r += GEMM_MR) {
            if (j > block.first + r + GEMM_MR - 1)
                continue;
            attention_chains(&(Chains){.a = buffers->q + r * D,
                                       .a_row = D,
                                       .a_step = 1,
                                       .b = buffers->k_columns + j * D,
                                       .c = buffers->s + r * plan->lds + j,
                                       .ldc = plan->lds,
                                       .len = D});
        }
    }
}

static void softmax_rows(const ForwardPlan *plan, const ForwardBuffers *buffers, ForwardBlock block) {
    const AttentionForward *a = plan->args;
    for (int64_t r = 0; r < block.n; r++) {
        float *s = buffers->s + r * plan->lds;
        const int64_t i = block.first + r, row = (block.b * a->H + block.h) * a->T + i;
        row_scale(s, i + 1, a->scale);
        const float max = row_max(s, i + 1);
        const float sum = row_exp_sum(s, s, i + 1, max);
        row_scale(s, i + 1, 1.0f / sum);
        a->max[row] = max;
        a->sum[row] = sum;
    }
}

static void compute_output(const ForwardPlan *plan, const ForwardBuffers *buffers, ForwardBlock block) {
    const AttentionForward *a = plan->args;
    for (int64_t d = 0; d < a->D; d += GEMM_NR)
        for (int64_t r = 0; r < block.n; r += GEMM_MR)
            attention_chains(&(Chains){.a = buffers->s + r * plan->lds,
                                       .a_row = plan->lds,
                                       .a_step = 1,
                                       .b = buffers->v_rows + d * buffers->padded_n,
                                       .c = buffers->o + r * plan->ldd + d,
                                       .ldc = plan->ldd,
                                       .len = block.first + r,
                                       .trail = true});
    for (int64_t r = 0; r < block.n; r++)
        memcpy(a->o + (block.b * a->T + block.first + r) * a->o_stride + block.h * a->D, buffers->o + r * plan->ldd,
               (size_t)a->D * sizeof(float));
}

static void forward_item(void *arg, int item, int thread) {
    const ForwardPlan *plan = arg;
    const AttentionForward *a = plan->args;
    const int64_t pairs = a->B * a->K, pair = item % pairs, group = a->H / a->K;
    const int64_t first = (plan->nranges - 1 - item / pairs) * plan->range_rows; /* the longest rows first */
    const int64_t end = first + plan->range_rows < a->T ? first + plan->range_rows : a->T;
    const ForwardBuffers buffers =
        forward_place(plan, plan->ctx->scratch(plan->ctx, thread, forward_nbytes(plan)), end);
    pack_keys(plan, &buffers, pair / a->K, pair % a->K, end);
    for (int64_t g = 0; g < group; g++) {
        for (int64_t i = first; i < end; i += ATTENTION_ROWS) {
            const ForwardBlock block = {.b = pair / a->K,
                                        .h = pair % a->K * group + g,
                                        .first = i,
                                        .n = end - i < ATTENTION_ROWS ? end - i : ATTENTION_ROWS};
            load_queries(plan, &buffers, block);
            compute_scores(plan, &buffers, block);
            softmax_rows(plan, &buffers, block);
            compute_output(plan, &buffers, block);
        }
    }
}

void ISA_NAME(attention_forward)(const KernelCtx *ctx, const void *args) {
    const AttentionForward *a = args;
    const int64_t pairs = a->B * a->K;
    if (pairs <= 0 || a->T <= 0)
        return;
    const int64_t wanted = ctx->nthreads > 1 ? (RANGES_PER_THREAD * ctx->nthreads + pairs - 1) / pairs : 1;
    const int64_t range_rows = attention_round((a->T + wanted - 1) / wanted, ATTENTION_ROWS);
    ForwardPlan plan = {.args = a,
                        .ctx = ctx,
                        .nranges = (a->T + range_rows - 1) / range_rows,
                        .range_rows = range_rows,
                        .ldd = attention_round(a->D, GEMM_NR),
                        .lds = attention_round(a->T, GEMM_NR)};
    split_run(ctx, (int)(pairs * plan.nranges), forward_item, &plan);
}
