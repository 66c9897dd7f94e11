/* Operands and results of the vendor's products: shortening, storing, mirroring. All are bound by memory. */
#include "kernels/cuda/gemm_operands.h"

#include "kernels/cuda/grid.h"
#include "kernels/cuda/shorten.h"

enum { PACK_RUN = 8, MIRROR_TILE = 32, MIRROR_ROWS = 8 };

/* ---- operands: a thread turns runs of 8 elements, two 128-bit loads and one or two 128-bit stores ---------------- */

template <class T> struct alignas(16) Run { T x[PACK_RUN]; };

/* Whole runs of aligned rows; else element by element. */
template <class T> __global__ void operand_pack_kernel(OperandPack p, bool aligned) {
    const int64_t r = matrix_row(), runs = (p.cols + PACK_RUN - 1) / PACK_RUN;
    if (r >= p.rows)
        return;
    const float *src = p.src + static_cast<int64_t>(blockIdx.z) * p.src_step + r * p.src_stride;
    T *dst = static_cast<T *>(p.dst) + static_cast<int64_t>(blockIdx.z) * p.dst_step + r * p.dst_stride;
    for (int64_t run = matrix_column(); run < runs; run += matrix_step()) {
        const int64_t c = run * PACK_RUN;
        if (!aligned || c + PACK_RUN > p.cols) {
            for (int64_t i = c; i < c + PACK_RUN && i < p.cols; i++)
                dst[i] = shorten(src[i], dst);
            continue;
        }
        const float4 low = *reinterpret_cast<const float4 *>(src + c);
        const float4 high = *reinterpret_cast<const float4 *>(src + c + 4);
        const float x[PACK_RUN] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
        Run<T> out;
        UNROLL for (int i = 0; i < PACK_RUN; i++) out.x[i] = shorten(x[i], dst);
        *reinterpret_cast<Run<T> *>(dst + c) = out;
    }
}

template <class T> static void pack(const KernelCtx *ctx, const OperandPack &p) {
    Grid grid = grid_matrix(p.rows, grid_ceil_div(p.cols, PACK_RUN));
    const uintptr_t words = reinterpret_cast<uintptr_t>(p.src) / sizeof(float);
    const bool aligned = (words | static_cast<uintptr_t>(p.src_stride) | static_cast<uintptr_t>(p.src_step)) % 4 == 0;
    grid.blocks.z = static_cast<unsigned>(p.batch);
    launch_check("operand_pack",
                 KLAUNCH((operand_pack_kernel<T>), grid.blocks, grid.threads, 0, launch_stream(ctx), p, aligned));
}

void operand_pack_cuda(const KernelCtx *ctx, const OperandPack *p) {
    if (p->rows <= 0 || p->cols <= 0)
        return;
    if (p->type == OPERAND_BF16)
        pack<__nv_bfloat16>(ctx, *p);
    else if (p->type == OPERAND_F16)
        pack<__half>(ctx, *p);
    else
        pack<float>(ctx, *p);
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

__global__ void product_store_kernel(ProductStore s) {
    const int64_t r = matrix_row();
    if (r >= s.m)
        return;
    float *c = s.c + static_cast<int64_t>(blockIdx.z) * s.c_step + r * s.c_stride;
    const int64_t at = static_cast<int64_t>(blockIdx.z) * s.value_step + r * s.value_stride;
    for (int64_t j = matrix_column(); j < s.n; j += matrix_step()) {
        const float value = s.value != nullptr ? s.value[at + j] : 0.0f;
        c[j] = s.mode == STORE_ADD ? c[j] + value : value;
    }
}

void product_store_cuda(const KernelCtx *ctx, const ProductStore *s) {
    if (s->m <= 0 || s->n <= 0)
        return;
    Grid grid = grid_matrix(s->m, s->n);
    grid.blocks.z = static_cast<unsigned>(s->batch);
    launch_check("product_store", KLAUNCH(product_store_kernel, grid.blocks, grid.threads, 0, launch_stream(ctx), *s));
}

/* Tile (i, j), i >= j, of the lower triangle goes to (j, i); a tile on the diagonal to itself. */
__global__ void product_mirror_kernel(ProductMirror p) {
    __shared__ float tile[MIRROR_TILE][MIRROR_TILE + 1];
    const int64_t i0 = static_cast<int64_t>(blockIdx.x) * MIRROR_TILE;
    const int64_t j0 = static_cast<int64_t>(blockIdx.y) * MIRROR_TILE;
    float *c = p.c + static_cast<int64_t>(blockIdx.z) * p.c_step;
    if (j0 > i0)
        return;
    for (int y = threadIdx.y; y < MIRROR_TILE; y += MIRROR_ROWS)
        if (i0 + y < p.m && j0 + threadIdx.x < p.m)
            tile[y][threadIdx.x] = c[(i0 + y) * p.c_stride + j0 + threadIdx.x];
    __syncthreads();
    for (int y = threadIdx.y; y < MIRROR_TILE; y += MIRROR_ROWS) {
        const int64_t row = j0 + y, col = i0 + threadIdx.x;
        if (row < p.m && col < p.m && col > row)
            c[row * p.c_stride + col] = tile[threadIdx.x][y];
    }
}

void product_mirror_cuda(const KernelCtx *ctx, const ProductMirror *p) {
    if (p->m <= 0)
        return;
    const unsigned tiles = static_cast<unsigned>(grid_ceil_div(p->m, MIRROR_TILE));
    launch_check("product_mirror", KLAUNCH(product_mirror_kernel, dim3(tiles, tiles, static_cast<unsigned>(p->batch)),
                                           dim3(MIRROR_TILE, MIRROR_ROWS), 0, launch_stream(ctx), *p));
}
