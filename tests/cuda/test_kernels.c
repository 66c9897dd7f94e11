/* The CUDA kernels other than products against the CPU's, bit for bit. Each case is a line of a table: the sizes that
 * its kernel's function below makes arguments from. */
#include <stdio.h>

#include "tests/cuda/parity.h"

/* The numbers of one case; each kernel's function says what they are. */
typedef struct Case {
    void (*run)(const struct Case *c);
    int64_t n[4];
    bool special; /* infinities and NaNs among the inputs */
} Case;

/* Stored as bf16, with the bits of n elements: not where there are NaNs, which the comparison knows in f32 only. */
static StoreBf16 pool_store(int64_t n) {
    const size_t skew = (size_t)random_below(8) * sizeof(uint16_t);
    return (StoreBf16){.bits = parity.special ? NULL : pool_bytes((size_t)n * sizeof(uint16_t), skew), .rounded = true};
}

/* ---- moving and adding ------------------------------------------------------------------------------------------ */

/* rows, cols, extra stride of dst, of src */
static void run_copy(const Case *c) {
    const int64_t rows = c->n[0], cols = c->n[1], dst = cols + c->n[2], src = cols + c->n[3];
    PARITY_RUN(COPY, (&(Copy){.dst = pool_floats(rows * dst),
                              .src = pool_random(rows * src),
                              .rows = rows,
                              .cols = cols,
                              .dst_stride = dst,
                              .src_stride = src}));
}

static void run_fill(const Case *c) {
    PARITY_RUN(FILL, (&(Fill){.x = pool_random(c->n[0]), .n = c->n[0], .value = -0.0f}));
}

/* n, in place: 0 no, 1 dst = a, 2 dst = b, 3 all three */
static void run_add(const Case *c) {
    const int64_t n = c->n[0], alias = c->n[1];
    float *a = pool_random(n), *b = alias == 3 ? a : pool_random(n);
    float *dst = alias == 0 ? pool_floats(n) : (alias == 2 ? b : a);
    PARITY_RUN(ADD, (&(Add){.dst = dst, .a = a, .b = b, .n = n}));
    PARITY_RUN(ADD, (&(Add){.dst = dst, .a = a, .b = b, .n = n, .rounded = true}));
}

static void run_scale(const Case *c) {
    PARITY_RUN(SCALE, (&(Scale){.x = pool_random(c->n[0]), .n = c->n[0], .factor = -0x1.8p-3f}));
}

/* n, count, extra stride, in place */
static void run_sum_tree(const Case *c) {
    const int64_t n = c->n[0], stride = n + c->n[2];
    float *src = pool_random(stride * c->n[1]);
    PARITY_RUN(
        SUM_TREE,
        (&(SumTree){
            .dst = c->n[3] != 0 ? src : pool_floats(n), .src = src, .n = n, .stride = stride, .count = (int)c->n[1]}));
}

/* n: any 32 bits, bf16 values, ties, NaNs with payloads; rounded, in place too, packed, unpacked */
static void run_bf16(const Case *c) {
    const int64_t n = c->n[0];
    float *x = pool_random(n);
    uint16_t *packed = pool_bytes((size_t)n * sizeof *packed, (size_t)random_below(8) * sizeof *packed);
    for (int64_t i = 0; i < n; i++) {
        const uint32_t any = random_u32(), upper = any & 0xffff0000;
        const uint32_t bits[] = {any, upper, upper | 0x8000, any | 0x7f800000};
        memcpy(&x[i], &bits[i % 4], sizeof bits[0]);
    }
    PARITY_RUN(ROUND_BF16, (&(RoundBf16){.y = pool_floats(n), .x = x, .n = n}));
    PARITY_RUN(PACK_BF16, (&(PackBf16){.y = packed, .x = x, .n = n}));
    PARITY_RUN(UNPACK_BF16, (&(UnpackBf16){.y = pool_floats(n), .x = packed, .n = n}));
    PARITY_RUN(ROUND_BF16, (&(RoundBf16){.y = pool_floats(n), .bits = pool_store(n).bits, .x = x, .n = n}));
    PARITY_RUN(ROUND_BF16, (&(RoundBf16){.y = x, .x = x, .n = n}));
}

/* ---- layers ------------------------------------------------------------------------------------------------------ */

static void run_bias_add(const Case *c) {
    const int64_t rows = c->n[0], cols = c->n[1];
    PARITY_RUN(BIAS_ADD,
               (&(BiasAdd){.y = pool_random(rows * cols), .b = pool_random(cols), .rows = rows, .cols = cols}));
}

static void run_bias_grad(const Case *c) {
    const int64_t rows = c->n[0], cols = c->n[1];
    PARITY_RUN(BIAS_GRAD,
               (&(BiasGrad){.db = pool_floats(cols), .dy = pool_random(rows * cols), .rows = rows, .cols = cols}));
}

/* tokens, d, first row, rows; a third of the ids lie outside */
static void run_embedding_forward(const Case *c) {
    const int64_t n = c->n[0], d = c->n[1], first = c->n[2], nrows = c->n[3];
    PARITY_RUN(EMBEDDING_FORWARD, (&(EmbeddingForward){.y = pool_random(n * d),
                                                       .table = pool_random(nrows * d),
                                                       .ids = pool_ids(n, first, first + nrows + nrows / 2 + 1),
                                                       .n = n,
                                                       .d = d,
                                                       .first_row = first,
                                                       .nrows = nrows}));
}

static void run_embedding_backward(const Case *c) {
    const int64_t n = c->n[0], d = c->n[1], first = c->n[2], nrows = c->n[3];
    EmbeddingBackward args = {.dtable = pool_random(nrows * d),
                              .dy = pool_random(n * d),
                              .ids = pool_ids(n, first, first + nrows + nrows / 2 + 1),
                              .n = n,
                              .d = d,
                              .first_row = first,
                              .nrows = nrows};
    PARITY_RUN(EMBEDDING_BACKWARD, &args);
    args.accumulate = true;
    PARITY_RUN(EMBEDDING_BACKWARD, &args);
}

/* rows, d, in place */
static void run_rmsnorm_forward(const Case *c) {
    const int64_t rows = c->n[0], d = c->n[1];
    float *x = pool_random(rows * d);
    RmsnormForward args = {.y = c->n[2] != 0 ? x : pool_floats(rows * d),
                           .rstd = pool_floats(rows),
                           .x = x,
                           .w = pool_random(d),
                           .rows = rows,
                           .d = d,
                           .eps = 1e-5f};
    PARITY_RUN(RMSNORM_FORWARD, &args);
    args.store = pool_store(rows * d);
    PARITY_RUN(RMSNORM_FORWARD, &args);
}

/* rows, d, residual, in place: 0 no, 1 dx = dy, 2 dx = residual */
static void run_rmsnorm_backward(const Case *c) {
    const int64_t rows = c->n[0], d = c->n[1];
    float *dy = pool_random(rows * d), *residual = c->n[2] != 0 ? pool_random(rows * d) : NULL;
    float *dx = c->n[3] == 0 ? pool_floats(rows * d) : (c->n[3] == 1 ? dy : residual);
    RmsnormBackward args = {.dx = dx,
                            .dy = dy,
                            .x = pool_random(rows * d),
                            .w = pool_random(d),
                            .rstd = pool_positive(rows),
                            .residual = residual,
                            .rows = rows,
                            .d = d};
    PARITY_RUN(RMSNORM_BACKWARD, &args);
    args.store = pool_store(rows * d);
    PARITY_RUN(RMSNORM_BACKWARD, &args);
}

/* tokens, heads, d, runs */
static void run_gain_grad(const Case *c) {
    const int64_t tokens = c->n[0], heads = c->n[1], d = c->n[2];
    PARITY_RUN(RMSNORM_GAIN_GRAD, (&(RmsnormGainGrad){.dw = pool_floats(d),
                                                      .dy = pool_random(tokens * heads * d),
                                                      .x = pool_random(tokens * heads * d),
                                                      .rstd = pool_positive(tokens * heads),
                                                      .tokens = tokens,
                                                      .heads = heads,
                                                      .d = d,
                                                      .runs = (int)c->n[3]}));
}

/* tokens, heads, d, T; forward, then back */
static void run_rope(const Case *c) {
    const int64_t n = c->n[0], heads = c->n[1], d = c->n[2], T = c->n[3], stride = heads * d + 3;
    Rope args = {.x = pool_random(n * stride),
                 .cos = pool_random(T * d / 2),
                 .sin = pool_random(T * d / 2),
                 .n = n,
                 .heads = heads,
                 .d = d,
                 .stride = stride,
                 .T = T};
    PARITY_RUN(ROPE, &args);
    args.inverse = true;
    PARITY_RUN(ROPE, &args);
    args.store = pool_store(n * stride);
    PARITY_RUN(ROPE, &args);
}

/* n, in place */
static void run_swiglu(const Case *c) {
    const int64_t n = c->n[0];
    float *z = pool_random(n), *u = pool_random(n);
    for (int64_t i = 0; i < n; i += 3)
        z[i] *= 100.0f;
    SwigluForward forward = {.a = pool_floats(n), .z = z, .u = u, .n = n};
    SwigluBackward backward = {.dz = c->n[1] != 0 ? z : pool_floats(n),
                               .du = c->n[1] != 0 ? u : pool_floats(n),
                               .da = pool_random(n),
                               .z = z,
                               .u = u,
                               .n = n};
    PARITY_RUN(SWIGLU_FORWARD, &forward);
    forward.store = pool_store(n);
    PARITY_RUN(SWIGLU_FORWARD, &forward);
    PARITY_RUN(SWIGLU_BACKWARD, &backward);
    backward.store_dz = pool_store(n);
    backward.store_du = pool_store(n);
    PARITY_RUN(SWIGLU_BACKWARD, &backward);
}

/* ---- loss -------------------------------------------------------------------------------------------------------- */

/* The three of a row together, as the loss runs them. rows, columns, columns of padding, segments */
static void run_loss(const Case *c) {
    const int64_t n = c->n[0], cols = c->n[1], ld = cols + c->n[2], first = 5;
    float *z = pool_random(n * ld), *max = pool_floats(n), *z_t = pool_random(n), *sum = pool_floats(n);
    float *loss = pool_floats(n);
    const int32_t *target = pool_ids(n, 0, first + cols + 3);
    PARITY_RUN(
        LOSS_MAX,
        (&(LossMax){
            .max = max, .z_t = z_t, .z = z, .target = target, .n = n, .ld = ld, .cols = cols, .first_col = first}));
    PARITY_RUN(LOSS_SUM, (&(LossSum){.sum = sum,
                                     .z = z,
                                     .max = max,
                                     .n = n,
                                     .ld = ld,
                                     .cols = cols,
                                     .segment = c->n[3] == 1 ? cols : cols / (c->n[3] - 1),
                                     .nsegments = (int)c->n[3]}));
    LossGrad grad = {.loss = loss,
                     .z = z,
                     .max = max,
                     .sum = sum,
                     .z_t = z_t,
                     .target = target,
                     .n = n,
                     .ld = ld,
                     .cols = cols,
                     .first_col = first,
                     .factor = 0x1.3p-4f};
    PARITY_RUN(LOSS_GRAD, &grad);
    grad.dz = pool_floats(n * ld);
    PARITY_RUN(LOSS_GRAD, &grad);
    grad.dz = z;
    grad.loss = NULL;
    PARITY_RUN(LOSS_GRAD, &grad);
}

/* The largest element of every row is a zero of either sign, wherever it stands. */
static void run_max_of_zeros(const Case *c) {
    const int64_t n = c->n[0], cols = c->n[1];
    float *z = pool_random(n * cols);
    for (int64_t i = 0; i < n * cols; i++)
        z[i] = -fabsf(z[i]) * (float)(random_u32() % 3);
    PARITY_RUN(LOSS_MAX, (&(LossMax){.max = pool_floats(n),
                                     .z_t = pool_floats(n),
                                     .z = z,
                                     .target = pool_ids(n, 0, cols),
                                     .n = n,
                                     .ld = cols,
                                     .cols = cols}));
}

/* rows, ranks, columns of a rank */
static void run_loss_select(const Case *c) {
    const int64_t n = c->n[0], ranks = c->n[1];
    PARITY_RUN(LOSS_SELECT, (&(LossSelect){.max = pool_floats(n),
                                           .z_t = pool_floats(n),
                                           .parts = pool_random(2 * ranks * n),
                                           .target = pool_ids(n, 0, ranks * c->n[2]),
                                           .n = n,
                                           .rank_cols = c->n[2],
                                           .ranks = (int)ranks}));
}

static void run_lane_mean(const Case *c) {
    PARITY_RUN(LANE_MEAN, (&(LaneMean){.out = pool_floats(c->n[0]),
                                       .x = pool_random(c->n[0] * c->n[1]),
                                       .rows = c->n[0],
                                       .n = c->n[1],
                                       .factor = 0x1.8p-5f}));
}

/* ---- optimizer --------------------------------------------------------------------------------------------------- */

/* n, clipped */
static void run_adamw(const Case *c) {
    const int64_t n = c->n[0];
    PARITY_RUN(ADAMW, (&(Adamw){.w = pool_random(n),
                                .m = pool_random(n),
                                .v = pool_positive(n),
                                .g = pool_random(n),
                                .n = n,
                                .clipped = c->n[1] != 0,
                                .grad_factor = 0.7f,
                                .b1 = 0.9f,
                                .one_minus_b1 = 0.1f,
                                .b2 = 0.95f,
                                .one_minus_b2 = 0.05f,
                                .c1 = 1.5f,
                                .c2 = 3.0f,
                                .lr = 3e-3f,
                                .lr_wd = 3e-4f,
                                .eps = 1e-8f}));
}

/* n, clipped, nesterov, in place */
static void run_momentum(const Case *c) {
    const int64_t n = c->n[0];
    float *g = pool_random(n);
    PARITY_RUN(MUON_MOMENTUM, (&(MuonMomentum){.out = c->n[3] != 0 ? g : pool_floats(n),
                                               .momentum = pool_random(n),
                                               .g = g,
                                               .n = n,
                                               .clipped = c->n[1] != 0,
                                               .nesterov = c->n[2] != 0,
                                               .grad_factor = 0.7f,
                                               .mu = 0.95f}));
}

static void run_apply(const Case *c) {
    PARITY_RUN(
        MUON_APPLY,
        (&(MuonApply){
            .w = pool_random(c->n[0]), .update = pool_random(c->n[0]), .n = c->n[0], .lr_wd = 3e-4f, .lr_s = 3e-3f}));
}

static void run_abs_max(const Case *c) {
    float *x = pool_random(c->n[0]);
    PARITY_RUN(ABS_MAX, (&(AbsMax){.out = pool_floats(1), .x = x, .n = c->n[0]}));
}

/* rows, cols, dim, segments */
static void run_squares_rows(const Case *c) {
    const int64_t rows = c->n[0], cols = c->n[1];
    PARITY_RUN(SUM_SQUARES_ROWS, (&(SumSquaresRows){.out = pool_doubles(c->n[3]),
                                                    .x = pool_random(rows * cols),
                                                    .rows = rows,
                                                    .cols = cols,
                                                    .dim = (int)c->n[2],
                                                    .nsegments = (int)c->n[3]}));
}

static void run_squares_blocks(const Case *c) {
    const int64_t n = c->n[0];
    int32_t *size = pool_ids(n, 0, 1025);
    if (n > 0)
        size[n - 1] = 1024;
    PARITY_RUN(SUM_SQUARES_BLOCKS,
               (&(SumSquaresBlocks){.out = pool_doubles(n), .x = pool_random(1024 * n), .size = size, .nblocks = n}));
}

/* n, exponent of the maximum (1000: it is 0), in place */
static void run_scale_pow2(const Case *c) {
    const int64_t n = c->n[0];
    float *x = pool_random(n), *abs_max = pool_floats(1);
    abs_max[0] = c->n[1] == 1000 ? 0.0f : ldexpf(1.5f, (int)c->n[1]);
    for (int64_t i = 0; i < n; i++)
        x[i] = ldexpf(x[i], (int)c->n[1] % 1000);
    PARITY_RUN(NS_SCALE_POW2,
               (&(NsScalePow2){.y = c->n[2] != 0 ? x : pool_floats(n), .x = x, .abs_max = abs_max, .n = n}));
}

/* n, segments, all zero, in place */
static void run_normalize(const Case *c) {
    const int64_t n = c->n[0];
    float *x = pool_random(n);
    double *sumsq = pool_doubles(c->n[1]);
    if (c->n[2] != 0)
        memset(sumsq, 0, (size_t)c->n[1] * sizeof *sumsq);
    PARITY_RUN(NS_NORMALIZE,
               (&(NsNormalize){
                   .y = c->n[3] != 0 ? x : pool_floats(n), .x = x, .sumsq = sumsq, .n = n, .nsegments = (int)c->n[1]}));
}

/* n, scale_y, in place: 0 no, 1 out = x, 2 out = y */
static void run_combine(const Case *c) {
    const int64_t n = c->n[0];
    float *x = pool_random(n), *y = pool_random(n);
    PARITY_RUN(NS_COMBINE, (&(NsCombine){.out = c->n[2] == 0 ? pool_floats(n) : (c->n[2] == 1 ? x : y),
                                         .x = x,
                                         .y = y,
                                         .n = n,
                                         .scale_y = c->n[1] != 0,
                                         .c = -4.775f,
                                         .b = 2.0315f}));
}

/* m, in place */
static void run_diagonal(const Case *c) {
    const int64_t m = c->n[0];
    float *x = pool_random(m * m);
    PARITY_RUN(ADD_DIAGONAL,
               (&(AddDiagonal){.out = c->n[1] != 0 ? x : pool_floats(m * m), .x = x, .m = m, .a = 3.4445f}));
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

static const Case cases[] = {
    {run_copy, {1, 1, 0, 0}, true},
    {run_copy, {7, 5, 3, 1}, true},
    {run_copy, {3, 1500, 0, 0}, true},
    {run_copy, {3, 1500, 1, 9}, true},
    {run_copy, {300, 3, 2, 0}, true},
    {run_copy, {0, 9, 0, 0}, false},
    {run_fill, {1}, false},
    {run_fill, {2061}, false},
    {run_fill, {0}, false},
    {run_add, {1, 0}, true},
    {run_add, {2051, 0}, true},
    {run_add, {517, 1}, true},
    {run_add, {517, 2}, true},
    {run_add, {33, 3}, true},
    {run_add, {0, 0}, false},
    {run_scale, {1029}, true},
    {run_scale, {0}, false},
    {run_sum_tree, {513, 1, 0, 0}, true},
    {run_sum_tree, {513, 2, 5, 1}, true},
    {run_sum_tree, {67, 3, 0, 0}, true},
    {run_sum_tree, {67, 6, 1, 1}, false},
    {run_sum_tree, {67, 7, 1, 0}, false},
    {run_sum_tree, {35, 8, 0, 1}, false},
    {run_sum_tree, {3, 13, 0, 0}, false},
    {run_sum_tree, {5, 511, 3, 1}, false},
    {run_sum_tree, {5, 1023, 0, 0}, false},
    {run_sum_tree, {5, 1024, 0, 1}, false},
    {run_sum_tree, {0, 4, 0, 0}, false},
    {run_bf16, {1}, false},
    {run_bf16, {1029}, false},
    {run_bf16, {40003}, false},
    {run_bf16, {0}, false},
    {run_bias_add, {5, 1}, true},
    {run_bias_add, {37, 67}, true},
    {run_bias_add, {3, 1111}, true},
    {run_bias_grad, {37, 67}, true},
    {run_bias_grad, {1, 300}, true},
    {run_bias_grad, {0, 9}, false},
    {run_embedding_forward, {37, 19, 3, 11}, true},
    {run_embedding_forward, {5, 1030, 0, 7}, true},
    {run_embedding_forward, {0, 8, 0, 4}, false},
    {run_embedding_forward, {9, 8, 2, 0}, false},
    {run_embedding_backward, {300, 19, 3, 11}, true},
    {run_embedding_backward, {65, 1030, 0, 7}, false},
    {run_embedding_backward, {33, 5, 0, 100}, true},
    {run_embedding_backward, {0, 8, 0, 4}, false},
    {run_embedding_backward, {9, 8, 2, 0}, false},
    {run_rmsnorm_forward, {5, 1, 0}, false},
    {run_rmsnorm_forward, {7, 33, 1}, false},
    {run_rmsnorm_forward, {3, 200, 0}, true},
    {run_rmsnorm_forward, {100, 321, 0}, false},
    {run_rmsnorm_forward, {0, 64, 0}, false},
    {run_rmsnorm_backward, {5, 1, 0, 0}, false},
    {run_rmsnorm_backward, {7, 33, 1, 2}, false},
    {run_rmsnorm_backward, {3, 200, 1, 1}, true},
    {run_rmsnorm_backward, {6, 64, 0, 1}, false},
    {run_rmsnorm_backward, {50, 321, 1, 0}, false},
    {run_gain_grad, {37, 1, 67, 1}, true},
    {run_gain_grad, {9, 6, 16, 2}, false},
    {run_gain_grad, {3, 12, 5, 12}, false},
    {run_gain_grad, {2, 256, 3, 256}, false},
    {run_gain_grad, {0, 4, 8, 4}, false},
    {run_rope, {7, 3, 6, 5}, true},
    {run_rope, {33, 4, 16, 11}, false},
    {run_rope, {2, 9, 130, 2}, false},
    {run_rope, {0, 2, 8, 4}, false},
    {run_swiglu, {2061, 0}, true},
    {run_swiglu, {67, 1}, true},
    {run_swiglu, {1031, 1}, false},
    {run_swiglu, {0, 0}, false},
    {run_loss, {7, 1, 0, 1}, false},
    {run_loss, {5, 100, 12, 1}, true},
    {run_loss, {5, 100, 4, 4}, false},
    {run_loss, {3, 1300, 0, 8}, false},
    {run_loss, {3, 71, 57, 64}, false},
    {run_loss, {0, 71, 1, 1}, false},
    {run_max_of_zeros, {9, 67}, false},
    {run_loss_select, {37, 1, 9}, true},
    {run_loss_select, {300, 4, 5}, true},
    {run_loss_select, {0, 4, 5}, false},
    {run_lane_mean, {3, 67}, true},
    {run_lane_mean, {1, 1025}, false},
    {run_lane_mean, {4, 0}, false},
    {run_lane_mean, {0, 4}, false},
    {run_adamw, {2061, 0}, true},
    {run_adamw, {67, 1}, false},
    {run_adamw, {0, 0}, false},
    {run_momentum, {2061, 0, 1, 0}, true},
    {run_momentum, {67, 1, 1, 1}, false},
    {run_momentum, {67, 0, 0, 1}, false},
    {run_momentum, {0, 0, 0, 0}, false},
    {run_apply, {2061}, true},
    {run_apply, {0}, false},
    {run_abs_max, {1}, false},
    {run_abs_max, {500}, false},
    {run_abs_max, {3001}, false},
    {run_abs_max, {300001}, false},
    {run_abs_max, {5000}, true},
    {run_abs_max, {0}, false},
    {run_squares_rows, {1, 1, 0, 1}, false},
    {run_squares_rows, {37, 67, 0, 1}, true},
    {run_squares_rows, {37, 67, 0, 8}, false},
    {run_squares_rows, {37, 67, 1, 4}, false},
    {run_squares_rows, {2, 3, 0, 8}, false},
    {run_squares_rows, {600, 5, 0, 1}, false},
    {run_squares_rows, {0, 5, 1, 2}, false},
    {run_squares_blocks, {9}, true},
    {run_squares_blocks, {1}, false},
    {run_squares_blocks, {0}, false},
    {run_scale_pow2, {517, 0, 0}, true},
    {run_scale_pow2, {517, -131, 1}, false},
    {run_scale_pow2, {517, 127, 0}, false},
    {run_scale_pow2, {517, -148, 0}, false},
    {run_scale_pow2, {33, 1000, 1}, false},
    {run_scale_pow2, {0, 1, 0}, false},
    {run_normalize, {2061, 1, 0, 0}, true},
    {run_normalize, {67, 8, 0, 1}, false},
    {run_normalize, {67, 11, 0, 0}, false},
    {run_normalize, {67, 3, 1, 0}, true},
    {run_normalize, {0, 1, 0, 0}, false},
    {run_combine, {2061, 0, 0}, true},
    {run_combine, {67, 1, 1}, true},
    {run_combine, {67, 0, 2}, false},
    {run_combine, {67, 1, 2}, false},
    {run_combine, {0, 1, 0}, false},
    {run_diagonal, {1, 0}, true},
    {run_diagonal, {67, 0}, true},
    {run_diagonal, {67, 1}, true},
    {run_diagonal, {0, 0}, false},
};

/* Each case twice: at other places of the pool, with other values. */
static void test_every_case_has_the_bits_of_the_cpu(void **state) {
    (void)state;
    parity_restore_signals();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const Case *c = &cases[i];
        for (int round = 0; round < 2; round++) {
            pool_begin(round == 1 && c->special);
            (void)snprintf(parity.what, sizeof parity.what, "case %zu (%d, %d, %d, %d), round %d", i, (int)c->n[0],
                           (int)c->n[1], (int)c->n[2], (int)c->n[3], round);
            c->run(c);
        }
    }
}

static void test_the_table_names_every_kernel_but_products(void **state) {
    (void)state;
    for (int id = 0; id < KERNEL_COUNT; id++)
        if (id != KERNEL_GEMM && id != KERNEL_ATTENTION_FORWARD && id != KERNEL_ATTENTION_BACKWARD && !parity.ran[id])
            fail_msg("kernel %d has no case", id);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_case_has_the_bits_of_the_cpu),
        cmocka_unit_test(test_the_table_names_every_kernel_but_products),
    };
    parity_keep_signals();
    return cmocka_run_group_tests(tests, parity_open, parity_close);
}
