/* The exact matrix product: every element is the chains and the tree that kernels.h writes down, whatever the tile.
 *
 * A plain product is one chain per element, from first to last in registers. With segments or several parts the values
 * that wait (the sum over parts, the levels of the binary counter that makes the tree) are too many for registers; they
 * go to tiles of scratch, which belong to blocks and not to output tiles, so that they stay in the L2 cache. */
#include "kernels/cuda/grid.h"
#include "kernels/cuda/tile.h"

typedef Tile<4, 2, 2, 2, 8> LargeTile;   /* 128 x 128, 8 x 8 per thread: four fifths of the work is fma */
typedef Tile<4, 2, 1, 1, 16> MediumTile; /* 64 x 64, 4 x 4 per thread: more blocks and warps where outputs are few */
typedef Tile<1, 1, 2, 2, 8> SmallTile;   /* 32 x 64, one warp: for products that are over before a device fills */

enum {
    GEMM_LARGE_TILES = 128,    /* from so many 128 x 128 tiles on they keep a device busy */
    GEMM_SMALL_OUTPUT = 65536, /* elements */
    GEMM_SCRATCH_BLOCKS = 264, /* blocks of a product with scratch: two for each multiprocessor of the largest device */
    GEMM_RASTER = 8            /* rows of tiles that are walked through together, so that they share columns of b */
};

typedef struct GemmTask {
    Gemm gemm;
    float *slots; /* per block: the part sum, then the levels; one tile each */
    int64_t nslots;
    int64_t rows, cols; /* of tiles */
} GemmTask;

/* The origin of an output tile and what it holds. */
typedef struct TilePlace {
    int64_t i0, j0;
    bool wanted;
} TilePlace;

template <class T> static __device__ TilePlace tile_place(const GemmTask &task, int64_t tile) {
    const int64_t band = GEMM_RASTER * task.cols, first = tile / band * GEMM_RASTER;
    const int64_t rows = task.rows - first < GEMM_RASTER ? task.rows - first : int64_t{GEMM_RASTER};
    TilePlace place;
    place.i0 = (first + tile % band % rows) * T::M;
    place.j0 = tile % band / rows * T::N;
    place.wanted = task.gemm.shape == GEMM_FULL || place.i0 + T::M > place.j0;
    return place;
}

template <class T> static __device__ bool thread_active(const Gemm &gemm, TilePlace place) {
    const int64_t i = place.i0 + T::row_of(0), j = place.j0 + T::col_of(0);
    const int64_t last = place.i0 + T::row_of(T::ROWS - 1);
    return i < gemm.m && j < gemm.n && (gemm.shape == GEMM_FULL || last >= j);
}

/* The chains of one segment of one part, from +0. */
template <class T>
static __device__ void run_chain(T &tile, Panels<T> &panels, int &at, const Gemm &gemm, TilePlace place, int part,
                                 int segment) {
    const GemmPart &p = gemm.part[part];
    const int64_t size = gemm.nsegments == 1 ? p.k : p.segment;
    const int64_t start = segment * size < p.k ? segment * size : p.k;
    const int64_t end = start + size < p.k ? start + size : p.k;
    const Source a = {p.a, p.lda, static_cast<int>(gemm.m), gemm.trans_a};
    const Source b = {p.b, p.ldb, static_cast<int>(gemm.n), !gemm.trans_b};
    tile.clear();
    tile_chain<CHAIN_ALL>(tile, panels, at, source_at(a, place.i0, start), source_at(b, place.j0, start),
                          static_cast<int>(end - start), thread_active<T>(gemm, place));
}

/* ---- values that wait in scratch: a thread reads only what it wrote itself -----------------------------------------
 */

template <class T> static __device__ float4 *slot_of(const GemmTask &task, int slot) {
    float *x = task.slots + (static_cast<int64_t>(blockIdx.x) * task.nslots + slot) * T::M * T::N;
    return reinterpret_cast<float4 *>(x) + threadIdx.x;
}

template <class T> static __device__ void slot_store(float4 *slot, const T &tile) {
    UNROLL for (int i = 0; i < T::ROWS; i++) {
        UNROLL for (int j = 0; j < T::COLS; j += 4) slot[(i * T::COLS + j) / 4 * T::THREADS] =
            make_float4(tile.c[i][j], tile.c[i][j + 1], tile.c[i][j + 2], tile.c[i][j + 3]);
    }
}

/* tile = slot + tile. */
template <class T> static __device__ void slot_add(const float4 *slot, T &tile) {
    UNROLL for (int i = 0; i < T::ROWS; i++) {
        UNROLL for (int j = 0; j < T::COLS; j += 4) {
            const float4 left = slot[(i * T::COLS + j) / 4 * T::THREADS];
            tile.c[i][j] = left.x + tile.c[i][j];
            tile.c[i][j + 1] = left.y + tile.c[i][j + 1];
            tile.c[i][j + 2] = left.z + tile.c[i][j + 2];
            tile.c[i][j + 3] = left.w + tile.c[i][j + 3];
        }
    }
}

/* One segment of all parts, then up the counter as far as partners wait. */
template <class T>
static __device__ void run_segment(T &tile, Panels<T> &panels, int &at, const GemmTask &task, TilePlace place,
                                   int segment) {
    const Gemm &gemm = task.gemm;
    for (int part = 0; part < gemm.nparts; part++) {
        run_chain(tile, panels, at, gemm, place, part, segment);
        if (part > 0)
            slot_add(slot_of<T>(task, 0), tile);
        if (part < gemm.nparts - 1)
            slot_store(slot_of<T>(task, 0), tile);
    }
    int level = 1;
    for (; (segment >> (level - 1) & 1) != 0; level++)
        slot_add(slot_of<T>(task, level), tile);
    if (segment < gemm.nsegments - 1)
        slot_store(slot_of<T>(task, level), tile);
}

/* ---- output ------------------------------------------------------------------------------------------------------ */

static __device__ void store_element(const Gemm &gemm, int64_t i, int64_t j, float value) {
    if (i >= gemm.m || j >= gemm.n || (gemm.shape == GEMM_LOWER_MIRRORED && i < j))
        return;
    float *c = gemm.c + i * gemm.ldc + j;
    value = gemm.accumulate ? *c + value : value;
    *c = value;
    if (gemm.shape == GEMM_LOWER_MIRRORED && i > j)
        gemm.c[j * gemm.ldc + i] = value;
}

static __device__ void store_quad(const Gemm &gemm, int64_t i, int64_t j, const float *value) {
    float *c = gemm.c + i * gemm.ldc + j;
    const bool plain = gemm.shape == GEMM_FULL && i < gemm.m && j + 4 <= gemm.n;
    if (!plain || (reinterpret_cast<uintptr_t>(c) & 15u) != 0) {
        UNROLL for (int x = 0; x < 4; x++) store_element(gemm, i, j + x, value[x]);
        return;
    }
    float4 quad = make_float4(value[0], value[1], value[2], value[3]);
    if (gemm.accumulate) {
        const float4 old = *reinterpret_cast<const float4 *>(c);
        quad = make_float4(old.x + quad.x, old.y + quad.y, old.z + quad.z, old.w + quad.w);
    }
    *reinterpret_cast<float4 *>(c) = quad;
}

template <class T> static __device__ void store_tile(const Gemm &gemm, TilePlace place, const T &tile) {
    UNROLL for (int i = 0; i < T::ROWS; i++) {
        UNROLL for (int j = 0; j < T::COLS; j += 4)
            store_quad(gemm, place.i0 + T::row_of(i), place.j0 + T::col_of(j), &tile.c[i][j]);
    }
}

template <class T> __global__ void __launch_bounds__(T::THREADS) gemm_kernel(GemmTask task) {
    __shared__ Panels<T> panels;
    int at = 0;
    const TilePlace place = tile_place<T>(task, blockIdx.x);
    if (!place.wanted)
        return;
    T tile;
    run_chain(tile, panels, at, task.gemm, place, 0, 0);
    store_tile(task.gemm, place, tile);
}

template <class T> __global__ void __launch_bounds__(T::THREADS) gemm_tree_kernel(GemmTask task) {
    __shared__ Panels<T> panels;
    int at = 0;
    for (int64_t t = blockIdx.x; t < task.rows * task.cols; t += gridDim.x) {
        const TilePlace place = tile_place<T>(task, t);
        if (!place.wanted)
            continue;
        T tile;
        for (int segment = 0; segment < task.gemm.nsegments; segment++)
            run_segment(tile, panels, at, task, place, segment);
        store_tile(task.gemm, place, tile);
    }
}

/* ---- launch ------------------------------------------------------------------------------------------------------ */

template <class T> static void launch_gemm(const KernelCtx *ctx, const Gemm &gemm) {
    GemmTask task = {gemm, nullptr, 1, grid_ceil_div(gemm.m, T::M), grid_ceil_div(gemm.n, T::N)};
    const int64_t tiles = task.rows * task.cols;
    if (gemm.nsegments == 1 && gemm.nparts == 1) {
        launch_check("gemm", KLAUNCH((gemm_kernel<T>), dim3(static_cast<unsigned>(tiles)), dim3(T::THREADS), 0,
                                     launch_stream(ctx), task));
        return;
    }
    for (int segments = gemm.nsegments; segments > 1; segments /= 2)
        task.nslots++;
    const int64_t blocks = tiles < GEMM_SCRATCH_BLOCKS ? tiles : int64_t{GEMM_SCRATCH_BLOCKS};
    const int64_t nbytes = blocks * task.nslots * T::M * T::N * static_cast<int64_t>(sizeof(float));
    task.slots = static_cast<float *>(ctx->scratch(ctx, 0, static_cast<size_t>(nbytes)));
    launch_check("gemm", KLAUNCH((gemm_tree_kernel<T>), dim3(static_cast<unsigned>(blocks)), dim3(T::THREADS), 0,
                                 launch_stream(ctx), task));
}

static void gemm_one(const KernelCtx *ctx, const Gemm &gemm) {
    if (gemm.m * gemm.n <= GEMM_SMALL_OUTPUT)
        launch_gemm<SmallTile>(ctx, gemm);
    else if (grid_ceil_div(gemm.m, LargeTile::M) * grid_ceil_div(gemm.n, LargeTile::N) < GEMM_LARGE_TILES)
        launch_gemm<MediumTile>(ctx, gemm);
    else
        launch_gemm<LargeTile>(ctx, gemm);
}

void gemm_cuda(const KernelCtx *ctx, const void *args) {
    Gemm gemm = *static_cast<const Gemm *>(args);
    if (gemm.m <= 0 || gemm.n <= 0)
        return;
    for (int64_t left = gemm.batch > 1 ? gemm.batch : 1; left > 0; left--) {
        gemm_one(ctx, gemm);
        for (int p = 0; p < gemm.nparts; p++) {
            gemm.part[p].a += gemm.part[p].stride_a;
            gemm.part[p].b += gemm.part[p].stride_b;
        }
        gemm.c += gemm.stride_c;
    }
}
