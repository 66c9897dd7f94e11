/* Every compute kernel, declared once: a struct of its arguments with the formula, the shapes and the sequence of
 * operations that it fixes (README, "Numerics"). A backend is one table of functions, indexed by KernelId; each takes
 * its context and a pointer to the argument struct of the same name, so that a launch can be queued by copying it.
 *
 * Shape letters: B micro-batch, T sequence, C width, H query heads, K key/value heads, D head size, F feed-forward,
 * V vocabulary (padded), N = B*T tokens of a leaf, S segments. All matrices are row-major f32 unless said otherwise.
 *
 * Words:
 *   chain     c = +0; for k ascending: c = fma(a[k], b[k], c). Blocking continues the chain (load c, go on).
 *   tree(x)   n = 1: x[0]; else split at the largest power of two below n: tree(left) + tree(right).
 *   lane sum  32 lanes at +0, element i of its piece goes to lane i mod 32 in ascending i (add, or fma for products);
 *             then lane[l] += lane[l+16], 8, 4, 2, 1. Tail lanes keep their value: padding never enters.
 *   maximum   the largest value; a NaN is passed over (ABS_MAX keeps it), and a zero counts as +0.
 * No kernel's bits depend on the number of threads, the vector unit or the device.
 * No buffers overlap unless "may alias" is said. A size of 0 is legal and does nothing (sums give +0, maxima -inf). */
#ifndef DMUON_KERNELS_KERNELS_H
#define DMUON_KERNELS_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Where a kernel runs. On the CPU: a pool of threads and their scratch. On CUDA: a stream. */
typedef struct KernelCtx KernelCtx;
struct KernelCtx {
    int nthreads; /* threads that `parallel` may use, at least 1 */
    /* Runs body(arg, item, thread) for every item in [0, nitems), each exactly once, on up to nthreads threads
     * (0 <= thread < nthreads); returns when all are done. Which thread runs which item is not defined. */
    void (*parallel)(const KernelCtx *ctx, int nitems, void (*body)(void *arg, int item, int thread), void *arg);
    /* At least nbytes of 64-byte-aligned memory private to `thread`; valid until the kernel returns or the thread's
     * next call (one block per thread; it grows and stays). Contents undefined. */
    void *(*scratch)(const KernelCtx *ctx, int thread, size_t nbytes);
    void *self;   /* the backend's own */
    void *stream; /* cudaStream_t, NULL on the CPU */
};

typedef void (*KernelFn)(const KernelCtx *ctx, const void *args);

/* clang-format off */
/* X(enum suffix, argument struct, function name) -- the one list from which enum and tables are made. */
#define KERNEL_LIST(X)                                        \
    X(GEMM,                 Gemm,               gemm)                 \
    X(COPY,                 Copy,               copy)                 \
    X(FILL,                 Fill,               fill)                 \
    X(ADD,                  Add,                add)                  \
    X(SCALE,                Scale,              scale)                \
    X(SUM_TREE,             SumTree,            sum_tree)             \
    X(BIAS_ADD,             BiasAdd,            bias_add)             \
    X(BIAS_GRAD,            BiasGrad,           bias_grad)            \
    X(EMBEDDING_FORWARD,    EmbeddingForward,   embedding_forward)    \
    X(EMBEDDING_BACKWARD,   EmbeddingBackward,  embedding_backward)   \
    X(RMSNORM_FORWARD,      RmsnormForward,     rmsnorm_forward)      \
    X(RMSNORM_BACKWARD,     RmsnormBackward,    rmsnorm_backward)     \
    X(RMSNORM_GAIN_GRAD,    RmsnormGainGrad,    rmsnorm_gain_grad)    \
    X(ROPE,                 Rope,               rope)                 \
    X(ATTENTION_FORWARD,    AttentionForward,   attention_forward)    \
    X(ATTENTION_BACKWARD,   AttentionBackward,  attention_backward)   \
    X(SWIGLU_FORWARD,       SwigluForward,      swiglu_forward)       \
    X(SWIGLU_BACKWARD,      SwigluBackward,     swiglu_backward)      \
    X(LOSS_MAX,             LossMax,            loss_max)             \
    X(LOSS_SELECT,          LossSelect,         loss_select)          \
    X(LOSS_SUM,             LossSum,            loss_sum)             \
    X(LOSS_GRAD,            LossGrad,           loss_grad)            \
    X(LANE_MEAN,            LaneMean,           lane_mean)            \
    X(ADAMW,                Adamw,              adamw)                \
    X(MUON_MOMENTUM,        MuonMomentum,       muon_momentum)        \
    X(MUON_APPLY,           MuonApply,          muon_apply)           \
    X(ABS_MAX,              AbsMax,             abs_max)              \
    X(SUM_SQUARES_ROWS,     SumSquaresRows,     sum_squares_rows)     \
    X(SUM_SQUARES_BLOCKS,   SumSquaresBlocks,   sum_squares_blocks)   \
    X(NS_SCALE_POW2,        NsScalePow2,        ns_scale_pow2)        \
    X(NS_NORMALIZE,         NsNormalize,        ns_normalize)         \
    X(NS_COMBINE,           NsCombine,          ns_combine)           \
    X(ADD_DIAGONAL,         AddDiagonal,        add_diagonal)         \
    X(ROUND_BF16,           RoundBf16,          round_bf16)           \
    X(PACK_BF16,            PackBf16,           pack_bf16)            \
    X(UNPACK_BF16,          UnpackBf16,         unpack_bf16)
/* clang-format on */

#define KERNEL_ENUM_(id, args, name) KERNEL_##id,
typedef enum KernelId { KERNEL_LIST(KERNEL_ENUM_) KERNEL_COUNT } KernelId;
#undef KERNEL_ENUM_

typedef struct KernelTable {
    const char *name; /* "avx512", "avx2", "generic", "cuda" */
    KernelFn fn[KERNEL_COUNT];
} KernelTable;

/* The CPU tables: the same sources compiled for three vector units; same bits. */
extern const KernelTable kernels_cpu_avx512, kernels_cpu_avx2, kernels_cpu_generic;
/* The best table this processor runs; the environment variable DMUON_ISA (avx512, avx2, generic) lowers it. NULL when
 * DMUON_ISA has another value or names a unit that this processor lacks. */
const KernelTable *kernels_cpu_select(void);

/* ---- matrix product ------------------------------------------------------------------------------------------- */

/* One product that enters a Gemm: op(a) [m,k] times op(b) [k,n]. */
typedef struct GemmPart {
    const float *a;                  /* trans_a ? [k,m] : [m,k], leading dimension lda (elements) */
    const float *b;                  /* trans_b ? [n,k] : [k,n], leading dimension ldb            */
    const uint16_t *a_bf16, *b_bf16; /* where a or b hold bf16 values: the same ones as 16 bits, laid out alike; NULL:
                                        not kept. Only products that take bf16 read them. */
    int64_t lda, ldb;
    int64_t k;       /* contracted elements that exist, 0 <= k <= nsegments*segment */
    int64_t segment; /* elements per segment; segment s is [s*segment, min((s+1)*segment, k)), possibly empty = +0 */
    int64_t stride_a, stride_b; /* elements from one product of a batch to the next */
} GemmPart;

typedef enum GemmShape { GEMM_FULL, GEMM_LOWER_MIRRORED } GemmShape;

/* What is known of the operands' magnitudes. A device that shortens operands (numerics.mode fast) takes more mantissa
 * and less exponent where it may; exact products do not look at it. */
typedef enum GemmRange {
    GEMM_RANGE_ANY,
    GEMM_RANGE_UNIT /* at most a few times 1, and what is far below 1 hardly counts: Newton-Schulz */
} GemmRange;

/* c[i,j] (+)= tree over segments s of ( (part0_s + part1_s) + part2_s ), part_s the chain over the part's segment s.
 *   nsegments = 1 and one part: a plain chain over k. In that case `segment` is ignored (= k).
 *   accumulate: c = c + value, one addition after everything else; else c = value.
 *   GEMM_LOWER_MIRRORED (m = n): only elements i >= j are defined by the formula; c[j,i] is a copy of c[i,j].
 *   c [m,n], leading dimension ldc. trans_a, trans_b hold for all parts. nsegments: a power of two, at most 64.
 *   batch (0 is 1): so many products, apart by the strides, each with the bits that it has alone. */
typedef struct Gemm {
    int64_t m, n;
    int nparts; /* 1..3 */
    int nsegments;
    GemmShape shape;
    GemmRange range;
    bool trans_a, trans_b, accumulate;
    GemmPart part[3]; /* behind all padding: gcc 12 clears what lies behind an array in the wrong place */
    float *c;
    int64_t ldc;
    int64_t batch, stride_c;
} Gemm;

/* ---- moving and adding ------------------------------------------------------------------------------------------ */

/* dst[r,c] = src[r,c], rows x cols with strides in elements. */
typedef struct Copy {
    float *dst;
    const float *src;
    int64_t rows, cols, dst_stride, src_stride;
} Copy;

/* x[0..n) = value. */
typedef struct Fill {
    float *x;
    int64_t n;
    float value;
} Fill;

/* dst = a + b, [n]. May alias. `rounded`: the sum is stored as the nearest bf16. */
typedef struct Add {
    float *dst;
    const float *a, *b;
    int64_t n;
    bool rounded;
} Add;

/* x = x * factor, [n]. */
typedef struct Scale {
    float *x;
    int64_t n;
    float factor;
} Scale;

/* dst[i] = tree over r of src[r][i]; src[r] = src + r*stride, r < count; dst may alias src[0]. 1 <= count <= 1024. */
typedef struct SumTree {
    float *dst;
    const float *src;
    int64_t n, stride;
    int count;
} SumTree;

/* ---- layers ------------------------------------------------------------------------------------------------------ */

/* How an activation is stored: as computed, or with numerics.mode fast as the nearest bf16, see below. */
typedef struct StoreBf16 {
    uint16_t *bits; /* with `rounded`: its 16 bits go here too, at the indices of the f32 result; NULL: nowhere */
    bool rounded;
} StoreBf16;

/* y[r,:] = y[r,:] + b[:]   y [rows, cols]  b [cols] */
typedef struct BiasAdd {
    float *y;
    const float *b;
    int64_t rows, cols;
} BiasAdd;

/* db[c] = chain of adds over ascending r of dy[r,c], starting at +0. */
typedef struct BiasGrad {
    float *db;
    const float *dy;
    int64_t rows, cols;
} BiasGrad;

/* y[i,:] = table[ids[i] - first_row, :] for first_row <= ids[i] < first_row + nrows; other rows of y are left alone.
 * ids [n]  table [nrows, d]  y [n, d] */
typedef struct EmbeddingForward {
    float *y;
    const float *table;
    const int32_t *ids;
    int64_t n, d, first_row, nrows;
} EmbeddingForward;

/* e[v,:] = chain of adds from +0 over ascending i with ids[i] - first_row = v of dy[i,:];
 * dtable[v,:] = accumulate ? dtable[v,:] + e[v,:] : e[v,:], for every row, one addition also where e is +0. */
typedef struct EmbeddingBackward {
    float *dtable;   /* [nrows, d] */
    const float *dy; /* [n, d] */
    const int32_t *ids;
    int64_t n, d, first_row, nrows;
    bool accumulate;
} EmbeddingBackward;

/* rstd[r] = 1/sqrt(lane_sum(x*x)/d + eps); y = (x*rstd)*w.  x, y [rows, d]  w [d]  rstd [rows]. y may alias x. */
typedef struct RmsnormForward {
    float *y, *rstd;
    const float *x, *w;
    int64_t rows, d;
    StoreBf16 store; /* of y */
    float eps;
} RmsnormForward;

/* g = dy*w; xh = x*rstd; c = lane_sum(g*xh)/d (fma lanes); v = rstd*(g - xh*c);
 * dx = residual ? residual + v : v.   dx may alias dy or residual. */
typedef struct RmsnormBackward {
    float *dx;
    const float *dy, *x, *w, *rstd, *residual; /* residual NULL: none */
    int64_t rows, d;
    StoreBf16 store; /* of dx */
} RmsnormBackward;

/* The gain's gradient. x, dy [tokens, heads, d], rstd [tokens, heads], dw [d].
 * The heads are cut into `runs` equal runs; a run is one chain of fma(dy, xh, .), heads outer, tokens inner, xh =
 * x*rstd; dw = tree over the runs. A norm over the width has heads = runs = 1. runs <= 256. */
typedef struct RmsnormGainGrad {
    float *dw;
    const float *dy, *x, *rstd;
    int64_t tokens, heads, d;
    int runs;
} RmsnormGainGrad;

/* Rotate-half RoPE in place; x [n, heads, d] with row stride `stride` elements between tokens; token i has position i
 * mod T. x0 = x[j], x1 = x[j + d/2]: y0 = fma(-x1, s, x0*c), y1 = fma(x0, s, x1*c); inverse: the same with -s. cos, sin
 * [T, d/2]. */
typedef struct Rope {
    float *x;
    const float *cos, *sin;
    int64_t n, heads, d, stride, T;
    StoreBf16 store; /* of x */
    bool inverse;
} Rope;

/* Causal grouped-query attention; query head h uses kv head h / (H/K).
 * q, o [B,T,H,D], k, v [B,T,K,D], each token a row of q_stride / kv_stride / o_stride elements. max, sum [B,H,T].
 * Row i: s_j = chain(q_i, k_j)*scale for j <= i; m = max s; e_j = exp(s_j - m); l = lane_sum(e); p_j = e_j*(1/l);
 * o = one chain over ascending j <= i of p_j*v_j per element. The order inside scores: chain over D, then *scale.
 * No T x T buffer: at most one block of rows at a time. */
typedef struct AttentionForward {
    float *o, *max, *sum;
    const float *q, *k, *v;
    int64_t B, T, H, K, D, q_stride, kv_stride, o_stride;
    float scale;
} AttentionForward;

/* p recomputed from max and sum: e_j*(1/l). delta_i = lane_sum(do*o) over D (fma lanes); ds_ij = p_ij*(chain(do_i, v_j)
 * - delta_i). dq_i = (chain over ascending j <= i of ds_ij*k_j)*scale; per query head dk_j = (chain over ascending i >=
 * j of ds_ij*q_i)*scale, dv_j = chain over ascending i >= j of p_ij*do_i; heads of a group add up ((h0+h1)+h2)... dq
 * has q's layout (q_stride), dk, dv have k's, d_o has o's. */
typedef struct AttentionBackward {
    float *dq, *dk, *dv;
    const float *d_o, *q, *k, *v, *o, *max, *sum;
    int64_t B, T, H, K, D, q_stride, kv_stride, o_stride;
    float scale;
} AttentionBackward;

/* a = (z/(1+exp(-z)))*u.   a, z, u [n] (z the gate). a may alias. */
typedef struct SwigluForward {
    float *a;
    const float *z, *u;
    int64_t n;
    StoreBf16 store; /* of a */
} SwigluForward;

/* s = 1/(1+exp(-z)); du = da*(z*s); dz = (da*u)*fma(z, s*(1-s), s).   dz may alias z, du may alias u. */
typedef struct SwigluBackward {
    float *dz, *du;
    const float *da, *z, *u;
    int64_t n;
    StoreBf16 store_dz, store_du; /* both rounded, or none */
} SwigluBackward;

/* Cross-entropy over a vocabulary that may be split by columns. z [n, ld], real columns [0, cols) stand for the
 * vocabulary ids first_col + c. All three run per token (row). LOSS_MAX: max[i] = maximum of z[i, 0..cols); if
 * first_col <= target[i] < first_col + cols, also z_t[i] = z[i, target]; else z_t[i] is left alone. */
typedef struct LossMax {
    float *max, *z_t;
    const float *z;
    const int32_t *target;
    int64_t n, ld, cols, first_col;
} LossMax;

/* Completes a cut vocabulary from every rank's part: max[i] = maximum over r of parts[r][0][i]; z_t[i] = parts[r][1][i]
 * of the rank r = target[i] / rank_cols that holds the target, selected, never added.   parts [ranks][2][n] */
typedef struct LossSelect {
    float *max, *z_t;
    const float *parts;
    const int32_t *target;
    int64_t n, rank_cols;
    int ranks;
} LossSelect;

/* sum[i] = tree over the nsegments local segments (of `segment` columns, cut off at cols, possibly empty) of the lane
 * sums of exp(z - max). */
typedef struct LossSum {
    float *sum;
    const float *z, *max;
    int64_t n, ld, cols, segment;
    int nsegments;
} LossSum;

/* loss[i] = log(sum) - (z_t - max); dz (in place over z when dz = z; NULL: loss only) = (exp(z - max)*(1/sum) - [v =
 * t])*factor, the subtraction only at the target; columns [cols, ld) of dz become +0. loss may be NULL. */
typedef struct LossGrad {
    float *loss, *dz;
    const float *z, *max, *sum, *z_t;
    const int32_t *target;
    int64_t n, ld, cols, first_col;
    float factor;
} LossGrad;

/* out[r] = lane_sum(x[r, 0..n))*factor.   x [rows, n]. factor 1 leaves the sum as it is. */
typedef struct LaneMean {
    float *out;
    const float *x;
    int64_t rows, n;
    float factor;
} LaneMean;

/* ---- optimizer ----------------------------------------------------------------------------------------------------
 */

/* g' = clipped ? g*grad_factor : g; m = fma(b1, m, one_minus_b1*g'); v = fma(b2, v, one_minus_b2*(g'*g')); w = w -
 * lr_wd*w (also when lr_wd is 0); w = w - (lr*(m*c1))/(sqrt(v*c2) + eps).  All [n] f32; scalars were rounded once from
 * binary64. */
typedef struct Adamw {
    float *w, *m, *v;
    const float *g;
    int64_t n;
    bool clipped;
    float grad_factor, b1, one_minus_b1, b2, one_minus_b2, c1, c2, lr, lr_wd, eps;
} Adamw;

/* g' = clipped ? g*grad_factor : g; M = fma(mu, M, g'); out = nesterov ? fma(mu, M, g') : M.   [n]. out may alias g. */
typedef struct MuonMomentum {
    float *out, *momentum;
    const float *g;
    int64_t n;
    bool clipped, nesterov;
    float grad_factor, mu;
} MuonMomentum;

/* w = w - lr_wd*w (also when lr_wd is 0); w = w - lr_s*update.   [n] */
typedef struct MuonApply {
    float *w;
    const float *update;
    int64_t n;
    float lr_wd, lr_s;
} MuonApply;

/* out[0] = max |x|, over nothing 0. A NaN anywhere gives NaN. */
typedef struct AbsMax {
    float *out;
    const float *x;
    int64_t n;
} AbsMax;

/* out[s] (binary64) for s < nsegments = tree over rows of binary64 lane sums of squares (fma(x, x, lane), x widened).
 * x [rows, cols]; dim = 0: segment s is rows [s*rows/nsegments, ...); dim = 1: segment s is columns [s*cols/nsegments,
 * ...) of every row, lanes counted from the start of the piece. */
typedef struct SumSquaresRows {
    double *out;
    const float *x;
    int64_t rows, cols;
    int dim, nsegments;
} SumSquaresRows;

/* out[b] (binary64) = lane sum of squares of block b. Block b starts at x + 1024*b and has size[b] <= 1024 elements
 * that exist (a short block's padding does not enter). */
typedef struct SumSquaresBlocks {
    double *out;
    const float *x;
    const int32_t *size;
    int64_t nblocks;
} SumSquaresBlocks;

/* y = x scaled by the exact power of two 2^-e that brings *abs_max to [1,2): one rounding per element (subnormal
 * results cannot occur for the maximum but may for others); where 2^-e is not a normal binary32 two multiplications by
 * normal powers of two, exact one first. *abs_max = 0: y = +0.   y may alias x. */
typedef struct NsScalePow2 {
    float *y;
    const float *x, *abs_max;
    int64_t n;
} NsScalePow2;

/* norm = binary32(sqrt(tree over sumsq[0..nsegments))); y = x/norm, element by element; norm = 0: y = +0. y may alias
 * x. */
typedef struct NsNormalize {
    float *y;
    const float *x;
    const double *sumsq;
    int64_t n;
    int nsegments;
} NsNormalize;

/* out = scale_y ? fma(c, x, b*y) : fma(c, x, y), [n]. May alias. */
typedef struct NsCombine {
    float *out;
    const float *x, *y;
    int64_t n;
    bool scale_y;
    float c, b;
} NsCombine;

/* out = x, with x[i,i] + a on the diagonal; [m,m]. out may alias x. */
typedef struct AddDiagonal {
    float *out;
    const float *x;
    int64_t m;
    float a;
} AddDiagonal;

/* ---- bf16, for numerics.mode fast ------------------------------------------------------------------------------- */

/* bf16(x): the nearest bf16, ties to even, beyond the largest one infinity; subnormals are rounded like any number, a
 * NaN stays a NaN (quiet, its sign and the upper part of its payload kept). */

/* y = f32(bf16(x)) and, unless NULL, bits = bf16(x), [n].   y may alias x. */
typedef struct RoundBf16 {
    float *y;
    uint16_t *bits;
    const float *x;
    int64_t n;
} RoundBf16;

/* y = bf16(x), [n], as the 16 bits that travel. */
typedef struct PackBf16 {
    uint16_t *y;
    const float *x;
    int64_t n;
} PackBf16;

/* y = f32(x), [n], exact. */
typedef struct UnpackBf16 {
    float *y;
    const uint16_t *x;
    int64_t n;
} UnpackBf16;

#endif
