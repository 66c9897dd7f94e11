/* The checks that stand before every kernel. A size of 0 is legal and then no pointer is looked at. */
#include "tensor/ops.h"

#include "base/fatal.h"

/* A pointer is needed where there is at least one element. */
static bool given(const void *pointer, int64_t nelem) {
    return nelem == 0 || pointer != NULL;
}

static void check_gemm_part(const Gemm *a, const GemmPart *p) {
    DM_ASSERT(p->k >= 0 && given(p->a, a->m * p->k) && given(p->b, a->n * p->k));
    DM_ASSERT(a->m * p->k == 0 || p->lda >= (a->trans_a ? a->m : p->k));
    DM_ASSERT(a->n * p->k == 0 || p->ldb >= (a->trans_b ? p->k : a->n));
    DM_ASSERT(a->nsegments == 1 || (p->segment >= 0 && p->k <= p->segment * a->nsegments));
}

static void check_gemm(const Gemm *a) {
    DM_ASSERT(a->m >= 0 && a->n >= 0 && given(a->c, a->m * a->n) && (a->m == 0 || a->ldc >= a->n));
    DM_ASSERT(a->nparts >= 1 && a->nparts <= 3);
    DM_ASSERT(a->nsegments >= 1 && a->nsegments <= 64 && (a->nsegments & (a->nsegments - 1)) == 0);
    DM_ASSERT(a->shape == GEMM_FULL || (a->shape == GEMM_LOWER_MIRRORED && a->m == a->n));
    for (int i = 0; i < a->nparts; i++)
        check_gemm_part(a, &a->part[i]);
}

static void check_copy(const Copy *a) {
    DM_ASSERT(a->rows >= 0 && a->cols >= 0 && given(a->dst, a->rows * a->cols) && given(a->src, a->rows * a->cols));
    DM_ASSERT(a->rows <= 1 || (a->dst_stride >= a->cols && a->src_stride >= a->cols));
}

static void check_fill(const Fill *a) {
    DM_ASSERT(a->n >= 0 && given(a->x, a->n));
}

static void check_add(const Add *a) {
    DM_ASSERT(a->n >= 0 && given(a->dst, a->n) && given(a->a, a->n) && given(a->b, a->n));
}

static void check_scale(const Scale *a) {
    DM_ASSERT(a->n >= 0 && given(a->x, a->n));
}

static void check_sum_tree(const SumTree *a) {
    DM_ASSERT(a->n >= 0 && a->count >= 1 && a->count <= 1024);
    DM_ASSERT(given(a->dst, a->n) && given(a->src, a->n) && (a->count == 1 || a->stride >= a->n));
}

static void check_bias_add(const BiasAdd *a) {
    DM_ASSERT(a->rows >= 0 && a->cols >= 0 && given(a->y, a->rows * a->cols) && given(a->b, a->cols));
}

static void check_bias_grad(const BiasGrad *a) {
    DM_ASSERT(a->rows >= 0 && a->cols >= 0 && given(a->db, a->cols) && given(a->dy, a->rows * a->cols));
}

static void check_embedding_forward(const EmbeddingForward *a) {
    DM_ASSERT(a->n >= 0 && a->d >= 1 && a->nrows >= 0 && a->first_row >= 0);
    DM_ASSERT(given(a->y, a->n) && given(a->ids, a->n) && given(a->table, a->nrows));
}

static void check_embedding_backward(const EmbeddingBackward *a) {
    DM_ASSERT(a->n >= 0 && a->d >= 1 && a->nrows >= 0 && a->first_row >= 0);
    DM_ASSERT(given(a->dy, a->n) && given(a->ids, a->n) && given(a->dtable, a->nrows));
}

static void check_rmsnorm_forward(const RmsnormForward *a) {
    DM_ASSERT(a->rows >= 0 && a->d >= 1);
    DM_ASSERT(given(a->y, a->rows) && given(a->rstd, a->rows) && given(a->x, a->rows) && given(a->w, a->rows));
}

static void check_rmsnorm_backward(const RmsnormBackward *a) {
    DM_ASSERT(a->rows >= 0 && a->d >= 1 && given(a->dx, a->rows) && given(a->dy, a->rows));
    DM_ASSERT(given(a->x, a->rows) && given(a->w, a->rows) && given(a->rstd, a->rows));
}

static void check_rmsnorm_gain_grad(const RmsnormGainGrad *a) {
    DM_ASSERT(a->tokens >= 0 && a->heads >= 1 && a->d >= 1 && a->dw != NULL);
    DM_ASSERT(a->runs >= 1 && a->runs <= 256 && a->heads % a->runs == 0);
    DM_ASSERT(given(a->dy, a->tokens) && given(a->x, a->tokens) && given(a->rstd, a->tokens));
}

static void check_rope(const Rope *a) {
    DM_ASSERT(a->n >= 0 && a->heads >= 1 && a->d >= 2 && a->d % 2 == 0 && a->stride >= a->heads * a->d);
    DM_ASSERT(a->T >= 1 && given(a->x, a->n) && given(a->cos, a->n) && given(a->sin, a->n));
}

static void check_attention_forward(const AttentionForward *a) {
    DM_ASSERT(a->B >= 0 && a->T >= 0 && a->D >= 1 && a->K >= 1 && a->H >= a->K && a->H % a->K == 0);
    DM_ASSERT(a->q_stride >= a->H * a->D && a->o_stride >= a->H * a->D && a->kv_stride >= a->K * a->D);
    const int64_t tokens = a->B * a->T;
    DM_ASSERT(given(a->q, tokens) && given(a->k, tokens) && given(a->v, tokens) && given(a->o, tokens));
    DM_ASSERT(given(a->max, tokens) && given(a->sum, tokens));
}

static void check_attention_backward(const AttentionBackward *a) {
    DM_ASSERT(a->B >= 0 && a->T >= 0 && a->D >= 1 && a->K >= 1 && a->H >= a->K && a->H % a->K == 0);
    DM_ASSERT(a->q_stride >= a->H * a->D && a->o_stride >= a->H * a->D && a->kv_stride >= a->K * a->D);
    const int64_t tokens = a->B * a->T;
    DM_ASSERT(given(a->q, tokens) && given(a->k, tokens) && given(a->v, tokens) && given(a->o, tokens));
    DM_ASSERT(given(a->max, tokens) && given(a->sum, tokens) && given(a->d_o, tokens));
    DM_ASSERT(given(a->dq, tokens) && given(a->dk, tokens) && given(a->dv, tokens));
}

static void check_swiglu_forward(const SwigluForward *a) {
    DM_ASSERT(a->n >= 0 && given(a->a, a->n) && given(a->z, a->n) && given(a->u, a->n));
}

static void check_swiglu_backward(const SwigluBackward *a) {
    DM_ASSERT(a->n >= 0 && given(a->dz, a->n) && given(a->du, a->n));
    DM_ASSERT(given(a->da, a->n) && given(a->z, a->n) && given(a->u, a->n));
}

static void check_loss_max(const LossMax *a) {
    DM_ASSERT(a->n >= 0 && a->cols >= 0 && a->ld >= a->cols && a->first_col >= 0);
    DM_ASSERT(given(a->max, a->n) && given(a->z_t, a->n) && given(a->target, a->n) && given(a->z, a->n * a->cols));
}

static void check_loss_select(const LossSelect *a) {
    DM_ASSERT(a->n >= 0 && a->ranks >= 1 && a->rank_cols >= 1);
    DM_ASSERT(given(a->max, a->n) && given(a->z_t, a->n) && given(a->target, a->n) && given(a->parts, a->n));
}

static void check_loss_sum(const LossSum *a) {
    DM_ASSERT(a->n >= 0 && a->cols >= 0 && a->ld >= a->cols && a->nsegments >= 1 && a->segment >= 0);
    DM_ASSERT(a->cols <= a->segment * a->nsegments);
    DM_ASSERT(given(a->sum, a->n) && given(a->max, a->n) && given(a->z, a->n * a->cols));
}

static void check_loss_grad(const LossGrad *a) {
    DM_ASSERT(a->n >= 0 && a->cols >= 0 && a->ld >= a->cols && a->first_col >= 0 && (a->loss != NULL || a->dz != NULL));
    DM_ASSERT(given(a->max, a->n) && given(a->sum, a->n) && given(a->z_t, a->n) && given(a->target, a->n));
    DM_ASSERT(a->dz == NULL || given(a->z, a->n * a->cols));
}

static void check_lane_mean(const LaneMean *a) {
    DM_ASSERT(a->rows >= 0 && a->n >= 0 && given(a->out, a->rows) && given(a->x, a->rows * a->n));
}

static void check_adamw(const Adamw *a) {
    DM_ASSERT(a->n >= 0 && given(a->w, a->n) && given(a->m, a->n) && given(a->v, a->n) && given(a->g, a->n));
}

static void check_muon_momentum(const MuonMomentum *a) {
    DM_ASSERT(a->n >= 0 && given(a->out, a->n) && given(a->momentum, a->n) && given(a->g, a->n));
}

static void check_muon_apply(const MuonApply *a) {
    DM_ASSERT(a->n >= 0 && given(a->w, a->n) && given(a->update, a->n));
}

static void check_abs_max(const AbsMax *a) {
    DM_ASSERT(a->n >= 0 && a->out != NULL && given(a->x, a->n));
}

static void check_sum_squares_rows(const SumSquaresRows *a) {
    DM_ASSERT(a->rows >= 0 && a->cols >= 0 && (a->dim == 0 || a->dim == 1) && a->nsegments >= 1);
    DM_ASSERT(a->out != NULL && given(a->x, a->rows * a->cols));
}

static void check_sum_squares_blocks(const SumSquaresBlocks *a) {
    DM_ASSERT(a->nblocks >= 0 && given(a->out, a->nblocks) && given(a->x, a->nblocks) && given(a->size, a->nblocks));
}

static void check_ns_scale_pow2(const NsScalePow2 *a) {
    DM_ASSERT(a->n >= 0 && given(a->y, a->n) && given(a->x, a->n) && given(a->abs_max, a->n));
}

static void check_ns_normalize(const NsNormalize *a) {
    DM_ASSERT(a->n >= 0 && given(a->y, a->n) && given(a->x, a->n) && a->sumsq != NULL && a->nsegments >= 1);
}

static void check_ns_combine(const NsCombine *a) {
    DM_ASSERT(a->n >= 0 && given(a->out, a->n) && given(a->x, a->n) && given(a->y, a->n));
}

static void check_add_diagonal(const AddDiagonal *a) {
    DM_ASSERT(a->m >= 0 && given(a->out, a->m) && given(a->x, a->m));
}

static void check_round_bf16(const RoundBf16 *a) {
    DM_ASSERT(a->n >= 0 && given(a->y, a->n) && given(a->x, a->n));
}

static void check_pack_bf16(const PackBf16 *a) {
    DM_ASSERT(a->n >= 0 && given(a->y, a->n) && given(a->x, a->n));
}

static void check_unpack_bf16(const UnpackBf16 *a) {
    DM_ASSERT(a->n >= 0 && given(a->y, a->n) && given(a->x, a->n));
}

/* What is queued is a function of the arguments: no stray bytes between them. */
#if defined __has_builtin && __has_builtin(__builtin_clear_padding)
#define CLEAR_PADDING(args) __builtin_clear_padding(args)
#else
#define CLEAR_PADDING(args) ((void)(args))
#endif

#define OPS_DEFINE_(id, args, name)                                                                                    \
    void ops_##name(Stream *stream, args a) {                                                                          \
        _Static_assert(sizeof a <= 512, "a launch copies at most 512 bytes");                                          \
        check_##name(&a);                                                                                              \
        CLEAR_PADDING(&a);                                                                                             \
        stream_launch(stream, KERNEL_##id, &a, sizeof a);                                                              \
    }
KERNEL_LIST(OPS_DEFINE_)
#undef OPS_DEFINE_
