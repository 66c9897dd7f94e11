/* Initial weights: N(0, std) by Box-Muller in binary64 from Philox(seed, parameter id, element pair), rounded once; the
 * same on every mesh. */
#ifndef DMUON_MODEL_INIT_H
#define DMUON_MODEL_INIT_H

#include "model/params.h"

/* dst [count] = logical elements [first, first + count) of parameter `id` (its row). Element i uses the pair i/2:
 * counter index i/2, even element the cosine, odd the sine. */
void init_fill(const ParamTable *table, int id, uint64_t seed, int64_t first, int64_t count, float *dst);

#endif
