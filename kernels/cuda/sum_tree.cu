/* r buffers to one in the order of the tree: the reduction of every gradient and of every segment. */
#include "kernels/cuda/grid.h"
#include "kernels/cuda/tree.h"

enum { SUM_TREE_LEVELS = 11 }; /* up to 1024 buffers */

/* dst may be src[0]: every element is read before it is written. */
__global__ void sum_tree_kernel(SumTree a) {
    for (int64_t i = flat_begin(); i < flat_end(a.n); i += blockDim.x) {
        TreeCounter<float, SUM_TREE_LEVELS> counter;
        for (int r = 0; r < a.count; r++)
            tree_push(counter, static_cast<unsigned>(r), a.src[r * a.stride + i]);
        a.dst[i] = tree_total(counter, static_cast<unsigned>(a.count));
    }
}

/* The counts of small meshes, without a counter: tree(n) written out. */
__global__ void sum_pair_kernel(SumTree a) {
    for (int64_t i = flat_begin(); i < flat_end(a.n); i += blockDim.x)
        a.dst[i] = a.src[i] + a.src[a.stride + i];
}

void sum_tree_cuda(const KernelCtx *ctx, const void *args) {
    const SumTree *a = static_cast<const SumTree *>(args);
    if (a->n <= 0)
        return;
    const Grid grid = grid_flat(a->n);
    if (a->count == 2)
        launch_check("sum_tree", KLAUNCH(sum_pair_kernel, grid.blocks, grid.threads, 0, launch_stream(ctx), *a));
    else
        launch_check("sum_tree", KLAUNCH(sum_tree_kernel, grid.blocks, grid.threads, 0, launch_stream(ctx), *a));
}
