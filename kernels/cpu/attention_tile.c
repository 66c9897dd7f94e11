#include "kernels/cpu/attention_tile.h"

#include <string.h>

#include "kernels/cpu/gemm_tile.h"

/* The tile only stays in registers when its loops vanish before the compiler decides where the array lives. */
#define UNROLL_TILE _Pragma("GCC unroll 16")

#define ALWAYS_INLINE __attribute__((always_inline)) static inline

ALWAYS_INLINE void step(Vec acc[GEMM_MR][GEMM_NV], const Chains *chains, int64_t k, int first, int last) {
    const float *a = chains->a + k * chains->a_step;
    const float *b = chains->b + k * GEMM_NR;
    Vec bv[GEMM_NV];
    UNROLL_TILE for (int v = 0; v < GEMM_NV; v++) bv[v] = vec_load(b + v * GEMM_LANES);
    UNROLL_TILE for (int r = 0; r < GEMM_MR; r++) {
        const Vec av = vec_set1(r >= first && r <= last ? a[r * chains->a_row] : 0.0f);
        UNROLL_TILE for (int v = 0; v < GEMM_NV; v++) acc[r][v] =
            r >= first && r <= last ? vec_fma(av, bv[v], acc[r][v]) : acc[r][v];
    }
}

void attention_chains(const Chains *chains) {
    Vec acc[GEMM_MR][GEMM_NV];
    UNROLL_TILE for (int r = 0; r < GEMM_MR; r++) {
        UNROLL_TILE for (int v = 0; v < GEMM_NV; v++) acc[r][v] =
            chains->resumes ? vec_load(chains->c + r * chains->ldc + v * GEMM_LANES) : vec_zero();
    }
    UNROLL_TILE for (int k = 0; k < GEMM_MR; k++) {
        if (k < chains->lead)
            step(acc, chains, k, 0, k);
    }
    const int64_t end = chains->lead + chains->len;
    for (int64_t k = chains->lead; k < end; k++)
        step(acc, chains, k, 0, GEMM_MR - 1);
    if (chains->trail) {
        UNROLL_TILE for (int k = 0; k < GEMM_MR; k++) step(acc, chains, end + k, k, GEMM_MR - 1);
    }
    UNROLL_TILE for (int r = 0; r < GEMM_MR; r++) {
        UNROLL_TILE for (int v = 0; v < GEMM_NV; v++)
            vec_store(chains->c + r * chains->ldc + v * GEMM_LANES, acc[r][v]);
    }
}

/* One block of contracted elements, packed as the matrix product packs its own. */
static void pack_block(GemmBlock *block, int64_t len) {
    block->nsteps = 1;
    block->len = len;
    block->step[0] = (GemmStep){.len = len};
}

void attention_pack_rows(float *dst, Rows rows, int64_t padded_n) {
    GemmBlock block;
    pack_block(&block, rows.n);
    const GemmSource source = {.x = rows.x, .ld = rows.stride, .along = true};
    for (int64_t d = 0; d < rows.D; d += GEMM_NR) {
        float *panel = dst + d * padded_n;
        ISA_NAME(gemm_pack_b)(panel, &block, &source, d, rows.D - d);
        memset(panel + rows.n * GEMM_NR, 0, (size_t)((padded_n - rows.n) * GEMM_NR) * sizeof *panel);
    }
}

void attention_pack_columns(float *dst, Rows rows) {
    GemmBlock block;
    pack_block(&block, rows.D);
    const GemmSource source = {.x = rows.x, .ld = rows.stride};
    for (int64_t j = 0; j < rows.n; j += GEMM_NR)
        ISA_NAME(gemm_pack_b)(dst + j * rows.D, &block, &source, j, rows.n - j);
}
