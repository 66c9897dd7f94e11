/* Newton-Schulz orthogonalisation: plans, and the sequence of kernels that numerics fixes (README, "Numerics").
 *
 * A matrix with out > in is never transposed in memory: its Gram product reads columns and the factors are applied from
 * the right with Q transposed. Every element is the same chain over the same products, so the bits are those of the
 * transposed computation. */
#include "optim/newton_schulz.h"

#include <string.h>

#include "base/fatal.h"
#include "mesh/extent.h"
#include "tensor/ops.h"

#define ALIGN_NELEM (ARENA_ALIGN / (int64_t)sizeof(float))
#define MAX_SEGMENTS 64

/* Scratch: abs_max (one float) in the first line, then MAX_SEGMENTS doubles, then the largest magnitudes of
 * MAX_SEGMENTS tp ranks, then matrices, each kind 64-byte aligned; those of a batch stand side by side, so that what
 * is done element by element is done to all of them as to one array. */
#define MAXIMA_OFFSET (NS_SUMSQ_OFFSET + MAX_SEGMENTS * 2)
#define HEAD_NELEM (MAXIMA_OFFSET + MAX_SEGMENTS)
#define GRAM_SQUARES 4   /* R, Z, Q, P [m,m]; then Y [out,in]; of a batch also X [out,in] */
#define DIRECT_SQUARES 2 /* A, B [m,m]; then Y, X likewise                                */

/* As printed in the papers. Polar Express is made safe by dividing the argument of its polynomials by 1.05. */
static const double polar_express[5][3] = {{8.28721201814563, -23.595886519098837, 17.300387312530933},
                                           {4.107059111542203, -2.9478499167379106, 0.5448431082926601},
                                           {3.9486908534822946, -2.908902115962949, 0.5518191394370137},
                                           {3.3184196573706015, -2.488488024314874, 0.51004894012372},
                                           {2.300652019954817, -1.6689039845747493, 0.4188073119525673}};
static const double you[5][3] = {{4.0848, -6.8946, 2.927},
                                 {3.9505, -6.3029, 2.6377},
                                 {3.7418, -5.5913, 2.3037},
                                 {2.8769, -3.1427, 1.2046},
                                 {2.8366, -3.0525, 1.2012}};
static const double jordan[1][3] = {{3.4445, -4.7750, 2.0315}};

static int lesser(int a, int b) {
    return a < b ? a : b;
}

void ns_coefficients(const NsConfig *config, int step, double abc[3]) {
    const double safety = 1.05;
    switch (config->coefficients) {
    case NS_POLAR_EXPRESS:
        memcpy(abc, polar_express[lesser(step, 4)], 3 * sizeof *abc);
        abc[0] /= safety;
        abc[1] /= safety * safety * safety;
        abc[2] /= safety * safety * safety * safety * safety;
        break;
    case NS_YOU:
        memcpy(abc, you[lesser(step, 4)], 3 * sizeof *abc);
        break;
    case NS_JORDAN:
        memcpy(abc, jordan[0], 3 * sizeof *abc);
        break;
    case NS_LIST:
        DM_ASSERT(config->list_count > 0);
        memcpy(abc, config->list[lesser(step, config->list_count - 1)], 3 * sizeof *abc);
        break;
    }
}

static bool last_or_before_restart(const NsPlan *plan, int step) {
    return step + 1 == plan->steps || plan->restart[step + 1];
}

/* A product of which only the lower triangle is computed counts one operation per multiply-add. */
static double gram_flops(const NsPlan *plan) {
    const double m = (double)plan->m, n = (double)plan->n;
    double flops = m * m * n + 2 * m * m * n; /* first XX^T, last QX */
    for (int i = 0; i < plan->steps; i++) {
        if (plan->restart[i])
            flops += m * m * n + 2 * m * m * n;
        flops += m * m * m; /* RR */
        if (i > 0 && !plan->restart[i])
            flops += 2 * m * m * m; /* QZ */
        if (!last_or_before_restart(plan, i))
            flops += 2 * m * m * m; /* RZ, ZT */
    }
    return flops;
}

static double direct_flops(const NsPlan *plan) {
    const double m = (double)plan->m, n = (double)plan->n;
    return plan->steps * (m * m * n + m * m * m + 2 * m * m * n); /* XX^T, AA, BX */
}

double ns_flops(const NsPlan *plan) {
    return plan->gram ? gram_flops(plan) : direct_flops(plan);
}

NsPlan ns_plan(const NsConfig *config, int64_t out, int64_t in, int tp_dim, int segments) {
    DM_ASSERT(config->steps >= 1 && config->steps <= CONFIG_NS_MAX);
    DM_ASSERT(out >= 0 && in >= 0 && tp_dim >= -1 && tp_dim <= 1);
    DM_ASSERT(segments >= 1 && segments <= MAX_SEGMENTS);
    NsPlan plan = {.steps = config->steps, .out = out, .in = in, .tp_dim = tp_dim, .segments = segments};
    plan.transposed = out > in;
    plan.m = plan.transposed ? in : out;
    plan.n = plan.transposed ? out : in;
    plan.gram_segmented = tp_dim == (plan.transposed ? 0 : 1);
    plan.segment = tp_dim < 0 ? out : ceil_div(tp_dim == 0 ? out : in, segments);
    for (int i = 0; i < config->steps; i++)
        ns_coefficients(config, i, plan.coef[i]);
    for (int i = 0; i < config->restart_count; i++) {
        const int at = config->restarts[i];
        if (at > 0 && at < config->steps) /* before the first iteration there is no factor to apply */
            plan.restart[at] = true;
    }
    plan.gram =
        config->algorithm == NS_GRAM || (config->algorithm == NS_AUTO && gram_flops(&plan) < direct_flops(&plan));
    return plan;
}

static int64_t aligned(int64_t nelem) {
    return (nelem + ALIGN_NELEM - 1) / ALIGN_NELEM * ALIGN_NELEM;
}

bool ns_same_shape(const NsPlan *a, const NsPlan *b) {
    return a->out == b->out && a->in == b->in;
}

static int squares_of(const NsPlan *plan) {
    return plan->gram ? GRAM_SQUARES : DIRECT_SQUARES;
}

int64_t ns_scratch_nelem(const NsPlan *plan, int count) {
    const int whole = count > 1 ? 2 : 1;
    return HEAD_NELEM + squares_of(plan) * aligned(count * plan->m * plan->m) +
           whole * aligned(count * plan->m * plan->n);
}

/* One run: the plan of what this rank holds, and how it meets the other slices. */
typedef struct NsRun {
    const NsPlan *plan; /* of the shape; out, in, n and segments of the slice */
    const NsBatch *batch;
    const NsSlice *slice; /* NULL: the matrices are whole */
    Stream *stream;
    float *scratch;
} NsRun;

static float *scratch_square(const NsRun *run, int index) {
    return run->scratch + HEAD_NELEM + index * aligned(run->batch->count * run->plan->m * run->plan->m);
}

static int64_t whole_nelem(const NsRun *run) {
    return run->batch->count * run->plan->m * run->plan->n;
}

static float *scratch_y(const NsRun *run) {
    return scratch_square(run, squares_of(run->plan));
}

/* Where the matrices are iterated on. */
static float *place_x(const NsRun *run) {
    return run->batch->count == 1 ? run->batch->x[0] : scratch_y(run) + aligned(whole_nelem(run));
}

static CommTag slice_tag(const NsSlice *slice, int64_t nbytes) {
    return (CommTag){.what = slice->what, .unit = slice->unit, .payload = slice->counted ? nbytes : 0};
}

/* scratch[0] = the largest magnitude of a matrix. */
static void largest_magnitude(const NsRun *run, const float *x) {
    const int64_t nelem = run->plan->out * run->plan->in;
    if (run->slice == NULL) {
        ops_abs_max(run->stream, (AbsMax){.out = run->scratch, .x = x, .n = nelem});
        return;
    }
    const int size = comm_size(run->slice->tp);
    float *all = run->scratch + MAXIMA_OFFSET, *mine = all + comm_rank(run->slice->tp);
    ops_abs_max(run->stream, (AbsMax){.out = mine, .x = x, .n = nelem});
    comm_all_gather(run->slice->tp, run->stream, mine, all, 1, DTYPE_F32,
                    slice_tag(run->slice, size * (int64_t)sizeof *all));
    ops_abs_max(run->stream, (AbsMax){.out = run->scratch, .x = all, .n = size});
}

/* Sums of squares of all segments of a matrix; gives their number. */
static int segment_sums(const NsRun *run, const NsPlan *plan, const float *x) {
    const int nsegments = plan->tp_dim < 0 ? 1 : plan->segments;
    double *all = (double *)(void *)(run->scratch + NS_SUMSQ_OFFSET);
    double *mine = all + (run->slice ? comm_rank(run->slice->tp) * nsegments : 0);
    ops_sum_squares_rows(run->stream,
                         (SumSquaresRows){.out = mine,
                                          .x = x,
                                          .rows = plan->tp_dim == 0 ? nsegments * plan->segment : plan->out,
                                          .cols = plan->in,
                                          .dim = plan->tp_dim == 1 ? 1 : 0,
                                          .nsegments = nsegments});
    if (run->slice == NULL)
        return nsegments;
    const int total = nsegments * comm_size(run->slice->tp);
    comm_all_gather(run->slice->tp, run->stream, mine, all, nsegments, DTYPE_F64,
                    slice_tag(run->slice, total * (int64_t)sizeof *all));
    return total;
}

/* y = x scaled by an exact power of two, where x is, then divided by its Frobenius norm. The sum runs over the stored
 * orientation. */
static void normalise(const NsRun *run, const NsPlan *plan, float *x, float *y) {
    const int64_t nelem = plan->out * plan->in;
    largest_magnitude(run, x);
    ops_ns_scale_pow2(run->stream, (NsScalePow2){.y = x, .x = x, .abs_max = run->scratch, .n = nelem});
    const int nsegments = segment_sums(run, plan, x);
    const double *sumsq = (const double *)(const void *)(run->scratch + NS_SUMSQ_OFFSET);
    ops_ns_normalize(run->stream, (NsNormalize){.y = y, .x = x, .sumsq = sumsq, .n = nelem, .nsegments = nsegments});
}

static bool iterates(const NsRun *run) {
    return run->slice == NULL || comm_rank(run->slice->tp) == run->slice->owner;
}

/* r = XX^T [m,m] of `count` neighbours in a batch, segmented where the contracted dimension is the one that tp cuts. */
static void gram_of(const NsRun *run, const NsPlan *plan, const float *x, float *r, int count) {
    const int nsegments = plan->gram_segmented ? plan->segments : 1;
    const int64_t segment = plan->gram_segmented ? plan->segment : plan->n;
    const int64_t whole = plan->m * plan->n;
    ops_gemm(run->stream, (Gemm){.m = plan->m,
                                 .n = plan->m,
                                 .nparts = 1,
                                 .part[0] = {.a = x,
                                             .b = x,
                                             .lda = plan->in,
                                             .ldb = plan->in,
                                             .k = plan->n,
                                             .segment = segment,
                                             .stride_a = whole,
                                             .stride_b = whole},
                                 .nsegments = nsegments,
                                 .trans_a = plan->transposed,
                                 .trans_b = !plan->transposed,
                                 .shape = GEMM_LOWER_MIRRORED,
                                 .range = GEMM_RANGE_UNIT,
                                 .c = r,
                                 .ldc = plan->m,
                                 .batch = count,
                                 .stride_c = plan->m * plan->m});
}

/* All of a batch: one product for each run of matrices that are cut alike. Of slices the tree goes on to the owner. */
static void gram_product(const NsRun *run, const float *x, float *r) {
    const NsPlan *const *plan = run->batch->plan;
    const int64_t square = run->plan->m * run->plan->m;
    for (int first = 0, end = 0; first < run->batch->count; first = end) {
        while (end < run->batch->count && plan[end]->gram_segmented == plan[first]->gram_segmented)
            end++;
        gram_of(run, plan[first], x + first * run->plan->m * run->plan->n, r + first * square, end - first);
    }
    if (run->slice != NULL)
        comm_reduce(run->slice->tp, run->stream, r, r, square, DTYPE_F32, run->slice->owner,
                    slice_tag(run->slice, square * (int64_t)sizeof *r));
}

/* The owner's factor [m,m] goes to every slice. */
static void share_factor(const NsRun *run, float *q) {
    const int64_t square = run->plan->m * run->plan->m;
    if (run->slice != NULL)
        comm_broadcast(run->slice->tp, run->stream, q, square, DTYPE_F32, run->slice->owner,
                       slice_tag(run->slice, square * (int64_t)sizeof *q));
}

/* c = ab, all [m,m]. */
static void square_product(const NsRun *run, const float *a, const float *b, float *c, GemmShape shape) {
    const int64_t m = run->plan->m, square = m * m;
    ops_gemm(
        run->stream,
        (Gemm){.m = m,
               .n = m,
               .nparts = 1,
               .part[0] =
                   {.a = a, .b = b, .lda = m, .ldb = m, .k = m, .segment = m, .stride_a = square, .stride_b = square},
               .nsegments = 1,
               .shape = shape,
               .range = GEMM_RANGE_UNIT,
               .c = c,
               .ldc = m,
               .batch = run->batch->count,
               .stride_c = square});
}

/* y = qX; on a stored transposed matrix y = x q^T. */
static void apply_factor(const NsRun *run, const float *q, const float *x, float *y) {
    const NsPlan *plan = run->plan;
    const int64_t m = plan->m, square = m * m, whole = plan->m * plan->n;
    const GemmPart left = {
        .a = q, .b = x, .lda = m, .ldb = plan->in, .k = m, .segment = m, .stride_a = square, .stride_b = whole};
    const GemmPart right = {
        .a = x, .b = q, .lda = plan->in, .ldb = m, .k = m, .segment = m, .stride_a = whole, .stride_b = square};
    ops_gemm(run->stream, (Gemm){.m = plan->out,
                                 .n = plan->in,
                                 .nparts = 1,
                                 .part[0] = plan->transposed ? right : left,
                                 .nsegments = 1,
                                 .trans_b = plan->transposed,
                                 .range = GEMM_RANGE_UNIT,
                                 .c = y,
                                 .ldc = plan->in,
                                 .batch = run->batch->count,
                                 .stride_c = whole});
}

/* out = fma(c, x, y). */
static void combine(Stream *stream, float *out, double c, const float *x, const float *y, int64_t n) {
    ops_ns_combine(stream, (NsCombine){.out = out, .x = x, .y = y, .n = n, .c = (float)c});
}

/* out = fma(c, x, b*y). */
static void combine_scaled(Stream *stream, float *out, const double coef[3], const float *x, const float *y,
                           int64_t n) {
    ops_ns_combine(
        stream,
        (NsCombine){.out = out, .x = x, .y = y, .n = n, .scale_y = true, .c = (float)coef[2], .b = (float)coef[1]});
}

/* q = z + aI. */
static void add_diagonal(const NsRun *run, float *q, const float *z, double a) {
    const int64_t m = run->plan->m;
    for (int i = 0; i < run->batch->count; i++)
        ops_add_diagonal(run->stream, (AddDiagonal){.out = q + i * m * m, .x = z + i * m * m, .m = m, .a = (float)a});
}

/* One iteration on the Gram matrix r and the factor q; z and p are free. `fresh`: q starts again. */
static void gram_step(const NsRun *run, int step, bool fresh) {
    float *r = scratch_square(run, 0), *z = scratch_square(run, 1);
    float *q = scratch_square(run, 2), *p = scratch_square(run, 3);
    const double *coef = run->plan->coef[step];
    const int64_t squares = run->batch->count * run->plan->m * run->plan->m;
    square_product(run, r, r, z, GEMM_LOWER_MIRRORED);
    combine_scaled(run->stream, z, coef, z, r, squares); /* Z = fma(c, RR, b*R) */
    if (fresh) {
        add_diagonal(run, q, z, coef[0]);
    } else {
        square_product(run, q, z, p, GEMM_FULL);
        combine(run->stream, q, coef[0], q, p, squares); /* Q = fma(a, Q, QZ) */
    }
    if (last_or_before_restart(run->plan, step))
        return;
    square_product(run, r, z, p, GEMM_LOWER_MIRRORED);
    combine(run->stream, p, coef[0], r, p, squares); /* T = fma(a, R, RZ) in p; r is free from here */
    square_product(run, z, p, r, GEMM_LOWER_MIRRORED);
    combine(run->stream, r, coef[0], p, r, squares); /* R = fma(a, T, ZT) */
}

/* Gives where the result is. */
static const float *run_gram(const NsRun *run) {
    const NsPlan *plan = run->plan;
    float *r = scratch_square(run, 0), *q = scratch_square(run, 2);
    float *from = place_x(run), *to = scratch_y(run);
    for (int i = 0; i <= plan->steps; i++) {
        if (i == plan->steps || plan->restart[i]) {
            share_factor(run, q);
            apply_factor(run, q, from, to);
            float *swap = from;
            from = to;
            to = swap;
        }
        if (i == plan->steps)
            break;
        const bool fresh = i == 0 || plan->restart[i];
        if (fresh)
            gram_product(run, from, r);
        if (iterates(run))
            gram_step(run, i, fresh);
    }
    return from;
}

static const float *run_direct(const NsRun *run) {
    const NsPlan *plan = run->plan;
    float *a = scratch_square(run, 0), *b = scratch_square(run, 1);
    float *x = place_x(run), *y = scratch_y(run);
    for (int i = 0; i < plan->steps; i++) {
        gram_product(run, x, a);
        if (iterates(run)) {
            square_product(run, a, a, b, GEMM_LOWER_MIRRORED);
            combine_scaled(run->stream, b, plan->coef[i], b, a,
                           run->batch->count * plan->m * plan->m); /* B = fma(c, AA, b*A) */
        }
        share_factor(run, b);
        apply_factor(run, b, x, y);
        combine(run->stream, x, plan->coef[i][0], x, y, whole_nelem(run)); /* X = fma(a, X, BX) */
    }
    return x;
}

static void run_plan(const NsRun *run) {
    const NsPlan *plan = run->plan;
    const NsBatch *batch = run->batch;
    for (int i = 0; i < batch->count; i++)
        normalise(run, batch->plan[i], batch->x[i], place_x(run) + i * plan->out * plan->in);
    const float *result = plan->gram ? run_gram(run) : run_direct(run);
    for (int i = 0; i < batch->count; i++) {
        const float *from = result + i * plan->out * plan->in;
        if (from != batch->x[i])
            ops_copy(run->stream, (Copy){.dst = batch->x[i],
                                         .src = from,
                                         .rows = plan->out,
                                         .cols = plan->in,
                                         .dst_stride = plan->in,
                                         .src_stride = plan->in});
    }
}

void ns_run(const NsBatch *batch, Stream *stream, float *scratch) {
    DM_ASSERT(batch->count >= 1 && batch->count <= NS_BATCH_MAX);
    for (int i = 1; i < batch->count; i++)
        DM_ASSERT(ns_same_shape(batch->plan[i], batch->plan[0]));
    if (batch->plan[0]->m > 0)
        run_plan(&(NsRun){.plan = batch->plan[0], .batch = batch, .stream = stream, .scratch = scratch});
}

int64_t ns_slice_nelem(const NsPlan *plan, int tp_size) {
    const int64_t cut = plan->segments / tp_size * plan->segment;
    return cut * (plan->tp_dim == 0 ? plan->in : plan->out);
}

/* The plan of one rank's slice. */
static NsPlan slice_plan(const NsPlan *plan, int tp_size, int tp_rank) {
    NsPlan local = *plan;
    DM_ASSERT(plan->gram_segmented && plan->segments % tp_size == 0);
    local.segments /= tp_size;
    const int64_t cut = local.segments * plan->segment;
    local.n = extent_overlap((Extent){tp_rank * cut, cut}, (Extent){0, plan->n}).count;
    *(plan->tp_dim == 0 ? &local.out : &local.in) = local.n;
    return local;
}

void ns_run_slice(const NsPlan *plan, const NsSlice *slice, Stream *stream, float *x, float *scratch) {
    const NsPlan local = slice_plan(plan, comm_size(slice->tp), comm_rank(slice->tp)), *only = &local;
    const NsBatch one = {.count = 1, .plan = &only, .x = &x};
    run_plan(&(NsRun){.plan = &local, .batch = &one, .slice = slice, .stream = stream, .scratch = scratch});
}

/* ---- the products, beforehand ---- */

static void add_product(ProductList *list, ProductShape shape) {
    shape.range = GEMM_RANGE_UNIT;
    products_add(list, shape);
}

/* Those with X, of a matrix or a slice of it. */
static void add_outer(const NsPlan *plan, ProductList *list) {
    const int64_t m = plan->m;
    add_product(list, (ProductShape){.m = m,
                                     .n = m,
                                     .k = plan->n,
                                     .trans_a = plan->transposed,
                                     .trans_b = !plan->transposed,
                                     .shape = GEMM_LOWER_MIRRORED});
    add_product(list, (ProductShape){.m = plan->out, .n = plan->in, .k = m, .trans_b = plan->transposed});
}

void ns_products(const NsPlan *plan, int tp_size, ProductList *list) {
    const int64_t m = plan->m;
    bool goes_on = false; /* a factor is multiplied by the next one */
    for (int i = 1; i < plan->steps; i++)
        goes_on = goes_on || !plan->restart[i];
    for (int rank = 0; rank < tp_size; rank++) {
        const NsPlan local = tp_size > 1 ? slice_plan(plan, tp_size, rank) : *plan;
        add_outer(&local, list);
    }
    add_product(list, (ProductShape){.m = m, .n = m, .k = m, .shape = GEMM_LOWER_MIRRORED});
    if (plan->gram && goes_on)
        add_product(list, (ProductShape){.m = m, .n = m, .k = m});
}
