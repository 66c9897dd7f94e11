/* The CUDA table of kernels as C code sees it. */
#ifndef DMUON_KERNELS_CUDA_TABLE_H
#define DMUON_KERNELS_CUDA_TABLE_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Each entry queues its work on the cudaStream_t ctx->stream and returns; it never waits for the device. Of the context
 * it uses `stream` and `scratch`, the latter with thread 0 and device memory: a later kernel of the same stream may be
 * given the same block, because stream order keeps them apart. */
extern const KernelTable kernels_cuda;

/* Defined by the caller of the table: the launch of `kernel` failed with `error`, a cudaError_t. Does not return. */
void kernels_cuda_failed(const char *kernel, int error);

#ifdef __cplusplus
}
#endif

#endif
