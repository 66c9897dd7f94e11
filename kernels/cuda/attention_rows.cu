/* Attention in fast mode, all but the products: one warp for each row, of a head or of scores. */
#include "kernels/cuda/attention_rows.h"

#include "kernels/cuda/grid.h"
#include "kernels/cuda/lanes.h"
#include "kernels/cuda/shorten.h"
#include "kernels/exact_math.h"

enum { RUN = 4, STEP = RUN * LANES }; /* elements that a lane, a warp takes at once */

/* ---- heads --------------------------------------------------------------------------------------------------------
 */

/* A row of one of the tensors. */
typedef struct HeadRow {
    int tensor;            /* `count`: behind the last row */
    int64_t tokens, heads; /* its first element */
    int64_t saved;         /* its place in [B,H,T] */
} HeadRow;

static int64_t head_rows(const HeadTensor *tensor, int64_t count, int64_t tokens, int64_t K) {
    int64_t rows = 0;
    for (int64_t i = 0; i < count; i++)
        rows += tokens * K * tensor[i].group;
    return rows;
}

/* Row number `index` of all, tensor after tensor, in the order of tokens. Their loop has a fixed length, so that the
 * tensors stay where arguments are. */
template <class Task> static __device__ HeadRow head_row(const Task &task, int64_t index) {
    HeadRow row = {HEAD_TENSORS, 0, 0, 0};
    UNROLL for (int i = 0; i < HEAD_TENSORS; i++) {
        const HeadTensor &x = task.tensor[i];
        const int64_t heads = i < task.count ? task.K * x.group : 0, rows = task.B * task.T * heads;
        if (row.tensor == HEAD_TENSORS && index < rows) {
            const int64_t token = index / heads, h = index % heads;
            const int64_t b = token / task.T, t = token % task.T;
            row.tensor = i;
            row.tokens = token * x.stride + h * task.D;
            row.heads = (((b * task.K + h / x.group) * task.T + t) * x.group + h % x.group) * x.row_stride;
            row.saved = (b * heads + h) * task.T + t;
        }
        index -= rows;
    }
    return row;
}

static __device__ float head_delta(const float *d_o, const float *o, int64_t D) {
    float delta = 0.0f;
    for (int64_t d = warp_lane(); d < D; d += LANES)
        delta = fmaf(d_o[d], o[d], delta);
    return lanes_fold(delta);
}

template <class T> __global__ void head_pack_kernel(HeadPack task) {
    const HeadRow row = head_row(task, warp_row());
    UNROLL for (int i = 0; i < HEAD_TENSORS; i++) {
        if (i != row.tensor)
            continue;
        const float *from = task.tensor[i].tokens + row.tokens;
        T *to = static_cast<T *>(task.tensor[i].heads) + row.heads;
        for (int64_t d = warp_lane(); d < task.D; d += LANES)
            to[d] = shorten(from[d], to);
        if (task.delta == nullptr || i != HEAD_TENSORS - 1)
            continue;
        const float delta = head_delta(from, task.o + row.tokens, task.D);
        if (warp_lane() == 0)
            task.delta[row.saved] = delta;
    }
}

void head_pack_cuda(const KernelCtx *ctx, const HeadPack *pack) {
    const Grid grid = grid_rows(head_rows(pack->tensor, pack->count, pack->B * pack->T, pack->K));
    if (pack->type == OPERAND_BF16)
        launch_check("head_pack", KLAUNCH((head_pack_kernel<__nv_bfloat16>), grid.blocks, grid.threads, 0,
                                          launch_stream(ctx), *pack));
    else
        launch_check("head_pack",
                     KLAUNCH((head_pack_kernel<float>), grid.blocks, grid.threads, 0, launch_stream(ctx), *pack));
}

__global__ void head_unpack_kernel(HeadUnpack task) {
    const HeadRow row = head_row(task, warp_row());
    UNROLL for (int i = 0; i < HEAD_TENSORS; i++) {
        if (i != row.tensor)
            continue;
        const float *from = static_cast<const float *>(task.tensor[i].heads) + row.heads;
        for (int64_t d = warp_lane(); d < task.D; d += LANES)
            task.tensor[i].tokens[row.tokens + d] = from[d];
    }
}

void head_unpack_cuda(const KernelCtx *ctx, const HeadUnpack *unpack) {
    const Grid grid = grid_rows(head_rows(unpack->tensor, unpack->count, unpack->B * unpack->T, unpack->K));
    launch_check("head_unpack", KLAUNCH(head_unpack_kernel, grid.blocks, grid.threads, 0, launch_stream(ctx), *unpack));
}

/* ---- scores -------------------------------------------------------------------------------------------------------
 */

template <class T> struct alignas(RUN * sizeof(T)) RowRun { T x[RUN]; };

/* One row of scores: its elements begin at index*stride; keys 0 .. last belong to it. */
typedef struct ScoreRow {
    int64_t index, last;
    int64_t saved; /* its place in [B,H,T] */
} ScoreRow;

static __device__ bool score_row_exists(const ScoreRows &rows) {
    return warp_row() < rows.pairs * rows.rows * rows.group;
}

static __device__ ScoreRow score_row(const ScoreRows &rows) {
    const int64_t index = warp_row(), below = rows.rows * rows.group;
    const int64_t pair = rows.pair + index / below, token = rows.first + index % below / rows.group;
    return ScoreRow{index, token, (pair * rows.group + index % rows.group) * rows.T + token};
}

static __device__ RowRun<float> run_at(const float *row, int64_t j) {
    return *reinterpret_cast<const RowRun<float> *>(row + j);
}

/* exp(score*scale - max): forward and backward make the same. */
static __device__ float score_exp(float score, float scale, float max) {
    return exact_exp(score * scale - max);
}

static __device__ float row_max(const float *s, int64_t last, float scale) {
    float largest = -INFINITY;
    for (int64_t j = RUN * warp_lane(); j <= last; j += STEP) {
        const RowRun<float> run = run_at(s, j);
        UNROLL for (int e = 0; e < RUN; e++) {
            if (j + e <= last)
                largest = max_of(largest, run.x[e] * scale);
        }
    }
    return lanes_max(largest);
}

static __device__ float row_sum(const float *s, int64_t last, float scale, float max) {
    float total = 0.0f;
    for (int64_t j = RUN * warp_lane(); j <= last; j += STEP) {
        const RowRun<float> run = run_at(s, j);
        UNROLL for (int e = 0; e < RUN; e++) {
            if (j + e <= last)
                total = total + score_exp(run.x[e], scale, max);
        }
    }
    return lanes_fold(total);
}

/* The exponentials are made twice: that costs less than to keep them. */
template <class T> __global__ void score_softmax_kernel(ScoreSoftmax task) {
    if (!score_row_exists(task.rows))
        return;
    const ScoreRow row = score_row(task.rows);
    const float scale = task.rows.scale, *s = task.scores + row.index * task.rows.score_stride;
    T *p = static_cast<T *>(task.p) + row.index * task.rows.operand_stride;
    const float max = row_max(s, row.last, scale), sum = row_sum(s, row.last, scale, max), inverse = 1.0f / sum;
    for (int64_t j = RUN * warp_lane(); j < task.rows.keys; j += STEP) {
        const RowRun<float> run = j <= row.last ? run_at(s, j) : RowRun<float>{};
        RowRun<T> out;
        UNROLL for (int e = 0; e < RUN; e++) out.x[e] =
            shorten(j + e <= row.last ? score_exp(run.x[e], scale, max) * inverse : 0.0f, p);
        *reinterpret_cast<RowRun<T> *>(p + j) = out;
    }
    if (warp_lane() != 0)
        return;
    task.max[row.saved] = max;
    task.sum[row.saved] = sum;
}

static Grid score_grid(const ScoreRows &rows) {
    return grid_rows(rows.pairs * rows.rows * rows.group);
}

void score_softmax_cuda(const KernelCtx *ctx, const ScoreSoftmax *softmax) {
    const Grid grid = score_grid(softmax->rows);
    if (softmax->rows.type == OPERAND_BF16)
        launch_check("score_softmax", KLAUNCH((score_softmax_kernel<__nv_bfloat16>), grid.blocks, grid.threads, 0,
                                              launch_stream(ctx), *softmax));
    else
        launch_check("score_softmax", KLAUNCH((score_softmax_kernel<float>), grid.blocks, grid.threads, 0,
                                              launch_stream(ctx), *softmax));
}

template <class T> __global__ void score_gradient_kernel(ScoreGradient task) {
    if (!score_row_exists(task.rows))
        return;
    const ScoreRow row = score_row(task.rows);
    const float *s = task.scores + row.index * task.rows.score_stride;
    const float *dp = task.dp + row.index * task.rows.score_stride;
    T *p = static_cast<T *>(task.p) + row.index * task.rows.operand_stride;
    T *ds = static_cast<T *>(task.ds) + row.index * task.rows.operand_stride;
    const float scale = task.rows.scale, max = task.max[row.saved], inverse = 1.0f / task.sum[row.saved];
    const float delta = task.delta[row.saved];
    for (int64_t j = RUN * warp_lane(); j < task.rows.keys; j += STEP) {
        const bool any = j <= row.last;
        const RowRun<float> score = any ? run_at(s, j) : RowRun<float>{},
                            gradient = any ? run_at(dp, j) : RowRun<float>{};
        RowRun<T> out_p, out_ds;
        UNROLL for (int e = 0; e < RUN; e++) {
            const bool belongs = j + e <= row.last;
            const float x = belongs ? score_exp(score.x[e], scale, max) * inverse : 0.0f;
            out_p.x[e] = shorten(x, p);
            out_ds.x[e] = shorten(belongs ? x * (gradient.x[e] - delta) * scale : 0.0f, ds);
        }
        *reinterpret_cast<RowRun<T> *>(p + j) = out_p;
        *reinterpret_cast<RowRun<T> *>(ds + j) = out_ds;
    }
}

void score_gradient_cuda(const KernelCtx *ctx, const ScoreGradient *gradient) {
    const Grid grid = score_grid(gradient->rows);
    if (gradient->rows.type == OPERAND_BF16)
        launch_check("score_gradient", KLAUNCH((score_gradient_kernel<__nv_bfloat16>), grid.blocks, grid.threads, 0,
                                               launch_stream(ctx), *gradient));
    else
        launch_check("score_gradient", KLAUNCH((score_gradient_kernel<float>), grid.blocks, grid.threads, 0,
                                               launch_stream(ctx), *gradient));
}
