/* The products inside attention: a register tile of chains that may begin or end at the causal diagonal, and the packed
 * panels it reads. Masking with zeros would turn a -0 into +0, so a masked element never enters a chain: tiles start at
 * multiples of GEMM_MR, which leaves one small triangle per tile whose steps are written out. */
#ifndef DMUON_KERNELS_CPU_ATTENTION_TILE_H
#define DMUON_KERNELS_CPU_ATTENTION_TILE_H

#include "kernels/cpu/gemm_vec.h"
#include "kernels/cpu/isa.h"

/* Query rows whose scores are held at a time. */
enum { ATTENTION_ROWS = GEMM_MR * (GEMM_MR > 8 ? 2 : 4) };

/* GEMM_MR rows by GEMM_NR columns of c, one chain each:
 *   `lead` steps (at most GEMM_MR), step k only in rows r <= k;   keys of the diagonal, queries ascending
 *   `len` steps in all rows;
 *   if `trail`, GEMM_MR steps, step k only in rows r >= k.        queries of the diagonal, keys ascending */
typedef struct Chains {
    const float *a; /* row r, step k at a[r*a_row + k*a_step] */
    int64_t a_row, a_step;
    const float *b; /* [steps, GEMM_NR] */
    float *c;
    int64_t ldc;
    bool resumes; /* goes on with c, else starts at +0 */
    int lead;
    int64_t len;
    bool trail;
} Chains;

#define attention_chains ISA_NAME(attention_chains)
#define attention_pack_rows ISA_NAME(attention_pack_rows)
#define attention_pack_columns ISA_NAME(attention_pack_columns)

void attention_chains(const Chains *chains);

/* n rows of D elements, `stride` apart. */
typedef struct Rows {
    const float *x;
    int64_t stride, n, D;
} Rows;

/* dst [panels over D][padded_n][GEMM_NR]: the operand of chains over rows. Padding is +0 and only feeds padding. */
void attention_pack_rows(float *dst, Rows rows, int64_t padded_n);

/* dst [panels over rows][D][GEMM_NR]: the operand of chains over D. */
void attention_pack_columns(float *dst, Rows rows);

static inline int64_t attention_round(int64_t n, int64_t unit) {
    return (n + unit - 1) / unit * unit;
}

#endif
