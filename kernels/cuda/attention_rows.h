/* What stands around the products of attention in fast mode (src/device/cuda_attention.c): operands by heads, soft-max
 * of score rows, gradients of scores, results by tokens. As C code sees it. The structs are without padding: their
 * bytes go to the device.
 *
 * A *pair* is a sequence and a kv head: number b*K + kv_head of B*K. The `group` query heads that share a kv head lie
 * below one another, so that they are one matrix: row token*group + g of a pair is query head kv_head*group + g. Keys
 * have rows of their own (group 1). max, sum and delta are [B,H,T]. */
#ifndef DMUON_KERNELS_CUDA_ATTENTION_ROWS_H
#define DMUON_KERNELS_CUDA_ATTENTION_ROWS_H

#include "kernels/cuda/gemm_operands.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One tensor in both its layouts. */
typedef struct HeadTensor {
    float *tokens; /* [B,T,pairs of a sequence * group,D], a token every `stride` elements */
    void *heads;   /* [pairs][T*group] rows of D, `row_stride` elements apart */
    int64_t group, stride, row_stride;
} HeadTensor;

enum { HEAD_TENSORS = 4 };

/* heads = tokens, rounded to `type` (OPERAND_F32: as it is), for the first `count` of the tensors, in one launch. delta
 * not NULL: the last of four tensors is d_o, and delta = lane sum of d_o*o (fma lanes), o [B,T,H,D] with d_o's stride.
 */
typedef struct HeadPack {
    HeadTensor tensor[HEAD_TENSORS];
    const float *o;
    float *delta;
    int64_t B, T, K, D;
    int count;
    OperandType type;
} HeadPack;
void head_pack_cuda(const KernelCtx *ctx, const HeadPack *pack);

/* tokens = heads, which are f32, for the first `count` of the tensors, in one launch. */
typedef struct HeadUnpack {
    HeadTensor tensor[HEAD_TENSORS];
    int64_t B, T, K, D, count;
} HeadUnpack;
void head_unpack_cuda(const KernelCtx *ctx, const HeadUnpack *unpack);

/* Query rows of tokens [first, first + rows) of pairs [pair, pair + pairs), against keys [0, keys), keys >= first +
 * rows. Matrices of them are [pairs][rows*group] rows of `keys`, padded to a multiple of 16 bytes that may be written,
 * score_stride (f32) or operand_stride (of `type`) elements apart, at multiples of 16 bytes. Key j belongs to row i
 * where j <= token of i; elsewhere scores are not looked at. */
typedef struct ScoreRows {
    int64_t pair, pairs, first, rows, keys;
    int64_t group, T, score_stride, operand_stride;
    float scale;
    OperandType type;
} ScoreRows;

/* s = scores*scale; m = max s; l = sum of e = exp(s - m), element j in lane j/4 mod 32, lanes ascending, then folded; p
 * = e*(1/l), rounded to `type`; +0 where the key does not belong. f32: p may alias scores. */
typedef struct ScoreSoftmax {
    ScoreRows rows;
    const float *scores;
    void *p;
    float *max, *sum;
} ScoreSoftmax;
void score_softmax_cuda(const KernelCtx *ctx, const ScoreSoftmax *softmax);

/* p as above, from the saved max and sum; ds = p*(dp - delta)*scale with the p that is not rounded yet; both rounded to
 * `type`, +0 where the key does not belong. f32: p may alias scores, ds dp. */
typedef struct ScoreGradient {
    ScoreRows rows;
    const float *scores, *dp;
    void *p, *ds;
    const float *max, *sum, *delta;
} ScoreGradient;
void score_gradient_cuda(const KernelCtx *ctx, const ScoreGradient *gradient);

#ifdef __cplusplus
}
#endif

#endif
