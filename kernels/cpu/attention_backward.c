/* Causal grouped-query attention, backward. An item is one batch row and one kv head: the chains of dk and dv run over
 * the query rows in ascending order, and the heads of the group add up in theirs. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/attention_tile.h"
#include "kernels/cpu/row_ops.h"
#include "kernels/cpu/split.h"

typedef struct BackwardPlan {
    const AttentionBackward *args;
    const KernelCtx *ctx;
    int64_t ldd, lds, padded_n; /* D and T in whole panels, T in whole tiles */
} BackwardPlan;

typedef struct BackwardBuffers {
    float *k_columns, *v_columns, *k_rows; /* packed */
    float *dk, *dv;                        /* [padded_n, ldd] one head's chains */
    float *q, *d_o;                        /* [ATTENTION_ROWS, D] */
    float *q_rows, *d_o_rows;              /* the same, packed */
    float *p, *ds;                         /* [ATTENTION_ROWS, lds] */
    float *dq;                             /* [ATTENTION_ROWS, ldd] */
} BackwardBuffers;

/* Query rows [first, first + n) of head h. */
typedef struct BackwardBlock {
    int64_t b, h, first, n;
} BackwardBlock;

static float *take_floats(float **memory, int64_t n) {
    float *taken = *memory;
    *memory += n;
    return taken;
}

static size_t backward_nbytes(const BackwardPlan *plan) {
    const int64_t D = plan->args->D;
    return sizeof(float) * (size_t)(2 * plan->lds * D + 3 * plan->padded_n * plan->ldd +
                                    ATTENTION_ROWS * (2 * D + 3 * plan->ldd + 2 * plan->lds));
}

static BackwardBuffers backward_place(const BackwardPlan *plan, float *memory) {
    const int64_t D = plan->args->D;
    BackwardBuffers buffers;
    buffers.k_columns = take_floats(&memory, plan->lds * D);
    buffers.v_columns = take_floats(&memory, plan->lds * D);
    buffers.k_rows = take_floats(&memory, plan->padded_n * plan->ldd);
    buffers.dk = take_floats(&memory, plan->padded_n * plan->ldd);
    buffers.dv = take_floats(&memory, plan->padded_n * plan->ldd);
    buffers.q_rows = take_floats(&memory, ATTENTION_ROWS * plan->ldd);
    buffers.d_o_rows = take_floats(&memory, ATTENTION_ROWS * plan->ldd);
    buffers.dq = take_floats(&memory, ATTENTION_ROWS * plan->ldd);
    buffers.p = take_floats(&memory, ATTENTION_ROWS * plan->lds);
    buffers.ds = take_floats(&memory, ATTENTION_ROWS * plan->lds);
    buffers.q = take_floats(&memory, ATTENTION_ROWS * D);
    buffers.d_o = take_floats(&memory, ATTENTION_ROWS * D);
    return buffers;
}

static void load_rows(float *plain, float *packed, Rows rows) {
    for (int64_t r = 0; r < rows.n; r++)
        memcpy(plain + r * rows.D, rows.x + r * rows.stride, (size_t)rows.D * sizeof *plain);
    memset(plain + rows.n * rows.D, 0, (size_t)((ATTENTION_ROWS - rows.n) * rows.D) * sizeof *plain);
    attention_pack_rows(packed, rows, ATTENTION_ROWS);
}

static void load_block(const BackwardPlan *plan, const BackwardBuffers *buffers, BackwardBlock block) {
    const AttentionBackward *a = plan->args;
    const int64_t row = block.b * a->T + block.first;
    load_rows(buffers->q, buffers->q_rows,
              (Rows){a->q + row * a->q_stride + block.h * a->D, a->q_stride, block.n, a->D});
    load_rows(buffers->d_o, buffers->d_o_rows,
              (Rows){a->d_o + row * a->o_stride + block.h * a->D, a->o_stride, block.n, a->D});
}

/* Whole tiles: a few elements beyond the diagonal or the last row are computed and never read. */
static void multiply_columns(const BackwardPlan *plan, float *c, const float *rows, const float *columns,
                             BackwardBlock block) {
    const int64_t D = plan->args->D;
    for (int64_t j = 0; j < block.first + block.n; j += GEMM_NR) {
        for (int64_t r = 0; r < block.n; r += GEMM_MR) {
            if (j > block.first + r + GEMM_MR - 1)
                continue;
            attention_chains(&(Chains){.a = rows + r * D,
                                       .a_row = D,
                                       .a_step = 1,
                                       .b = columns + j * D,
                                       .c = c + r * plan->lds + j,
                                       .ldc = plan->lds,
                                       .len = D});
        }
    }
}

/* p = exp(s*scale - max)*(1/sum); ds = p*(dp - delta) */
static void differentiate_rows(const BackwardPlan *plan, const BackwardBuffers *buffers, BackwardBlock block) {
    const AttentionBackward *a = plan->args;
    for (int64_t r = 0; r < block.n; r++) {
        float *restrict p = buffers->p + r * plan->lds;
        float *restrict ds = buffers->ds + r * plan->lds;
        const int64_t i = block.first + r, row = (block.b * a->H + block.h) * a->T + i;
        const float *o = a->o + (block.b * a->T + i) * a->o_stride + block.h * a->D;
        const float delta = row_dot(buffers->d_o + r * a->D, o, a->D);
        row_scale(p, i + 1, a->scale);
        row_softmax(p, p, i + 1, a->max[row], 1.0f / a->sum[row]);
        for (int64_t j = 0; j <= i; j++)
            ds[j] = p[j] * (ds[j] - delta);
    }
}

static void compute_dq(const BackwardPlan *plan, const BackwardBuffers *buffers, BackwardBlock block) {
    const AttentionBackward *a = plan->args;
    for (int64_t d = 0; d < a->D; d += GEMM_NR)
        for (int64_t r = 0; r < block.n; r += GEMM_MR)
            attention_chains(&(Chains){.a = buffers->ds + r * plan->lds,
                                       .a_row = plan->lds,
                                       .a_step = 1,
                                       .b = buffers->k_rows + d * plan->padded_n,
                                       .c = buffers->dq + r * plan->ldd + d,
                                       .ldc = plan->ldd,
                                       .len = block.first + r,
                                       .trail = true});
    for (int64_t r = 0; r < block.n; r++) {
        const float *restrict from = buffers->dq + r * plan->ldd;
        float *restrict dq = a->dq + (block.b * a->T + block.first + r) * a->q_stride + block.h * a->D;
        for (int64_t d = 0; d < a->D; d++)
            dq[d] = from[d] * a->scale;
    }
}

/* Goes on with the chains over query rows for every key that this block sees; the block's own keys begin theirs. */
static void continue_keys(const BackwardPlan *plan, float *c, const float *weights, const float *rows,
                          BackwardBlock block) {
    for (int64_t j = 0; j < block.first + block.n; j += GEMM_MR) {
        const int64_t skipped = j > block.first ? j - block.first : 0;
        const int64_t steps = block.n - skipped;
        const bool begins = j >= block.first;
        const int lead = begins ? (int)(steps < GEMM_MR ? steps : GEMM_MR) : 0;
        for (int64_t d = 0; d < plan->args->D; d += GEMM_NR)
            attention_chains(&(Chains){.a = weights + skipped * plan->lds + j,
                                       .a_row = 1,
                                       .a_step = plan->lds,
                                       .b = rows + d * ATTENTION_ROWS + skipped * GEMM_NR,
                                       .c = c + j * plan->ldd + d,
                                       .ldc = plan->ldd,
                                       .resumes = !begins,
                                       .lead = lead,
                                       .len = steps - lead});
    }
}

static void backward_block(const BackwardPlan *plan, const BackwardBuffers *buffers, BackwardBlock block) {
    load_block(plan, buffers, block);
    multiply_columns(plan, buffers->p, buffers->q, buffers->k_columns, block);
    multiply_columns(plan, buffers->ds, buffers->d_o, buffers->v_columns, block);
    differentiate_rows(plan, buffers, block);
    compute_dq(plan, buffers, block);
    continue_keys(plan, buffers->dk, buffers->ds, buffers->q_rows, block);
    continue_keys(plan, buffers->dv, buffers->p, buffers->d_o_rows, block);
}

/* out (+)= chain*factor: the first head of a group writes, the others add. */
static void add_head(const BackwardPlan *plan, float *out, const float *chain, float factor, bool first) {
    const AttentionBackward *a = plan->args;
    for (int64_t j = 0; j < a->T; j++) {
        const float *restrict from = chain + j * plan->ldd;
        float *restrict to = out + j * a->kv_stride;
        for (int64_t d = 0; d < a->D; d++)
            to[d] = first ? from[d] * factor : to[d] + from[d] * factor;
    }
}

static void backward_item(void *arg, int item, int thread) {
    const BackwardPlan *plan = arg;
    const AttentionBackward *a = plan->args;
    const int64_t b = item / a->K, kv_head = item % a->K, group = a->H / a->K;
    const int64_t at = b * a->T * a->kv_stride + kv_head * a->D;
    const BackwardBuffers buffers = backward_place(plan, plan->ctx->scratch(plan->ctx, thread, backward_nbytes(plan)));
    attention_pack_columns(buffers.k_columns, (Rows){a->k + at, a->kv_stride, a->T, a->D});
    attention_pack_columns(buffers.v_columns, (Rows){a->v + at, a->kv_stride, a->T, a->D});
    attention_pack_rows(buffers.k_rows, (Rows){a->k + at, a->kv_stride, a->T, a->D}, plan->padded_n);
    for (int64_t g = 0; g < group; g++) {
        for (int64_t i = 0; i < a->T; i += ATTENTION_ROWS)
            backward_block(plan, &buffers,
                           (BackwardBlock){.b = b,
                                           .h = kv_head * group + g,
                                           .first = i,
                                           .n = a->T - i < ATTENTION_ROWS ? a->T - i : ATTENTION_ROWS});
        add_head(plan, a->dk + at, buffers.dk, a->scale, g == 0);
        add_head(plan, a->dv + at, buffers.dv, 1.0f, g == 0);
    }
}

void ISA_NAME(attention_backward)(const KernelCtx *ctx, const void *args) {
    const AttentionBackward *a = args;
    if (a->B * a->K <= 0 || a->T <= 0)
        return;
    BackwardPlan plan = {.args = a,
                         .ctx = ctx,
                         .ldd = attention_round(a->D, GEMM_NR),
                         .lds = attention_round(a->T, GEMM_NR),
                         .padded_n = attention_round(a->T, GEMM_MR)};
    split_run(ctx, (int)(a->B * a->K), backward_item, &plan);
}
