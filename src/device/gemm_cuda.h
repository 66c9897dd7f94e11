/* The vendor's matrix products on the CUDA device: cuBLASLt, with algorithms that are pinned beforehand. */
#ifndef DMUON_DEVICE_GEMM_CUDA_H
#define DMUON_DEVICE_GEMM_CUDA_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "kernels/cuda/gemm_operands.h"

#define GEMM_CUDA_ALIGN                                                                                                \
    16 /* bytes: of every operand and result, its rows and its matrices; fast algorithms need it                       \
        */
#define GEMM_CUDA_IDENTITY 80

typedef struct GemmCuda GemmCuda; /* opaque */

/* c [m,n] = op(a) op(b), all by rows, a and b of `type` (f32: rounded to tf32 on the way in), c and all sums f32. */
typedef struct GemmCall {
    int64_t m, n, k;
    bool trans_a, trans_b;
    OperandType type;
} GemmCall;

/* A matrix in memory, by rows. */
typedef struct GemmPlace {
    void *at;
    int64_t stride, step; /* elements from row to row, from matrix to matrix of a batch */
} GemmPlace;

typedef struct GemmTask {
    GemmPlace a, b, c;
    int64_t batch;
    bool accumulate;
} GemmTask;

static inline size_t gemm_cuda_element(OperandType type) {
    return type == OPERAND_F32 ? sizeof(float) : sizeof(uint16_t);
}

/* The elements of a row of `cols` up to where the next may begin. */
static inline int64_t gemm_cuda_stride(int64_t cols, OperandType type) {
    const int64_t unit = GEMM_CUDA_ALIGN / (int64_t)gemm_cuda_element(type);
    return (cols + unit - 1) / unit * unit;
}

/* May a product read or write this matrix of `type` where it is? */
static inline bool gemm_cuda_aligned(const void *at, int64_t stride, int64_t step, OperandType type) {
    const int64_t unit = GEMM_CUDA_ALIGN / (int64_t)gemm_cuda_element(type);
    return (uintptr_t)at % GEMM_CUDA_ALIGN == 0 && (stride | step) % unit == 0;
}

DM_NODISCARD Status gemm_cuda_create(GemmCuda **gemms); /* on the thread's current GPU */
void gemm_cuda_destroy(GemmCuda *gemms);                /* accepts NULL; nothing may be queued */
size_t gemm_cuda_choice_nbytes(int count);
DM_NODISCARD Status gemm_cuda_choose(GemmCuda *gemms, const GemmCall *calls, int count, void *choices);
DM_NODISCARD Status gemm_cuda_pin(GemmCuda *gemms, const GemmCall *calls, int count, const void *choices,
                                  char identity[GEMM_CUDA_IDENTITY]);
/* Queues a product of m, n, k > 0 on a cudaStream_t, from one thread. One that was not pinned is fatal. */
void gemm_cuda_call(GemmCuda *gemms, const GemmCall *call, const GemmTask *task, void *stream);

#endif
