/* What stands around a product of the vendor's library in fast mode: operands shortened to the type that it takes,
 * results that it could not write in place, the triangle that is a copy. As C code sees it. All of these take `batch`
 * matrices that are a step of elements apart. The structs are without padding: their bytes go to the device. */
#ifndef DMUON_KERNELS_CUDA_GEMM_OPERANDS_H
#define DMUON_KERNELS_CUDA_GEMM_OPERANDS_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum OperandType { OPERAND_F32, OPERAND_BF16, OPERAND_F16 } OperandType;

/* dst[r,c] = src[r,c], rounded once to `type`, to nearest even; beyond its largest number infinity. dst, its rows and
 * its matrices lie at multiples of 16 bytes. What lies between the rows of dst stays. */
typedef struct OperandPack {
    void *dst;
    const float *src;
    int64_t rows, cols, dst_stride, src_stride;
    int64_t dst_step, src_step;
    int batch;
    OperandType type;
} OperandPack;
void operand_pack_cuda(const KernelCtx *ctx, const OperandPack *pack);

typedef enum StoreMode { STORE_SET, STORE_ADD } StoreMode;

/* c = value, or c = c + value. value NULL: +0. */
typedef struct ProductStore {
    float *c;
    const float *value;
    int64_t m, n, c_stride, value_stride;
    int64_t c_step, value_step;
    int batch;
    StoreMode mode;
} ProductStore;
void product_store_cuda(const KernelCtx *ctx, const ProductStore *store);

/* c[j,i] = c[i,j] for i > j. */
typedef struct ProductMirror {
    float *c;
    int64_t m, c_stride, c_step, batch;
} ProductMirror;
void product_mirror_cuda(const KernelCtx *ctx, const ProductMirror *mirror);

#ifdef __cplusplus
}
#endif

#endif
