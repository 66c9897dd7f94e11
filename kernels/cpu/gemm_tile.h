/* The pieces of the matrix product: packed panels, and the register tile that runs chains over them.
 *
 * A product is a program of steps, the same for every output element: run one chain over some ascending elements, then
 * say where its value goes. Values that wait (an unfinished chain, the sum over parts, the levels of the binary counter
 * that makes the tree over segments) live in slots of one tile each. */
#ifndef DMUON_KERNELS_CPU_GEMM_TILE_H
#define DMUON_KERNELS_CPU_GEMM_TILE_H

#include "kernels/cpu/gemm_vec.h"
#include "kernels/cpu/isa.h"

/* chain, part sum, and six levels for 64 segments */
enum { GEMM_MAX_SLOTS = 8, GEMM_MAX_STEPS = 3 * 64, GEMM_STORE_FINAL = -1 };

typedef struct GemmStep {
    int part;
    int64_t k0, len; /* elements [k0, k0 + len) of the part; len may be 0 */
    bool resumes;    /* goes on with the chain in slot 0, else starts at +0 */
    int first_add;   /* then value = slot + value for the slots */
    int nadds;       /*   first_add, first_add + 1, ... */
    bool adds_sum;   /* before those: value = part sum (slot 1) + value */
    int store;       /* the slot that takes the value, or GEMM_STORE_FINAL: c */
} GemmStep;

/* The steps of one block of the contracted dimension; `len` is their sum, the depth of the packed panels. */
typedef struct GemmBlock {
    int nsteps;
    int64_t len;
    GemmStep step[GEMM_MAX_STEPS];
} GemmBlock;

/* One register tile: a is [len, GEMM_MR], b is [len, GEMM_NR]. Slots below nhot are at hot, the others at cold. */
typedef struct GemmTile {
    const GemmBlock *block;
    const float *a, *b;
    float *hot, *cold;
    int nhot;
    float *c;
    int64_t ldc;
    bool accumulate;
} GemmTile;

void ISA_NAME(gemm_tile_run)(const GemmTile *tile);

/* One operand of one part, seen as vectors of `count` elements along m or n, one per contracted element.
 * along: the vector's elements are adjacent and vectors are ld apart; else the other way round. */
typedef struct GemmSource {
    const float *x;
    int64_t ld;
    bool along;
} GemmSource;

/* Packs elements [first, first + valid) of the vectors that the block's steps name into dst [len, width]; the rest is
 * +0. width is GEMM_MR for a, GEMM_NR for b. */
void ISA_NAME(gemm_pack_a)(float *dst, const GemmBlock *block, const GemmSource *parts, int64_t first, int64_t valid);
void ISA_NAME(gemm_pack_b)(float *dst, const GemmBlock *block, const GemmSource *parts, int64_t first, int64_t valid);

/* c[j,i] = c[i,j] for rows i in [row0, row1) and all j < i. */
void ISA_NAME(gemm_mirror)(float *c, int64_t ldc, int64_t row0, int64_t row1);

#endif
