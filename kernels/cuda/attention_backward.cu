/* Causal grouped-query attention, backward, in two passes that each make the probabilities of a tile anew from the
 * saved maximum and sum: one over query rows for dq, one over keys for dk and dv. So every chain runs in one thread's
 * registers, in its order, and nothing is added by two blocks. */
#include "kernels/cuda/attention_tile.h"
#include "kernels/cuda/grid.h"
#include "kernels/cuda/lanes.h"
#include "kernels/exact_math.h"

typedef struct BackwardTask {
    AttentionBackward a;
    float *delta;  /* [B, H, T] */
    int64_t tiles; /* of T */
} BackwardTask;

/* delta = lane sum of do*o; one warp per query row of a head. */
__global__ void attention_delta_kernel(BackwardTask task) {
    const AttentionBackward &a = task.a;
    const int64_t row = warp_row();
    if (row >= a.B * a.H * a.T)
        return;
    const int64_t i = row % a.T, h = row / a.T % a.H, b = row / a.T / a.H;
    const int64_t at = (b * a.T + i) * a.o_stride + h * a.D;
    float delta = 0.0f;
    for (int64_t d = warp_lane(); d < a.D; d += LANES)
        delta = fmaf(a.d_o[at + d], a.o[at + d], delta);
    delta = lanes_fold(delta);
    if (warp_lane() == 0)
        task.delta[row] = delta;
}

/* ---- one tile of query rows and keys --------------------------------------------------------------------------------
 */

/* Query rows from i0 on and keys from j0 on, of query head h and its kv head, of batch row b. */
typedef struct BackwardTile {
    int64_t b, h, kv_head, i0, j0;
} BackwardTile;

static __device__ HeadRows query_rows(const AttentionBackward &a, const float *x, int64_t stride, BackwardTile at) {
    return HeadRows{x + (at.b * a.T + at.i0) * stride + at.h * a.D, stride, static_cast<int>(a.T - at.i0)};
}

static __device__ HeadRows key_rows(const AttentionBackward &a, const float *x, BackwardTile at) {
    return HeadRows{x + (at.b * a.T + at.j0) * a.kv_stride + at.kv_head * a.D, a.kv_stride,
                    static_cast<int>(a.T - at.j0)};
}

/* Whether a thread holds an element that exists, on the diagonal or below it. */
template <class Score> static __device__ bool tile_active(const AttentionBackward &a, BackwardTile at) {
    const int64_t i = at.i0 + Score::row_of(0), last = at.i0 + Score::row_of(Score::ROWS - 1);
    const int64_t j = at.j0 + Score::col_of(0);
    return i < a.T && j < a.T && j <= last;
}

/* Rows that do not exist take the place of the last: their elements are not used. */
static __device__ int64_t saved_row(const AttentionBackward &a, BackwardTile at, int r) {
    const int64_t i = at.i0 + r < a.T ? at.i0 + r : a.T - 1;
    return (at.b * a.H + at.h) * a.T + i;
}

/* Scores of a tile in shared memory, the first operand of an output: vector k at k*LD. Vectors are query rows (outputs
 * are keys), or keys (outputs are query rows). */
template <class Score> struct Operand {
    static constexpr int LD = Score::M + 4;
    alignas(16) float x[Score::M * LD];
};

enum Vectors { VECTORS_ARE_QUERIES, VECTORS_ARE_KEYS };

/* Where a thread keeps its element (i, j). */
template <Vectors VECTORS, class Score> static __device__ float *operand_at(Operand<Score> &operand, int i, int j) {
    const int row = Score::row_of(i), col = Score::col_of(j);
    return operand.x + (VECTORS == VECTORS_ARE_QUERIES ? row * operand.LD + col : col * operand.LD + row);
}

/* operand = p = exp(chain(q, k)*scale - max)*(1/sum) */
template <Vectors VECTORS, class Score>
static __device__ void make_p(Operand<Score> &operand, const BackwardTask &task, Panels<Score> &panels, int &at,
                              BackwardTile where) {
    const AttentionBackward &a = task.a;
    Score s;
    s.clear();
    tile_chain<CHAIN_ALL>(s, panels, at, rows_across(query_rows(a, a.q, a.q_stride, where)),
                          rows_across(key_rows(a, a.k, where)), static_cast<int>(a.D), tile_active<Score>(a, where));
    UNROLL for (int i = 0; i < Score::ROWS; i++) {
        const int64_t row = saved_row(a, where, Score::row_of(i));
        const float max = a.max[row], inverse = 1.0f / a.sum[row];
        UNROLL for (int j = 0; j < Score::COLS; j++) {
            const float p = exact_exp(s.c[i][j] * a.scale - max) * inverse;
            *operand_at<VECTORS>(operand, i, j) = p;
        }
    }
}

/* operand = ds = p*(chain(do, v) - delta), p being what a thread left in the operand. */
template <Vectors VECTORS, class Score>
static __device__ void make_ds(Operand<Score> &operand, const BackwardTask &task, Panels<Score> &panels, int &at,
                               BackwardTile where) {
    const AttentionBackward &a = task.a;
    Score dp;
    dp.clear();
    tile_chain<CHAIN_ALL>(dp, panels, at, rows_across(query_rows(a, a.d_o, a.o_stride, where)),
                          rows_across(key_rows(a, a.v, where)), static_cast<int>(a.D), tile_active<Score>(a, where));
    UNROLL for (int i = 0; i < Score::ROWS; i++) {
        const float delta = task.delta[saved_row(a, where, Score::row_of(i))];
        UNROLL for (int j = 0; j < Score::COLS; j++) {
            float *x = operand_at<VECTORS>(operand, i, j);
            *x = *x * (dp.c[i][j] - delta);
        }
    }
}

template <class Score> static __device__ int tokens_from(const AttentionBackward &a, int64_t first) {
    return static_cast<int>(a.T - first < Score::M ? a.T - first : int64_t{Score::M});
}

/* Goes on with the chains of dq over the keys of one tile, on the diagonal as far as j = i. */
template <class Score, class Out>
static __device__ void continue_queries(Out &dq, const AttentionBackward &a, const Operand<Score> &ds,
                                        RowPanels<Out> &panels, int &at, BackwardTile where, int64_t d0) {
    const Source keys = rows_along(key_rows(a, a.k, where), d0, a.D);
    const int len = tokens_from<Score>(a, where.j0);
    const bool active = where.i0 + Out::row_of(0) < a.T && d0 + Out::col_of(0) < a.D;
    if (where.i0 == where.j0)
        tile_chain_rows<CHAIN_UP_TO_ROW>(dq, ds.x, panels, at, keys, len, active);
    else
        tile_chain_rows<CHAIN_ALL>(dq, ds.x, panels, at, keys, len, active);
}

/* Goes on with the chains of dk or dv over the query rows of one tile, on the diagonal from i = j on. */
template <class Score, class Out>
static __device__ void continue_keys(Out &out, const AttentionBackward &a, const Operand<Score> &weights, HeadRows rows,
                                     RowPanels<Out> &panels, int &at, BackwardTile where, int64_t d0) {
    const Source source = rows_along(rows, d0, a.D);
    const int len = tokens_from<Score>(a, where.i0);
    const bool active = where.j0 + Out::row_of(0) < a.T && d0 + Out::col_of(0) < a.D;
    if (where.i0 == where.j0)
        tile_chain_rows<CHAIN_FROM_ROW>(out, weights.x, panels, at, source, len, active);
    else
        tile_chain_rows<CHAIN_ALL>(out, weights.x, panels, at, source, len, active);
}

/* ---- the passes ------------------------------------------------------------------------------------------------
 */

/* to [rows of the tile that exist, D] (+)= tile*factor, columns from d0 on */
template <class Out>
static __device__ void store_rows(const Out &tile, float *to, int64_t stride, int64_t rows, int64_t cols, float factor,
                                  bool adds) {
    UNROLL for (int i = 0; i < Out::ROWS; i++) {
        UNROLL for (int j = 0; j < Out::COLS; j++) {
            if (Out::row_of(i) >= rows || Out::col_of(j) >= cols)
                continue;
            float *x = to + Out::row_of(i) * stride + Out::col_of(j);
            *x = adds ? *x + tile.c[i][j] * factor : tile.c[i][j] * factor;
        }
    }
}

/* dq of one block of query rows of one head; the longest rows come first. */
template <class Score, class Out>
__global__ void __launch_bounds__(Score::THREADS) attention_dq_kernel(BackwardTask task) {
    __shared__ Panels<Score> panels;
    __shared__ RowPanels<Out> row_panels;
    __shared__ Operand<Score> operand;
    const AttentionBackward &a = task.a;
    const int64_t heads = a.B * a.H;
    int at = 0, row_at = 0;
    BackwardTile where;
    where.b = blockIdx.x % heads / a.H;
    where.h = blockIdx.x % heads % a.H;
    where.kv_head = where.h / (a.H / a.K);
    where.i0 = (task.tiles - 1 - blockIdx.x / heads) * Score::M;
    for (int64_t d0 = 0; d0 < a.D; d0 += Out::N) {
        Out dq;
        dq.clear();
        for (where.j0 = 0; where.j0 <= where.i0; where.j0 += Score::N) {
            make_p<VECTORS_ARE_KEYS>(operand, task, panels, at, where);
            make_ds<VECTORS_ARE_KEYS>(operand, task, panels, at, where);
            continue_queries(dq, a, operand, row_panels, row_at, where, d0);
        }
        float *to = a.dq + (where.b * a.T + where.i0) * a.q_stride + where.h * a.D + d0;
        store_rows(dq, to, a.q_stride, a.T - where.i0, a.D - d0, a.scale, false);
    }
}

enum KeyGradient { GRADIENT_OF_K, GRADIENT_OF_V };

/* One head's part of dk (chains of ds*q, then times scale) or dv (chains of p*do) for a block of keys. */
template <KeyGradient GRADIENT, class Score, class Out>
static __device__ void head_of_keys(Out &out, const BackwardTask &task, Operand<Score> &operand, Panels<Score> &panels,
                                    RowPanels<Out> &row_panels, int &at, int &row_at, BackwardTile where, int64_t d0) {
    const AttentionBackward &a = task.a;
    out.clear();
    for (where.i0 = where.j0; where.i0 < a.T; where.i0 += Score::M) {
        make_p<VECTORS_ARE_QUERIES>(operand, task, panels, at, where);
        if (GRADIENT == GRADIENT_OF_K)
            make_ds<VECTORS_ARE_QUERIES>(operand, task, panels, at, where);
        const HeadRows rows =
            GRADIENT == GRADIENT_OF_K ? query_rows(a, a.q, a.q_stride, where) : query_rows(a, a.d_o, a.o_stride, where);
        continue_keys(out, a, operand, rows, row_panels, row_at, where, d0);
    }
}

/* dk or dv of one block of keys of one kv head, head after head of its group; the keys that most query rows see come
 * first. Apart, because the accumulators of both would not fit the registers. */
template <KeyGradient GRADIENT, class Score, class Out>
__global__ void __launch_bounds__(Score::THREADS) attention_dkv_kernel(BackwardTask task) {
    __shared__ Panels<Score> panels;
    __shared__ RowPanels<Out> row_panels;
    __shared__ Operand<Score> operand;
    const AttentionBackward &a = task.a;
    const int64_t heads = a.B * a.K, group = a.H / a.K;
    int at = 0, row_at = 0;
    BackwardTile where;
    where.b = blockIdx.x % heads / a.K;
    where.kv_head = blockIdx.x % heads % a.K;
    where.j0 = blockIdx.x / heads * Score::M;
    float *to =
        (GRADIENT == GRADIENT_OF_K ? a.dk : a.dv) + (where.b * a.T + where.j0) * a.kv_stride + where.kv_head * a.D;
    const float factor = GRADIENT == GRADIENT_OF_K ? a.scale : 1.0f;
    for (int64_t g = 0; g < group; g++) {
        where.h = where.kv_head * group + g;
        for (int64_t d0 = 0; d0 < a.D; d0 += Out::N) {
            Out out;
            head_of_keys<GRADIENT>(out, task, operand, panels, row_panels, at, row_at, where, d0);
            store_rows(out, to + d0, a.kv_stride, a.T - where.j0, a.D - d0, factor, g > 0);
        }
    }
}

template <class Score, class Out> static void launch_backward(const KernelCtx *ctx, BackwardTask task) {
    const AttentionBackward &a = task.a;
    const cudaStream_t stream = launch_stream(ctx);
    task.tiles = grid_ceil_div(a.T, Score::M);
    launch_check("attention_backward",
                 KLAUNCH((attention_dq_kernel<Score, Out>), dim3(static_cast<unsigned>(a.B * a.H * task.tiles)),
                         dim3(Score::THREADS), 0, stream, task));
    const dim3 key_blocks(static_cast<unsigned>(a.B * a.K * task.tiles));
    launch_check("attention_backward", KLAUNCH((attention_dkv_kernel<GRADIENT_OF_K, Score, Out>), key_blocks,
                                               dim3(Score::THREADS), 0, stream, task));
    launch_check("attention_backward", KLAUNCH((attention_dkv_kernel<GRADIENT_OF_V, Score, Out>), key_blocks,
                                               dim3(Score::THREADS), 0, stream, task));
}

void attention_backward_cuda(const KernelCtx *ctx, const void *args) {
    const AttentionBackward *a = static_cast<const AttentionBackward *>(args);
    if (a->B * a->K <= 0 || a->T <= 0)
        return;
    const int64_t rows = a->B * a->H * a->T;
    BackwardTask task = {*a, nullptr, 0};
    task.delta = static_cast<float *>(ctx->scratch(ctx, 0, static_cast<size_t>(rows) * sizeof(float)));
    const Grid grid = grid_rows(rows);
    launch_check("attention_backward",
                 KLAUNCH(attention_delta_kernel, grid.blocks, grid.threads, 0, launch_stream(ctx), task));
    if (a->T <= ATTENTION_SMALL_T)
        launch_backward<SmallTile, SmallTile>(ctx, task);
    else if (a->D <= ScoreTile::N)
        launch_backward<ScoreTile, ScoreTile>(ctx, task);
    else
        launch_backward<ScoreTile, WideTile>(ctx, task);
}
