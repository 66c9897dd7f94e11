/* A vocabulary cut over ranks: the rows' maxima and the targets' logits, selected from every rank's part. */
#include "kernels/cuda/grid.h"
#include "kernels/cuda/lanes.h"

__global__ void loss_select_kernel(LossSelect a) {
    for (int64_t i = flat_begin(); i < flat_end(a.n); i += blockDim.x) {
        float max = a.parts[i];
        for (int r = 1; r < a.ranks; r++)
            max = max_of(max, a.parts[2 * r * a.n + i]);
        a.max[i] = max;
        a.z_t[i] = a.parts[(2 * (a.target[i] / a.rank_cols) + 1) * a.n + i];
    }
}

GRID_FLAT_ENTRY(loss_select, LossSelect)
