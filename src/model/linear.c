/* Products with weights. Which of them are segmented follows from the dimension that tensor parallelism cuts, whatever
 * its degree. */
#include "model/linear.h"

#include "base/fatal.h"
#include "tensor/ops.h"

static GemmPart part_of(Operand a, int64_t lda, Operand b, int64_t ldb, int64_t k, int64_t segment) {
    return (GemmPart){
        .a = a.x, .b = b.x, .a_bf16 = a.bits, .b_bf16 = b.bits, .lda = lda, .ldb = ldb, .k = k, .segment = segment};
}

LinearDims linear_dims(int64_t rows, int64_t out, int64_t in) {
    return (LinearDims){.rows = rows, .out = out, .in = in, .ld = out};
}

/* The end of every segmented product: this rank's segments are combined, the tree goes on across the tp ranks. */
static void linear_reduce(const Leaf *leaf, float *y, int64_t n) {
    comm_all_reduce(leaf->tp, leaf->stream, y, y, n, DTYPE_F32, leaf_tag(leaf, "tp partial sums", n));
    leaf_stored(leaf, leaf_only(y), n);
}

void linear_logits(const Leaf *leaf, LinearDims dims, float *y, Operand x, Operand w) {
    const GemmPart part = part_of(x, dims.in, w, dims.in, dims.in, dims.in);
    ops_gemm(leaf->stream, (Gemm){.m = dims.rows,
                                  .n = dims.out,
                                  .nparts = 1,
                                  .part = {part},
                                  .nsegments = 1,
                                  .trans_b = true,
                                  .shape = GEMM_FULL,
                                  .c = y,
                                  .ldc = dims.ld});
}

void linear_forward(const Leaf *leaf, LinearDims dims, float *y, Operand x, Operand w, const float *bias) {
    linear_logits(leaf, dims, y, x, w);
    if (bias != NULL)
        ops_bias_add(leaf->stream, (BiasAdd){.y = y, .b = bias, .rows = dims.rows, .cols = dims.out});
    leaf_stored(leaf, leaf_only(y), dims.rows * dims.out);
}

void linear_forward_cut(const Leaf *leaf, LinearDims dims, float *y, Operand x, Operand w) {
    const int segments = leaf->local.segments;
    const GemmPart part = part_of(x, dims.in, w, dims.in, dims.in, dims.in / segments);
    ops_gemm(leaf->stream, (Gemm){.m = dims.rows,
                                  .n = dims.out,
                                  .nparts = 1,
                                  .part = {part},
                                  .nsegments = segments,
                                  .trans_b = true,
                                  .shape = GEMM_FULL,
                                  .c = y,
                                  .ldc = dims.out});
    linear_reduce(leaf, y, dims.rows * dims.out);
}

void linear_input_grad(const Leaf *leaf, LinearDims dims, float *dx, Operand dy, Operand w) {
    const GemmPart part = part_of(dy, dims.ld, w, dims.in, dims.out, dims.out);
    ops_gemm(leaf->stream, (Gemm){.m = dims.rows,
                                  .n = dims.in,
                                  .nparts = 1,
                                  .part = {part},
                                  .nsegments = 1,
                                  .shape = GEMM_FULL,
                                  .c = dx,
                                  .ldc = dims.in});
    leaf_stored(leaf, leaf_only(dx), dims.rows * dims.in);
}

void linear_input_grad_cut(const Leaf *leaf, float *dx, int64_t rows, int64_t in, const LinearPart *parts, int nparts) {
    const int segments = leaf->local.segments;
    Gemm gemm = {.m = rows, .n = in, .nparts = nparts, .nsegments = segments, .shape = GEMM_FULL, .c = dx, .ldc = in};
    DM_ASSERT(nparts >= 1 && nparts <= 3);
    for (int i = 0; i < nparts; i++) {
        const LinearPart *p = &parts[i];
        gemm.part[i] = part_of(p->dy, p->ld, p->w, in, p->out, p->padded_out / segments);
    }
    ops_gemm(leaf->stream, gemm);
    linear_reduce(leaf, dx, rows * in);
}

void linear_weight_grad(const Leaf *leaf, LinearDims dims, float *dw, Operand dy, Operand x) {
    const GemmPart part = part_of(dy, dims.ld, x, dims.in, dims.rows, dims.rows);
    ops_gemm(leaf->stream, (Gemm){.m = dims.out,
                                  .n = dims.in,
                                  .nparts = 1,
                                  .part = {part},
                                  .nsegments = 1,
                                  .trans_a = true,
                                  .shape = GEMM_FULL,
                                  .c = dw,
                                  .ldc = dims.in});
}
