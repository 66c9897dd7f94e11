/* Newton-Schulz orthogonalisation of whole matrices, one or several of a shape at a time (Muon; coefficients of the
 * Polar Express paper, You, and Jordan). */
#ifndef DMUON_OPTIM_NEWTON_SCHULZ_H
#define DMUON_OPTIM_NEWTON_SCHULZ_H

#include "base/arena.h"
#include "comm/comm.h"
#include "config/config.h"
#include "device/products.h"

#define NS_SUMSQ_OFFSET 16 /* floats */
#define NS_BATCH_MAX 16    /* matrices */

typedef struct NsPlan {
    bool gram; /* the variant for this shape */
    int steps;
    double coef[CONFIG_NS_MAX][3]; /* a, b, c of each step */
    bool restart[CONFIG_NS_MAX];   /* gram: restart before iteration i */
    int64_t out, in;               /* the stored matrix */
    int64_t m, n;                  /* oriented: m <= n  */
    bool transposed;               /* out > in          */
    int tp_dim, segments;          /* of the stored matrix: sums of squares; tp_dim -1 = one segment */
    int64_t segment;     /* elements of tp_dim in a segment, rounded up: a vocabulary's last ones are short or empty */
    bool gram_segmented; /* XX^T is segmented: tp_dim is the contracted dim (dim 1 if out <= in, else dim 0) */
} NsPlan;

/* Matrices of one shape that are run together: each product is one call for all of them. Every matrix has the bits that
 * it has alone. */
typedef struct NsBatch {
    int count;                 /* 1..NS_BATCH_MAX */
    const NsPlan *const *plan; /* [count] of one shape and configuration; tp may cut the matrices differently */
    float *const *x;           /* [count] anywhere, [out, in] each */
} NsBatch;

/* A matrix that stays in the slices of its tp ranks (README, "Distributed Gram"): its cut runs along the contracted
 * dimension, plan.gram_segmented. Every rank brings its slice; Gram partials are reduced to `owner`, which iterates and
 * broadcasts the factor. Bits are those of the whole matrix. */
typedef struct NsSlice {
    Comm *tp;
    int owner;        /* rank of tp                         */
    const char *what; /* name of the matrix, for the tags   */
    int unit;
    bool counted; /* the bytes count (inside a step)    */
} NsSlice;

/* Depends on the shape and the configuration alone. */
NsPlan ns_plan(const NsConfig *config, int64_t out, int64_t in, int tp_dim, int segments);
/* Effective coefficients of step i (the last repeats). */
void ns_coefficients(const NsConfig *config, int step, double abc[3]);
/* Operation counts, 2 per multiply-add: gram 6m^2n + 17m^3 for 5 steps and one restart, direct 15m^2n + 5m^3; the real
 * count of the plan. */
double ns_flops(const NsPlan *plan);
/* May a matrix of one plan stand in a batch with one of the other? */
bool ns_same_shape(const NsPlan *a, const NsPlan *b);
/* Floats of scratch that ns_run needs for `count` matrices; for one also enough for ns_run_slice. A single matrix is
 * iterated on where it is, a batch in scratch. */
int64_t ns_scratch_nelem(const NsPlan *plan, int count);
/* Each x [out, in] is overwritten by its orthogonal factor's approximation; where segments do not divide the rows, rows
 * of zeros follow up to segments*segment. scratch: ns_scratch_nelem floats, 64-byte aligned. Queued on `stream`
 * (compute). NS(0) = 0. Afterwards scratch[0] is still the largest magnitude of the last matrix and the binary64 at
 * scratch + NS_SUMSQ_OFFSET are the segment sums of squares that its norm came from, for tests: rounding to binary32
 * hides a wrong order nearly always. */
void ns_run(const NsBatch *batch, Stream *stream, float *scratch);
/* Elements of one rank's slice, with a vocabulary's padding. */
int64_t ns_slice_nelem(const NsPlan *plan, int tp_size);
/* The same for this rank's slice x of a matrix cut along its contracted dimension. Collective over slice->tp. */
void ns_run_slice(const NsPlan *plan, const NsSlice *slice, Stream *stream, float *x, float *scratch);
/* Adds the products of a run: of a whole matrix (tp_size 1), or of all slices of one that stays in them. */
void ns_products(const NsPlan *plan, int tp_size, ProductList *list);

#endif
