/* How a CUDA kernel is launched: two macros, so that the same source is compiled by nvcc for a GPU and by g++ for an
 * emulation on the CPU, whose header (force-included) gives namespace emu. C++ only.
 *
 * Kernels may take structs by value whose members are device pointers. */
#ifndef DMUON_KERNELS_CUDA_LAUNCH_H
#define DMUON_KERNELS_CUDA_LAUNCH_H

#include <cuda_runtime.h>

#include "kernels/cuda/table.h"

/* KLAUNCH(kernel, grid, block, dynamic shared bytes, stream, arguments...): a cudaError_t. A template kernel stands in
 * parentheses. DYN_SMEM(type, name) declares `name`, the block's dynamic shared memory as type *, aligned to 16. */
/* clang-format off */
#ifdef __CUDACC__
#define KLAUNCH(kernel, grid, block, nbytes, stream, ...)                                                              \
    ((kernel)<<<(grid), (block), (nbytes), (stream)>>>(__VA_ARGS__), cudaGetLastError())
#define DYN_SMEM(type, name)                                                                                           \
    extern __shared__ __align__(16) unsigned char dynamic_shared_[];                                                   \
    type *const name = reinterpret_cast<type *>(dynamic_shared_)
#else
#define KLAUNCH(kernel, grid, block, nbytes, stream, ...)                                                              \
    (emu::launch<(kernel)>((grid), (block), (nbytes), (stream), __VA_ARGS__))
#define DYN_SMEM(type, name) type *const name = static_cast<type *>(emu::dynamic_shared())
#endif
/* clang-format on */

/* Unrolls the loop that follows; arrays indexed by its counter stay in registers. */
#ifdef __CUDACC__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

/* The entries of the table: void gemm_cuda(const KernelCtx *ctx, const void *args) and so on. */
#define LAUNCH_DECLARE_(id, args, name) extern "C" void name##_cuda(const KernelCtx *ctx, const void *args);
KERNEL_LIST(LAUNCH_DECLARE_)
#undef LAUNCH_DECLARE_

/* The stream of a context, and the fate of a launch on it. */
static inline cudaStream_t launch_stream(const KernelCtx *ctx) {
    return static_cast<cudaStream_t>(ctx->stream);
}

static inline void launch_check(const char *kernel, cudaError_t error) {
    if (error != cudaSuccess)
        kernels_cuda_failed(kernel, static_cast<int>(error));
}

#endif
