/* Token lookup, and its gradient: per table row one chain of adds over the tokens that carry it, ascending. */
#include "kernels/cuda/grid.h"

__global__ void embedding_forward_kernel(EmbeddingForward a) {
    const int64_t i = matrix_row();
    if (i >= a.n)
        return;
    const int64_t row = a.ids[i] - a.first_row;
    if (row < 0 || row >= a.nrows)
        return;
    for (int64_t c = matrix_column(); c < a.d; c += matrix_step())
        a.y[i * a.d + c] = a.table[row * a.d + c];
}

void embedding_forward_cuda(const KernelCtx *ctx, const void *args) {
    const EmbeddingForward *a = static_cast<const EmbeddingForward *>(args);
    if (a->n <= 0 || a->d <= 0)
        return;
    const Grid grid = grid_matrix(a->n, a->d);
    launch_check("embedding_forward",
                 KLAUNCH(embedding_forward_kernel, grid.blocks, grid.threads, 0, launch_stream(ctx), *a));
}

/* The tokens of each row as a list in ascending order: head[row], then next[token]; -1 ends it. */
typedef struct TokenLists {
    int32_t *head, *next;
} TokenLists;

__global__ void embedding_heads_kernel(EmbeddingBackward a, TokenLists lists) {
    for (int64_t v = flat_begin(); v < flat_end(a.nrows); v += blockDim.x)
        lists.head[v] = -1;
}

/* Every token finds the next one of its row by looking, so that no order of writes matters; a token without an earlier
 * one is the head. */
__global__ void embedding_link_kernel(EmbeddingBackward a, TokenLists lists) {
    const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= a.n)
        return;
    const int32_t id = a.ids[i];
    const int64_t row = id - a.first_row;
    if (row < 0 || row >= a.nrows)
        return;
    int64_t after = i + 1;
    while (after < a.n && a.ids[after] != id)
        after++;
    lists.next[i] = after < a.n ? static_cast<int32_t>(after) : -1;
    int64_t before = i - 1;
    while (before >= 0 && a.ids[before] != id)
        before--;
    if (before < 0)
        lists.head[row] = static_cast<int32_t>(i);
}

__global__ void embedding_sum_kernel(EmbeddingBackward a, TokenLists lists) {
    const int64_t row = matrix_row();
    if (row >= a.nrows)
        return;
    const int32_t head = lists.head[row];
    for (int64_t c = matrix_column(); c < a.d; c += matrix_step()) {
        float sum = 0.0f;
        for (int32_t i = head; i >= 0; i = lists.next[i])
            sum = sum + a.dy[i * a.d + c];
        float *e = a.dtable + row * a.d + c;
        *e = a.accumulate ? *e + sum : sum;
    }
}

void embedding_backward_cuda(const KernelCtx *ctx, const void *args) {
    const EmbeddingBackward *a = static_cast<const EmbeddingBackward *>(args);
    if (a->nrows <= 0 || a->d <= 0)
        return;
    const cudaStream_t stream = launch_stream(ctx);
    TokenLists lists;
    lists.head =
        static_cast<int32_t *>(ctx->scratch(ctx, 0, static_cast<size_t>(a->nrows + a->n) * sizeof *lists.head));
    lists.next = lists.head + a->nrows;
    const Grid heads = grid_flat(a->nrows), sums = grid_matrix(a->nrows, a->d);
    launch_check("embedding_backward",
                 KLAUNCH(embedding_heads_kernel, heads.blocks, heads.threads, 0, stream, *a, lists));
    if (a->n > 0) {
        const int64_t threads = grid_power(a->n, GRID_WARP, GRID_THREADS);
        const dim3 blocks(static_cast<unsigned>(grid_ceil_div(a->n, threads)));
        launch_check("embedding_backward", KLAUNCH(embedding_link_kernel, blocks, dim3(static_cast<unsigned>(threads)),
                                                   0, stream, *a, lists));
    }
    launch_check("embedding_backward", KLAUNCH(embedding_sum_kernel, sums.blocks, sums.threads, 0, stream, *a, lists));
}
