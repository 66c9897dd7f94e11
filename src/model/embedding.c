/* Token lookup and its gradient. */
#include "model/embedding.h"

#include "tensor/ops.h"

/* Rows of other tp ranks are left alone: they are taken from their holder, never added. */
void embedding_forward(const Leaf *leaf, float *x, const float *table, const int32_t *ids) {
    ops_embedding_forward(leaf->stream, (EmbeddingForward){.y = x,
                                                           .table = table,
                                                           .ids = ids,
                                                           .n = leaf_tokens(leaf),
                                                           .d = leaf->shape->C,
                                                           .first_row = leaf->local.first_id,
                                                           .nrows = leaf->local.V});
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
