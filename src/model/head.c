/* The final norm, the projection to the vocabulary, and the loss. Padded columns of the logits take no part; padded
 * rows of the weight's gradient are +0. */
#include "model/head.h"

#include "model/linear.h"
#include "model/norm.h"
#include "tensor/ops.h"

/* logits [rows, V]: only the real columns are computed. */
static LinearDims logit_dims(const Leaf *leaf, int64_t rows) {
    return (LinearDims){.rows = rows, .out = leaf->local.vocab, .in = leaf->shape->C, .ld = leaf->local.V};
}

void head_logits(const Leaf *leaf, HeadParams params, const HeadActs *acts, int64_t first, int64_t rows) {
    const float *x = acts->x + first * leaf->shape->C;
    norm_forward(leaf, norm_over_width(leaf, x, params.gain, acts->rstd, rows), acts->h);
    linear_logits(leaf, logit_dims(leaf, rows), acts->logits.x, acts->h, params.weight);
}

/* The maximum of each row and its target's logit; of a cut vocabulary every rank finds its own and selects among all.
 */
static void row_maxima(const Leaf *leaf, const HeadActs *acts, const int32_t *targets) {
    const LocalShape *local = &leaf->local;
    const int64_t N = leaf_tokens(leaf);
    const int ranks = comm_size(leaf->tp);
    float *mine = ranks > 1 ? acts->parts + 2 * N * comm_rank(leaf->tp) : NULL;
    ops_loss_max(leaf->stream, (LossMax){.max = mine ? mine : acts->max,
                                         .z_t = mine ? mine + N : acts->z_t,
                                         .z = acts->logits.x,
                                         .target = targets,
                                         .n = N,
                                         .ld = local->V,
                                         .cols = local->vocab,
                                         .first_col = local->first_id});
    if (ranks == 1)
        return;
    comm_all_gather(leaf->tp, leaf->stream, mine, acts->parts, 2 * N, DTYPE_F32,
                    leaf_tag(leaf, "tp row maxima", 2 * N * ranks));
    ops_loss_select(leaf->stream, (LossSelect){.max = acts->max,
                                               .z_t = acts->z_t,
                                               .parts = acts->parts,
                                               .target = targets,
                                               .n = N,
                                               .rank_cols = local->V,
                                               .ranks = ranks});
}

/* The soft-max denominators: the segments' tree goes on across the tp ranks. */
static void row_sums(const Leaf *leaf, const HeadActs *acts) {
    const LocalShape *local = &leaf->local;
    const int64_t N = leaf_tokens(leaf);
    ops_loss_sum(leaf->stream, (LossSum){.sum = acts->sum,
                                         .z = acts->logits.x,
                                         .max = acts->max,
                                         .n = N,
                                         .ld = local->V,
                                         .cols = local->vocab,
                                         .segment = local->V / local->segments,
                                         .nsegments = local->segments});
    comm_all_reduce(leaf->tp, leaf->stream, acts->sum, acts->sum, N, DTYPE_F32, leaf_tag(leaf, "tp row sums", N));
}

void head_token_loss(const Leaf *leaf, const HeadActs *acts, const int32_t *targets) {
    const LocalShape *local = &leaf->local;
    const int64_t N = leaf_tokens(leaf);
    row_maxima(leaf, acts, targets);
    row_sums(leaf, acts);
    ops_loss_grad(leaf->stream, (LossGrad){.loss = acts->token_loss,
                                           .z = acts->logits.x,
                                           .max = acts->max,
                                           .sum = acts->sum,
                                           .z_t = acts->z_t,
                                           .target = targets,
                                           .n = N,
                                           .ld = local->V,
                                           .cols = local->vocab,
                                           .first_col = local->first_id,
                                           .factor = 1.0f});
}

/* 1/tokens of the leaf, rounded once. */
static float token_factor(const Leaf *leaf) {
    return (float)(1.0 / (double)leaf_tokens(leaf));
}

void head_leaf_loss(const Leaf *leaf, const HeadActs *acts) {
    ops_lane_mean(
        leaf->stream,
        (LaneMean){
            .out = acts->loss, .x = acts->token_loss, .rows = 1, .n = leaf_tokens(leaf), .factor = token_factor(leaf)});
}

void head_window_sums(const Leaf *leaf, const HeadActs *acts) {
    ops_lane_mean(
        leaf->stream,
        (LaneMean){.out = acts->window_sum, .x = acts->token_loss, .rows = leaf->B, .n = leaf->T, .factor = 1.0f});
}

const float *head_whole_logits(const Leaf *leaf, const HeadActs *acts) {
    const int64_t V = leaf->local.V;
    if (comm_size(leaf->tp) == 1)
        return acts->logits.x;
    comm_all_gather(leaf->tp, leaf->stream, acts->logits.x, acts->all_logits, V, DTYPE_F32,
                    leaf_tag(leaf, "tp logits", V * comm_size(leaf->tp)));
    return acts->all_logits;
}

static void logits_backward(const Leaf *leaf, const HeadActs *acts, const int32_t *targets) {
    ops_loss_grad(leaf->stream, (LossGrad){.dz = acts->logits.x,
                                           .z = acts->logits.x,
                                           .max = acts->max,
                                           .sum = acts->sum,
                                           .z_t = acts->z_t,
                                           .target = targets,
                                           .n = leaf_tokens(leaf),
                                           .ld = leaf->local.V,
                                           .cols = leaf->local.vocab,
                                           .first_col = leaf->local.first_id,
                                           .factor = token_factor(leaf)});
    leaf_stored(leaf, acts->logits, leaf_tokens(leaf) * leaf->local.V);
}

static void weight_backward(const Leaf *leaf, float *dweight, const HeadActs *acts) {
    const int64_t C = leaf->shape->C, padded = leaf->local.V - leaf->local.vocab;
    linear_weight_grad(leaf, logit_dims(leaf, leaf_tokens(leaf)), dweight, acts->logits, acts->h);
    if (padded > 0)
        ops_fill(leaf->stream, (Fill){.x = dweight + leaf->local.vocab * C, .n = padded * C, .value = 0.0f});
}

void head_backward(const Leaf *leaf, HeadParams params, const HeadActs *acts, const int32_t *targets,
                   const Scratch *scratch) {
    const int64_t N = leaf_tokens(leaf);
    logits_backward(leaf, acts, targets);
    weight_backward(leaf, params.dweight, acts);
    const LinearPart part = {.dy = acts->logits,
                             .w = params.weight,
                             .out = leaf->local.vocab,
                             .ld = leaf->local.V,
                             .padded_out = leaf->local.V};
    linear_input_grad_cut(leaf, scratch->y, N, leaf->shape->C, &part, 1);
    const Norm norm = norm_over_width(leaf, acts->x, params.gain, acts->rstd, N);
    norm_backward(leaf, norm, scratch->dx, scratch->y, NULL, params.dgain);
}
