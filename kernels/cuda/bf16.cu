/* Between binary32 and bf16, element by element. */
#include "kernels/cuda/grid.h"
#include "kernels/cuda/store.h"

__global__ void round_bf16_kernel(RoundBf16 a) {
    const StoreBf16 store = {a.bits, true};
    for (int64_t i = flat_begin(); i < flat_end(a.n); i += blockDim.x)
        a.y[i] = store_bf16(store, i, a.x[i]);
}

GRID_FLAT_ENTRY(round_bf16, RoundBf16)

__global__ void pack_bf16_kernel(PackBf16 a) {
    for (int64_t i = flat_begin(); i < flat_end(a.n); i += blockDim.x)
        a.y[i] = exact_bf16(a.x[i]);
}

GRID_FLAT_ENTRY(pack_bf16, PackBf16)

__global__ void unpack_bf16_kernel(UnpackBf16 a) {
    for (int64_t i = flat_begin(); i < flat_end(a.n); i += blockDim.x)
        a.y[i] = exact_from_bf16(a.x[i]);
}

GRID_FLAT_ENTRY(unpack_bf16, UnpackBf16)
