/* The order of samples: a pure function of (seed, epoch, index). */
#ifndef DMUON_DATA_ORDER_H
#define DMUON_DATA_ORDER_H

#include <stdbool.h>
#include <stdint.h>

/* A permutation of [0, n): position `index` of epoch `epoch`. shuffle false: index. Stateless (a Feistel network over
 * the next power of four, cycle walking, round function from Philox). */
int64_t order_permute(uint64_t seed, int64_t epoch, int64_t n, int64_t index, bool shuffle);
/* Sample s of the run -> window of the data set: s mod E of epoch s div E. */
int64_t order_window(uint64_t seed, int64_t n, int64_t sample, bool shuffle);

#endif
