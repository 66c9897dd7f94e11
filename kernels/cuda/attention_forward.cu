/* Causal grouped-query attention, forward. A block makes the scores of some query rows of one head in scratch, turns
 * them into probabilities, and multiplies those by the values. Scratch belongs to blocks, which take item after item.
 */
#include "kernels/cuda/attention_tile.h"
#include "kernels/cuda/grid.h"
#include "kernels/cuda/lanes.h"
#include "kernels/exact_math.h"

enum {
    FORWARD_BLOCKS = 528,               /* four for each multiprocessor of the largest device */
    FORWARD_SCRATCH_NBYTES = 256 << 20, /* long sequences take fewer blocks */
};

typedef struct ForwardTask {
    AttentionForward a;
    float *scores; /* [blocks][tile rows][lds] */
    int64_t lds;
    int64_t row_blocks;
} ForwardTask;

/* Rows [first, first + n) of query head h of batch row b. */
typedef struct ForwardItem {
    int64_t b, h, first;
    int n;
} ForwardItem;

/* The longest rows come first. */
template <class Score> static __device__ ForwardItem forward_item(const ForwardTask &task, int64_t index) {
    const int64_t heads = task.a.B * task.a.H;
    ForwardItem item;
    item.b = index % heads / task.a.H;
    item.h = index % heads % task.a.H;
    item.first = (task.row_blocks - 1 - index / heads) * Score::M;
    item.n = static_cast<int>(task.a.T - item.first < Score::M ? task.a.T - item.first : int64_t{Score::M});
    return item;
}

static __device__ HeadRows kv_rows(const AttentionForward &a, const float *x, ForwardItem item, int64_t token) {
    const int64_t kv_head = item.h / (a.H / a.K);
    return HeadRows{x + (item.b * a.T + token) * a.kv_stride + kv_head * a.D, a.kv_stride,
                    static_cast<int>(a.T - token)};
}

/* s[r][j] = chain(q_r, k_j)*scale; what lies beyond the diagonal is written and never read. */
template <class Score>
static __device__ void forward_scores(const ForwardTask &task, Panels<Score> &panels, int &at, ForwardItem item,
                                      float *s) {
    const AttentionForward &a = task.a;
    const HeadRows q = {a.q + (item.b * a.T + item.first) * a.q_stride + item.h * a.D, a.q_stride, item.n};
    for (int64_t j0 = 0; j0 < item.first + item.n; j0 += Score::N) {
        Score tile;
        tile.clear();
        tile_chain<CHAIN_ALL>(
            tile, panels, at, rows_across(q), rows_across(kv_rows(a, a.k, item, j0)), static_cast<int>(a.D),
            Score::row_of(0) < item.n && j0 + Score::col_of(0) <= item.first + Score::row_of(Score::ROWS - 1));
        UNROLL for (int i = 0; i < Score::ROWS; i++) {
            UNROLL for (int j = 0; j < Score::COLS; j += 4) {
                float *to = s + Score::row_of(i) * task.lds + j0 + Score::col_of(j);
                *reinterpret_cast<float4 *>(to) = make_float4(tile.c[i][j] * a.scale, tile.c[i][j + 1] * a.scale,
                                                              tile.c[i][j + 2] * a.scale, tile.c[i][j + 3] * a.scale);
            }
        }
    }
}

/* One row, by one warp; a lane keeps to its own elements. s [n] becomes the probabilities. */
static __device__ void softmax_row(float *s, int64_t n, float *max, float *sum) {
    const int lane = warp_lane();
    float largest = -INFINITY;
    for (int64_t j = lane; j < n; j += LANES)
        largest = max_of(largest, s[j]);
    largest = lanes_max(largest);
    float total = 0.0f;
    for (int64_t j = lane; j < n; j += LANES) {
        const float e = exact_exp(s[j] - largest);
        s[j] = e;
        total = total + e;
    }
    total = lanes_fold(total);
    const float inverse = 1.0f / total;
    for (int64_t j = lane; j < n; j += LANES)
        s[j] = s[j] * inverse;
    if (lane != 0)
        return;
    *max = largest;
    *sum = total;
}

/* o = probabilities times values: all keys before the rows' own, then those up to the diagonal. */
template <class Out>
static __device__ void forward_output(const ForwardTask &task, Panels<Out> &panels, int &at, ForwardItem item,
                                      const float *s) {
    const AttentionForward &a = task.a;
    const Source p = {s, task.lds, item.n, false};
    float *o = a.o + (item.b * a.T + item.first) * a.o_stride + item.h * a.D;
    for (int64_t d0 = 0; d0 < a.D; d0 += Out::N) {
        const bool active = Out::row_of(0) < item.n && d0 + Out::col_of(0) < a.D;
        Out tile;
        tile.clear();
        tile_chain<CHAIN_ALL>(tile, panels, at, p, rows_along(kv_rows(a, a.v, item, 0), d0, a.D),
                              static_cast<int>(item.first), active);
        tile_chain<CHAIN_UP_TO_ROW>(tile, panels, at, source_at(p, 0, item.first),
                                    rows_along(kv_rows(a, a.v, item, item.first), d0, a.D), item.n, active);
        UNROLL for (int i = 0; i < Out::ROWS; i++) {
            UNROLL for (int j = 0; j < Out::COLS; j++) {
                if (Out::row_of(i) < item.n && d0 + Out::col_of(j) < a.D)
                    o[Out::row_of(i) * a.o_stride + d0 + Out::col_of(j)] = tile.c[i][j];
            }
        }
    }
}

template <class Score, class Out>
__global__ void __launch_bounds__(Score::THREADS) attention_forward_kernel(ForwardTask task) {
    __shared__ Panels<Score> score_panels;
    __shared__ Panels<Out> out_panels;
    int score_at = 0, out_at = 0;
    float *s = task.scores + blockIdx.x * Score::M * task.lds;
    for (int64_t index = blockIdx.x; index < task.a.B * task.a.H * task.row_blocks; index += gridDim.x) {
        const ForwardItem item = forward_item<Score>(task, index);
        const int64_t row = (item.b * task.a.H + item.h) * task.a.T + item.first;
        forward_scores(task, score_panels, score_at, item, s);
        __syncthreads();
        for (int r = static_cast<int>(threadIdx.x) / LANES; r < item.n; r += Score::THREADS / LANES)
            softmax_row(s + r * task.lds, item.first + r + 1, task.a.max + row + r, task.a.sum + row + r);
        __syncthreads();
        forward_output(task, out_panels, out_at, item, s);
    }
}

template <class Score, class Out> static void launch_forward(const KernelCtx *ctx, const AttentionForward &a) {
    ForwardTask task = {a, nullptr, grid_ceil_div(a.T, Score::N) * Score::N, grid_ceil_div(a.T, Score::M)};
    const int64_t items = a.B * a.H * task.row_blocks;
    const int64_t block_nbytes = Score::M * task.lds * static_cast<int64_t>(sizeof(float));
    int64_t blocks = FORWARD_SCRATCH_NBYTES / block_nbytes;
    blocks = blocks > FORWARD_BLOCKS ? int64_t{FORWARD_BLOCKS} : (blocks < 1 ? 1 : blocks);
    blocks = items < blocks ? items : blocks;
    task.scores = static_cast<float *>(ctx->scratch(ctx, 0, static_cast<size_t>(blocks * block_nbytes)));
    launch_check("attention_forward",
                 KLAUNCH((attention_forward_kernel<Score, Out>), dim3(static_cast<unsigned>(blocks)),
                         dim3(Score::THREADS), 0, launch_stream(ctx), task));
}

void attention_forward_cuda(const KernelCtx *ctx, const void *args) {
    const AttentionForward *a = static_cast<const AttentionForward *>(args);
    if (a->B * a->K <= 0 || a->T <= 0)
        return;
    if (a->T <= ATTENTION_SMALL_T)
        launch_forward<SmallTile, SmallTile>(ctx, *a);
    else if (a->D <= ScoreTile::N)
        launch_forward<ScoreTile, ScoreTile>(ctx, *a);
    else
        launch_forward<ScoreTile, WideTile>(ctx, *a);
}
