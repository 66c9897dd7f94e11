/* Attention on a CUDA device that rounds operands: pinned products over blocks of query rows, soft-max between them.
 * The query heads of a kv head are rows of one matrix, so that products over keys add up the heads of a group. Scores
 * lie in scratch for one block and as many pairs as fit (device/products.h); a pair's bits do not depend on the others.
 */
#include "device/cuda.h"
#include "device/gemm_cuda.h"

#include "base/arena.h"
#include "kernels/cuda/attention_rows.h"

typedef struct Attention {
    GemmCuda *gemms;
    const KernelCtx *ctx;
    OperandType type;
    int64_t B, T, K, D, group;
    float scale;
    AttentionCut cut;
    HeadTensor q, k, v, d_o;         /* operands; d_o is backward's */
    float *scores, *dp;              /* [pairs][rows*group] rows of keys; dp is backward's */
    void *p, *ds;                    /* of `type`; where that is f32 they lie in place of scores and dp */
    float *delta;                    /* [B,H,T] */
    HeadTensor result[HEAD_TENSORS]; /* o; dq, dk, dv. heads NULL: written in place */
    int64_t nresults;
} Attention;

/* Rows of `pairs` pairs from `pair` on, of tokens [first, first + rows), with the keys [0, keys) before their end. */
typedef struct Part {
    int64_t pair, pairs, first, rows, keys;
} Part;

/* ---- places ---- */

static bool in_place(const Attention *a, const HeadTensor *x) {
    return a->B == 1 && x->group == 1 && gemm_cuda_aligned(x->tokens, x->stride, a->D, OPERAND_F32);
}

static size_t heads_nelem(const Attention *a, const HeadTensor *x) {
    return (size_t)(a->B * a->K * a->T * x->group * x->row_stride);
}

static HeadTensor operand(const Attention *a, const float *tokens, int64_t group, int64_t stride) {
    return (HeadTensor){(float *)(uintptr_t)tokens, NULL, group, stride, gemm_cuda_stride(a->D, a->type)};
}

static void place_operand(const Attention *a, Arena *scratch, HeadTensor *x) {
    x->heads = arena_push(scratch, heads_nelem(a, x) * gemm_cuda_element(a->type));
}

static HeadTensor result(const Attention *a, float *tokens, int64_t group, int64_t stride) {
    return (HeadTensor){tokens, NULL, group, stride, gemm_cuda_stride(a->D, OPERAND_F32)};
}

static void place_results(Attention *a, Arena *scratch) {
    for (int64_t i = 0; i < a->nresults; i++)
        if (!in_place(a, &a->result[i]))
            a->result[i].heads = ARENA_PUSH(scratch, float, heads_nelem(a, &a->result[i]));
}

/* A matrix of scores, and what is made of it. */
static void place_scores(const Attention *a, Arena *scratch, float **scores, void **operands) {
    const int64_t pairs = a->cut.pairs < a->B * a->K ? a->cut.pairs : a->B * a->K;
    const int64_t rows = pairs * a->cut.rows * a->group;
    *scores = ARENA_PUSH(scratch, float, rows *gemm_cuda_stride(a->T, OPERAND_F32));
    *operands =
        a->type == OPERAND_F32
            ? *scores
            : arena_push(scratch, (size_t)(rows * gemm_cuda_stride(a->T, a->type)) * gemm_cuda_element(a->type));
}

static void place_forward(Attention *a, Arena *scratch) {
    place_operand(a, scratch, &a->q);
    place_operand(a, scratch, &a->k);
    place_operand(a, scratch, &a->v);
    place_scores(a, scratch, &a->scores, &a->p);
    place_results(a, scratch);
}

static void place_backward(Attention *a, Arena *scratch) {
    place_forward(a, scratch);
    place_operand(a, scratch, &a->d_o);
    place_scores(a, scratch, &a->dp, &a->ds);
    a->delta = ARENA_PUSH(scratch, float, a->B * a->K * a->group * a->T);
}

/* Twice: to learn the size, and to place. */
static void place(Attention *a, void (*layout)(Attention *a, Arena *scratch)) {
    Arena measure = {0};
    layout(a, &measure);
    Arena scratch = {.base = a->ctx->scratch(a->ctx, 0, measure.used), .capacity = measure.used};
    layout(a, &scratch);
}

/* ---- products ---- */

static GemmPlace operand_at(const Attention *a, const HeadTensor *x, int64_t pair, int64_t token) {
    const int64_t row = (pair * a->T + token) * x->group;
    return (GemmPlace){(char *)x->heads + (size_t)(row * x->row_stride) * gemm_cuda_element(a->type), x->row_stride,
                       a->T * x->group * x->row_stride};
}

static GemmPlace result_at(const Attention *a, const HeadTensor *x, int64_t pair, int64_t token) {
    if (x->heads == NULL)
        return (GemmPlace){x->tokens + token * x->stride + pair * a->D, x->stride, a->D};
    return (GemmPlace){(float *)x->heads + (pair * a->T + token) * x->group * x->row_stride, x->row_stride,
                       a->T * x->group * x->row_stride};
}

static GemmPlace matrix_at(const Attention *a, const Part *part, void *at, OperandType type) {
    const int64_t stride = gemm_cuda_stride(part->keys, type);
    return (GemmPlace){at, stride, part->rows * a->group * stride};
}

static void multiply(const Attention *a, const Part *part, ProductShape shape, GemmTask task) {
    const GemmCall call = {shape.m, shape.n, shape.k, shape.trans_a, shape.trans_b, a->type};
    task.batch = part->pairs;
    gemm_cuda_call(a->gemms, &call, &task, a->ctx->stream);
}

/* scores = rows of x times keys of y, both over D. */
static void multiply_rows(const Attention *a, const Part *part, const HeadTensor *x, const HeadTensor *y, float *to) {
    multiply(a, part, attention_product_rows(part->rows * a->group, part->keys, a->D),
             (GemmTask){.a = operand_at(a, x, part->pair, part->first),
                        .b = operand_at(a, y, part->pair, 0),
                        .c = matrix_at(a, part, to, OPERAND_F32)});
}

/* to = weights times x, over keys. */
static void multiply_keys(const Attention *a, const Part *part, void *weights, const HeadTensor *x,
                          const HeadTensor *to) {
    multiply(a, part, attention_product_keys(part->rows * a->group, part->keys, a->D),
             (GemmTask){.a = matrix_at(a, part, weights, a->type),
                        .b = operand_at(a, x, part->pair, 0),
                        .c = result_at(a, to, part->pair, part->first)});
}

/* to (+)= weights^T times x, over rows. The block with the last rows has all keys and comes first. */
static void multiply_transposed(const Attention *a, const Part *part, void *weights, const HeadTensor *x,
                                const HeadTensor *to) {
    multiply(a, part, attention_product_transposed(part->rows * a->group, part->keys, a->D),
             (GemmTask){.a = matrix_at(a, part, weights, a->type),
                        .b = operand_at(a, x, part->pair, part->first),
                        .c = result_at(a, to, part->pair, 0),
                        .accumulate = part->keys < a->T});
}

static ScoreRows rows_of(const Attention *a, const Part *part) {
    return (ScoreRows){.pair = part->pair,
                       .pairs = part->pairs,
                       .first = part->first,
                       .rows = part->rows,
                       .keys = part->keys,
                       .group = a->group,
                       .T = a->T,
                       .score_stride = gemm_cuda_stride(part->keys, OPERAND_F32),
                       .operand_stride = gemm_cuda_stride(part->keys, a->type),
                       .scale = a->scale,
                       .type = a->type};
}

/* ---- parts ---- */

typedef void (*PartWork)(const Attention *a, const Part *part, const void *args);

/* Every block of rows of every pair, the last block first. */
static void for_each_part(const Attention *a, PartWork work, const void *args) {
    const int64_t all = a->B * a->K, step = a->cut.rows;
    for (int64_t pair = 0; pair < all; pair += a->cut.pairs)
        for (int64_t first = (a->T - 1) / step * step; first >= 0; first -= step) {
            const int64_t pairs = all - pair < a->cut.pairs ? all - pair : a->cut.pairs;
            const int64_t rows = a->T - first < step ? a->T - first : step;
            work(a, &(Part){pair, pairs, first, rows, first + rows}, args);
        }
}

/* Results that could not be written in place, in one launch. */
static void unpack(const Attention *a) {
    HeadUnpack task = {.B = a->B, .T = a->T, .K = a->K, .D = a->D};
    for (int64_t i = 0; i < a->nresults; i++)
        if (a->result[i].heads != NULL)
            task.tensor[task.count++] = a->result[i];
    if (task.count > 0)
        head_unpack_cuda(a->ctx, &task);
}

static Attention attention_of(const CudaProducts *products, const KernelCtx *ctx, int64_t B, int64_t T, int64_t H,
                              int64_t K, int64_t D, float scale) {
    return (Attention){.gemms = cuda_products_gemms(products),
                       .ctx = ctx,
                       .type = cuda_products_type(products),
                       .B = B,
                       .T = T,
                       .K = K,
                       .D = D,
                       .group = H / K,
                       .scale = scale,
                       .cut = attention_cut(T, H, K)};
}

/* ---- forward ---- */

static void forward_part(const Attention *a, const Part *part, const void *args) {
    const AttentionForward *f = args;
    multiply_rows(a, part, &a->q, &a->k, a->scores);
    score_softmax_cuda(
        a->ctx,
        &(ScoreSoftmax){.rows = rows_of(a, part), .scores = a->scores, .p = a->p, .max = f->max, .sum = f->sum});
    multiply_keys(a, part, a->p, &a->v, &a->result[0]);
}

void cuda_attention_forward(const CudaProducts *products, const KernelCtx *ctx, const AttentionForward *f) {
    if (f->B * f->K <= 0 || f->T <= 0)
        return;
    Attention a = attention_of(products, ctx, f->B, f->T, f->H, f->K, f->D, f->scale);
    a.q = operand(&a, f->q, a.group, f->q_stride);
    a.k = operand(&a, f->k, 1, f->kv_stride);
    a.v = operand(&a, f->v, 1, f->kv_stride);
    a.result[a.nresults++] = result(&a, f->o, a.group, f->o_stride);
    place(&a, place_forward);
    head_pack_cuda(
        ctx,
        &(HeadPack){.tensor = {a.q, a.k, a.v}, .B = a.B, .T = a.T, .K = a.K, .D = a.D, .count = 3, .type = a.type});
    for_each_part(&a, forward_part, f);
    unpack(&a);
}

/* ---- backward ---- */

static void backward_part(const Attention *a, const Part *part, const void *args) {
    const AttentionBackward *g = args;
    multiply_rows(a, part, &a->q, &a->k, a->scores);
    multiply_rows(a, part, &a->d_o, &a->v, a->dp);
    score_gradient_cuda(a->ctx, &(ScoreGradient){.rows = rows_of(a, part),
                                                 .scores = a->scores,
                                                 .dp = a->dp,
                                                 .p = a->p,
                                                 .ds = a->ds,
                                                 .max = g->max,
                                                 .sum = g->sum,
                                                 .delta = a->delta});
    multiply_keys(a, part, a->ds, &a->k, &a->result[0]);
    multiply_transposed(a, part, a->ds, &a->q, &a->result[1]);
    multiply_transposed(a, part, a->p, &a->d_o, &a->result[2]);
}

void cuda_attention_backward(const CudaProducts *products, const KernelCtx *ctx, const AttentionBackward *g) {
    if (g->B * g->K <= 0 || g->T <= 0)
        return;
    Attention a = attention_of(products, ctx, g->B, g->T, g->H, g->K, g->D, g->scale);
    a.q = operand(&a, g->q, a.group, g->q_stride);
    a.k = operand(&a, g->k, 1, g->kv_stride);
    a.v = operand(&a, g->v, 1, g->kv_stride);
    a.d_o = operand(&a, g->d_o, a.group, g->o_stride);
    a.result[a.nresults++] = result(&a, g->dq, a.group, g->q_stride);
    a.result[a.nresults++] = result(&a, g->dk, 1, g->kv_stride);
    a.result[a.nresults++] = result(&a, g->dv, 1, g->kv_stride);
    place(&a, place_backward);
    head_pack_cuda(ctx, &(HeadPack){.tensor = {a.q, a.k, a.v, a.d_o},
                                    .o = g->o,
                                    .delta = a.delta,
                                    .B = a.B,
                                    .T = a.T,
                                    .K = a.K,
                                    .D = a.D,
                                    .count = HEAD_TENSORS,
                                    .type = a.type});
    for_each_part(&a, backward_part, g);
    unpack(&a);
}
