/* The tiles of attention: scores of a block of query rows and as many keys, and outputs as wide as a head or a piece of
 * one. Both have the same rows and threads, so that a value stays with its thread. */
#ifndef DMUON_KERNELS_CUDA_ATTENTION_TILE_H
#define DMUON_KERNELS_CUDA_ATTENTION_TILE_H

#include "kernels/cuda/tile.h"

typedef Tile<4, 1, 1, 2, 8> ScoreTile; /* 64 x 64 */
typedef Tile<4, 1, 1, 4, 8> WideTile;  /* 64 x 128, for heads of more than 64 */
typedef Tile<1, 1, 2, 1, 8> SmallTile; /* 32 x 32, one warp */

/* Sequences that one or two tiles hold are not worth large ones. */
enum { ATTENTION_SMALL_T = 128 };

/* Tokens from `token` on of one head: rows of D elements. */
typedef struct HeadRows {
    const float *x;
    int64_t stride; /* of a token */
    int count;      /* tokens that exist */
} HeadRows;

/* Rows as one operand of scores: each is a vector, contracted over D. */
static inline __device__ Source rows_across(HeadRows rows) {
    return Source{rows.x, rows.stride, rows.count, false};
}

/* Rows as the second operand of an output: contracted over tokens, columns from d0 on. */
static inline __device__ Source rows_along(HeadRows rows, int64_t d0, int64_t D) {
    return Source{rows.x + d0, rows.stride, static_cast<int>(D - d0), true};
}

#endif
