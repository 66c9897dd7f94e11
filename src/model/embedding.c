/* Token lookup and its gradient. */
#include "model/embedding.h"

#include "tensor/ops.h"

/* Under tp a token's row is taken from the rank that holds it: the bits are summed as integers, all but one of them 0,
 * so that nothing is added as a number. Two elements make one 64-bit word; x has room for an even count. */
static void exchange_rows(const Leaf *leaf, float *x, int64_t n) {
    const CommTag tag = leaf_tag(leaf, "tp embedding rows", n);
    comm_all_reduce(leaf->tp, leaf->stream, x, x, (n + 1) / 2, DTYPE_U64, tag);
}

void embedding_forward(const Leaf *leaf, float *x, const float *table, const int32_t *ids) {
    const int64_t n = leaf_tokens(leaf) * leaf->shape->C;
    const bool cut = comm_size(leaf->tp) > 1;
    if (cut)
        ops_fill(leaf->stream, (Fill){.x = x, .n = n + n % 2, .value = 0.0f});
    ops_embedding_forward(leaf->stream, (EmbeddingForward){.y = x,
                                                           .table = table,
                                                           .ids = ids,
                                                           .n = leaf_tokens(leaf),
                                                           .d = leaf->shape->C,
                                                           .first_row = leaf->local.first_id,
                                                           .nrows = leaf->local.V});
    if (cut)
        exchange_rows(leaf, x, n);
}

void embedding_backward(const Leaf *leaf, float *dtable, const float *dx, const int32_t *ids, bool accumulate) {
    ops_embedding_backward(leaf->stream, (EmbeddingBackward){.dtable = dtable,
                                                             .dy = dx,
                                                             .ids = ids,
                                                             .n = leaf_tokens(leaf),
                                                             .d = leaf->shape->C,
                                                             .first_row = leaf->local.first_id,
                                                             .nrows = leaf->local.V,
                                                             .accumulate = accumulate});
}
