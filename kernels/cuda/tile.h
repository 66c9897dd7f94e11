/* The register tile of every product: a block of threads runs one ascending fma chain per output element over panels in
 * shared memory, filled two at a time so that the next is on its way while one is used. The contracted dimension is
 * never padded: the last panel's steps stop at its end, because even a product with zero could change the sign of a
 * zero. */
#ifndef DMUON_KERNELS_CUDA_TILE_H
#define DMUON_KERNELS_CUDA_TILE_H

#include <math.h>

#include "kernels/cuda/launch.h"

/* One operand of a chain: for each contracted element k a vector of `count` elements along the tile. along: the
 * vector's elements are adjacent and vectors are ld apart; else the other way round. */
typedef struct Source {
    const float *x; /* element 0 of vector 0 */
    int64_t ld;
    int count; /* elements that exist, at least 1; may be more than the tile's */
    bool along;
} Source;

static inline __device__ Source source_at(Source source, int64_t first, int64_t k) {
    source.x += source.along ? k * source.ld + first : first * source.ld + k;
    source.count -= static_cast<int>(first);
    return source;
}

/* WARPS_M x WARPS_N warps of 4 x 8 threads, each with QUADS_M x QUADS_N quads of 4 x 4 elements, which lie apart so
 * that the threads of a warp read neighbouring quads of a panel. Panels are DEPTH steps deep. */
template <int WARPS_M, int WARPS_N, int QUADS_M, int QUADS_N, int PANEL_DEPTH> struct Tile {
    static constexpr int THREADS = 32 * WARPS_M * WARPS_N;
    static constexpr int DEPTH = PANEL_DEPTH;
    static constexpr int ROWS = 4 * QUADS_M, COLS = 4 * QUADS_N; /* of a thread */
    static constexpr int STEP_M = 16, STEP_N = 32;               /* between a thread's quads */
    static constexpr int M = STEP_M * QUADS_M * WARPS_M, N = STEP_N * QUADS_N * WARPS_N;

    float c[ROWS][COLS];

    static __device__ int row_of(int i) {
        const int warp = static_cast<int>(threadIdx.x) / 32 / WARPS_N, lane = static_cast<int>(threadIdx.x) % 32 / 8;
        return warp * STEP_M * QUADS_M + i / 4 * STEP_M + lane * 4 + i % 4;
    }

    static __device__ int col_of(int j) {
        const int warp = static_cast<int>(threadIdx.x) / 32 % WARPS_N, lane = static_cast<int>(threadIdx.x) % 8;
        return warp * STEP_N * QUADS_N + j / 4 * STEP_N + lane * 4 + j % 4;
    }

    __device__ void clear() {
        UNROLL for (int i = 0; i < ROWS; i++) {
            UNROLL for (int j = 0; j < COLS; j++) c[i][j] = 0.0f;
        }
    }
};

/* ---- panels ------------------------------------------------------------------------------------------------------ */

/* WIDTH x DEPTH elements on their way from global memory, shared out among the threads by quads. */
template <int WIDTH, int DEPTH, int THREADS> struct Stage {
    static constexpr int TOTAL = WIDTH * DEPTH / 4;
    static constexpr int QUADS = (TOTAL + THREADS - 1) / THREADS;
    static constexpr int LD = WIDTH + 4;
    float4 quad[QUADS];
};

/* Up to four adjacent elements; those at `count` and beyond are not touched. */
static inline __device__ float4 load_quad(const float *x, int count) {
    if (count >= 4 && (reinterpret_cast<uintptr_t>(x) & 15u) == 0)
        return *reinterpret_cast<const float4 *>(x);
    float4 quad = {0.0f, 0.0f, 0.0f, 0.0f};
    if (count > 0)
        quad.x = x[0];
    if (count > 1)
        quad.y = x[1];
    if (count > 2)
        quad.z = x[2];
    if (count > 3)
        quad.w = x[3];
    return quad;
}

/* The next `len` vectors, at most DEPTH of them, from source.x on. */
template <int WIDTH, int DEPTH, int THREADS>
static inline __device__ void stage_load(Stage<WIDTH, DEPTH, THREADS> &stage, const Source &source, int len) {
    UNROLL for (int q = 0; q < stage.QUADS; q++) {
        const int at = q * THREADS + static_cast<int>(threadIdx.x);
        if (stage.TOTAL % THREADS != 0 && at >= stage.TOTAL)
            continue;
        const int element = source.along ? at % (WIDTH / 4) * 4 : at / (DEPTH / 4);
        const int step = source.along ? at / (WIDTH / 4) : at % (DEPTH / 4) * 4;
        const int count =
            source.along ? (step < len ? source.count - element : 0) : (element < source.count ? len - step : 0);
        const float *x = source.x + (source.along ? step * source.ld + element : element * source.ld + step);
        stage.quad[q] = load_quad(x, count);
    }
}

/* panel [DEPTH][LD]; the caller synchronizes. */
template <int WIDTH, int DEPTH, int THREADS>
static inline __device__ void stage_store(float *panel, const Stage<WIDTH, DEPTH, THREADS> &stage, bool along) {
    UNROLL for (int q = 0; q < stage.QUADS; q++) {
        const int at = q * THREADS + static_cast<int>(threadIdx.x);
        if (stage.TOTAL % THREADS != 0 && at >= stage.TOTAL)
            continue;
        if (along) {
            float *to = panel + at / (WIDTH / 4) * stage.LD + at % (WIDTH / 4) * 4;
            *reinterpret_cast<float4 *>(to) = stage.quad[q];
        } else {
            float *to = panel + at % (DEPTH / 4) * 4 * stage.LD + at / (DEPTH / 4);
            to[0] = stage.quad[q].x;
            to[stage.LD] = stage.quad[q].y;
            to[2 * stage.LD] = stage.quad[q].z;
            to[3 * stage.LD] = stage.quad[q].w;
        }
    }
}

/* ---- chains ------------------------------------------------------------------------------------------------------ */

/* Which steps enter the chain of tile row r: all; step k <= r; step k >= r. */
enum ChainLimit { CHAIN_ALL, CHAIN_UP_TO_ROW, CHAIN_FROM_ROW };

static inline __device__ void read_quad(float *to, const float *from) {
    const float4 quad = *reinterpret_cast<const float4 *>(from);
    to[0] = quad.x;
    to[1] = quad.y;
    to[2] = quad.z;
    to[3] = quad.w;
}

/* Step k of all chains; a and b are its vectors in the panels. */
template <ChainLimit LIMIT, class T>
static inline __device__ void tile_step(T &tile, const float *a, const float *b, int k) {
    float av[T::ROWS], bv[T::COLS];
    UNROLL for (int i = 0; i < T::ROWS; i += 4) read_quad(av + i, a + T::row_of(i));
    UNROLL for (int j = 0; j < T::COLS; j += 4) read_quad(bv + j, b + T::col_of(j));
    UNROLL for (int i = 0; i < T::ROWS; i++) {
        if (LIMIT == CHAIN_UP_TO_ROW && k > T::row_of(i))
            continue;
        if (LIMIT == CHAIN_FROM_ROW && k < T::row_of(i))
            continue;
        UNROLL for (int j = 0; j < T::COLS; j++) tile.c[i][j] = fmaf(av[i], bv[j], tile.c[i][j]);
    }
}

/* `len` steps, the first of which counts as step k0 for the limit. Limited chains are short: not worth unrolling. */
template <ChainLimit LIMIT, class T>
static inline __device__ void tile_steps(T &tile, const float *a, int a_ld, const float *b, int b_ld, int len, int k0) {
    if (LIMIT == CHAIN_ALL && len == T::DEPTH) {
        UNROLL for (int k = 0; k < T::DEPTH; k++) tile_step<LIMIT>(tile, a + k * a_ld, b + k * b_ld, k0 + k);
        return;
    }
    for (int k = 0; k < len; k++)
        tile_step<LIMIT>(tile, a + k * a_ld, b + k * b_ld, k0 + k);
}

/* Two panels of each operand in shared memory. */
template <class T> struct Panels {
    using StageA = Stage<T::M, T::DEPTH, T::THREADS>;
    using StageB = Stage<T::N, T::DEPTH, T::THREADS>;
    alignas(16) float a[2][T::DEPTH * StageA::LD];
    alignas(16) float b[2][T::DEPTH * StageB::LD];
};

/* Goes on with the chains of the tile for `len` more elements. `at` is the panel to fill next: it alternates over all
 * chains of a block, and one barrier per panel is enough, since the one refilled is that before the one in use. Every
 * thread of the block calls this; `active` is false where none of a thread's elements is wanted. */
template <ChainLimit LIMIT, class T>
static inline __device__ void tile_chain(T &tile, Panels<T> &panels, int &at, Source a, Source b, int len,
                                         bool active) {
    typename Panels<T>::StageA stage_a;
    typename Panels<T>::StageB stage_b;
    if (len > 0) {
        stage_load(stage_a, a, len);
        stage_load(stage_b, b, len);
    }
    for (int k = 0; k < len; k += T::DEPTH) {
        stage_store(panels.a[at], stage_a, a.along);
        stage_store(panels.b[at], stage_b, b.along);
        __syncthreads();
        const int left = len - k;
        if (left > T::DEPTH) {
            a.x += a.along ? T::DEPTH * a.ld : T::DEPTH;
            b.x += b.along ? T::DEPTH * b.ld : T::DEPTH;
            stage_load(stage_a, a, left - T::DEPTH);
            stage_load(stage_b, b, left - T::DEPTH);
        }
        if (active)
            tile_steps<LIMIT>(tile, panels.a[at], stage_a.LD, panels.b[at], stage_b.LD,
                              left < T::DEPTH ? left : T::DEPTH, k);
        at ^= 1;
    }
}

/* The same where the first operand lies in shared memory already, vector k at a + k*LD, written by the block just
 * before: the first barrier is in here. The last one is not: it comes with the next chain. */
template <class T> struct RowPanels { alignas(16) float b[2][T::DEPTH * Panels<T>::StageB::LD]; };

template <ChainLimit LIMIT, class T>
static inline __device__ void tile_chain_rows(T &tile, const float *a, RowPanels<T> &panels, int &at, Source b, int len,
                                              bool active) {
    typename Panels<T>::StageB stage;
    if (len > 0)
        stage_load(stage, b, len);
    for (int k = 0; k < len; k += T::DEPTH) {
        stage_store(panels.b[at], stage, b.along);
        __syncthreads();
        const int left = len - k;
        if (left > T::DEPTH) {
            b.x += b.along ? T::DEPTH * b.ld : T::DEPTH;
            stage_load(stage, b, left - T::DEPTH);
        }
        if (active)
            tile_steps<LIMIT>(tile, a + k * Panels<T>::StageA::LD, Panels<T>::StageA::LD, panels.b[at], stage.LD,
                              left < T::DEPTH ? left : T::DEPTH, k);
        at ^= 1;
    }
}

#endif
