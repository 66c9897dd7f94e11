/* The register tile of the matrix product: every lane of every accumulator is the one ascending chain of one element.
 */
#include "kernels/cpu/gemm_tile.h"

/* The tile only stays in registers when its loops vanish before the compiler decides where the array lives. */
#define UNROLL_TILE _Pragma("GCC unroll 16")
#define UNROLL_K _Pragma("GCC unroll 4")

static inline float *slot_at(const GemmTile *tile, int slot) {
    return slot < tile->nhot ? tile->hot + slot * GEMM_TILE : tile->cold + (slot - tile->nhot) * GEMM_TILE;
}

__attribute__((always_inline)) static inline void acc_zero(Vec acc[GEMM_MR][GEMM_NV]) {
    UNROLL_TILE for (int i = 0; i < GEMM_MR; i++) {
        UNROLL_TILE for (int v = 0; v < GEMM_NV; v++) acc[i][v] = vec_zero();
    }
}

__attribute__((always_inline)) static inline void acc_load(Vec acc[GEMM_MR][GEMM_NV], const float *from) {
    UNROLL_TILE for (int i = 0; i < GEMM_MR; i++) {
        UNROLL_TILE for (int v = 0; v < GEMM_NV; v++) acc[i][v] = vec_load(from + i * GEMM_NR + v * GEMM_LANES);
    }
}

__attribute__((always_inline)) static inline void acc_add(Vec acc[GEMM_MR][GEMM_NV], const float *left, int64_t ld) {
    UNROLL_TILE for (int i = 0; i < GEMM_MR; i++) {
        UNROLL_TILE for (int v = 0; v < GEMM_NV; v++) acc[i][v] =
            vec_add(vec_load(left + i * ld + v * GEMM_LANES), acc[i][v]);
    }
}

__attribute__((always_inline)) static inline void acc_store(Vec acc[GEMM_MR][GEMM_NV], float *to, int64_t ld) {
    UNROLL_TILE for (int i = 0; i < GEMM_MR; i++) {
        UNROLL_TILE for (int v = 0; v < GEMM_NV; v++) vec_store(to + i * ld + v * GEMM_LANES, acc[i][v]);
    }
}

__attribute__((always_inline)) static inline void acc_chain(Vec acc[GEMM_MR][GEMM_NV], const float *a, const float *b,
                                                            int64_t len) {
    UNROLL_K for (int64_t k = 0; k < len; k++) {
        Vec bv[GEMM_NV];
        UNROLL_TILE for (int v = 0; v < GEMM_NV; v++) bv[v] = vec_load(b + k * GEMM_NR + v * GEMM_LANES);
        UNROLL_TILE for (int i = 0; i < GEMM_MR; i++) {
            const Vec av = vec_set1(a[k * GEMM_MR + i]);
            UNROLL_TILE for (int v = 0; v < GEMM_NV; v++) acc[i][v] = vec_fma(av, bv[v], acc[i][v]);
        }
    }
}

void ISA_NAME(gemm_tile_run)(const GemmTile *tile) {
    const float *a = tile->a, *b = tile->b;
    for (int s = 0; s < tile->block->nsteps; s++) {
        const GemmStep *step = &tile->block->step[s];
        Vec acc[GEMM_MR][GEMM_NV];
        if (step->resumes)
            acc_load(acc, slot_at(tile, 0));
        else
            acc_zero(acc);
        acc_chain(acc, a, b, step->len);
        a += step->len * GEMM_MR;
        b += step->len * GEMM_NR;
        if (step->adds_sum)
            acc_add(acc, slot_at(tile, 1), GEMM_NR);
        for (int l = 0; l < step->nadds; l++)
            acc_add(acc, slot_at(tile, step->first_add + l), GEMM_NR);
        if (step->store != GEMM_STORE_FINAL) {
            acc_store(acc, slot_at(tile, step->store), GEMM_NR);
            continue;
        }
        if (tile->accumulate)
            acc_add(acc, tile->c, tile->ldc);
        acc_store(acc, tile->c, tile->ldc);
    }
}
