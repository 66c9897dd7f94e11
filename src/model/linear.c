/* Products with weights. Which of them are segmented follows from the dimension that tensor parallelism cuts, whatever
 * its degree. */
#include "model/linear.h"

#include "base/fatal.h"
#include "tensor/ops.h"

LinearDims linear_dims(int64_t rows, int64_t out, int64_t in) {
    return (LinearDims){.rows = rows, .out = out, .in = in, .ld = out};
}

/* The end of every segmented product: this rank's segments are combined, the tree goes on across the tp ranks. */
static void linear_reduce(const Leaf *leaf, float *y, int64_t n) {
    comm_all_reduce(leaf->tp, leaf->stream, y, y, n, DTYPE_F32, leaf_tag(leaf, "tp partial sums", n));
    leaf_stored(leaf, y, n);
}

void linear_logits(const Leaf *leaf, LinearDims dims, float *y, const float *x, const float *w) {
    const GemmPart part = {.a = x, .b = w, .lda = dims.in, .ldb = dims.in, .k = dims.in, .segment = dims.in};
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

void linear_forward(const Leaf *leaf, LinearDims dims, float *y, const float *x, const float *w, const float *bias) {
    linear_logits(leaf, dims, y, x, w);
    if (bias != NULL)
        ops_bias_add(leaf->stream, (BiasAdd){.y = y, .b = bias, .rows = dims.rows, .cols = dims.out});
    leaf_stored(leaf, y, dims.rows * dims.out);
}

void linear_forward_cut(const Leaf *leaf, LinearDims dims, float *y, const float *x, const float *w) {
    const int segments = leaf->local.segments;
    const GemmPart part = {.a = x, .b = w, .lda = dims.in, .ldb = dims.in, .k = dims.in, .segment = dims.in / segments};
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

void linear_input_grad(const Leaf *leaf, LinearDims dims, float *dx, const float *dy, const float *w) {
    const GemmPart part = {.a = dy, .b = w, .lda = dims.ld, .ldb = dims.in, .k = dims.out, .segment = dims.out};
    ops_gemm(leaf->stream, (Gemm){.m = dims.rows,
                                  .n = dims.in,
                                  .nparts = 1,
                                  .part = {part},
                                  .nsegments = 1,
                                  .shape = GEMM_FULL,
                                  .c = dx,
                                  .ldc = dims.in});
    leaf_stored(leaf, dx, dims.rows * dims.in);
}

void linear_input_grad_cut(const Leaf *leaf, float *dx, int64_t rows, int64_t in, const LinearPart *parts, int nparts) {
    const int segments = leaf->local.segments;
    Gemm gemm = {.m = rows, .n = in, .nparts = nparts, .nsegments = segments, .shape = GEMM_FULL, .c = dx, .ldc = in};
    DM_ASSERT(nparts >= 1 && nparts <= 3);
    for (int i = 0; i < nparts; i++) {
        const LinearPart *p = &parts[i];
        gemm.part[i] = (GemmPart){
            .a = p->dy, .b = p->w, .lda = p->ld, .ldb = in, .k = p->out, .segment = p->padded_out / segments};
    }
    ops_gemm(leaf->stream, gemm);
    linear_reduce(leaf, dx, rows * in);
}

void linear_weight_grad(const Leaf *leaf, LinearDims dims, float *dw, const float *dy, const float *x) {
    const GemmPart part = {.a = dy, .b = x, .lda = dims.ld, .ldb = dims.in, .k = dims.rows, .segment = dims.rows};
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
