/* Token lookup and its gradient. */
#ifndef DMUON_MODEL_EMBEDDING_H
#define DMUON_MODEL_EMBEDDING_H

#include <stdbool.h>
#include <stdint.h>

#include "model/leaf.h"

/* x [N,C] = the rows of table [V,C] that ids [N] name. */
void embedding_forward(const Leaf *leaf, float *x, const float *table, const int32_t *ids);

/* dtable [V,C] from dx [N,C]; `accumulate` adds to what a tied head left there, one addition per element. */
void embedding_backward(const Leaf *leaf, float *dtable, const float *dx, const int32_t *ids, bool accumulate);

#endif
