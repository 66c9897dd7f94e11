/* Stand-in for libcublasLt.so.13: products without an epilogue, by columns, with host scalars. It offers algorithms of
 * several kinds, with different bits, so that it shows which one was taken, and refuses what a GPU could do slowly,
 * wrongly or not at all. */
#include <algorithm>

#include "cublaslt.h"

using namespace standin;
using namespace lt;

namespace {

/* One field of an attribute: the library insists on its size. */
template <class T> cublasStatus_t read(T *field, const void *from, size_t nbytes) {
    if (from == nullptr || nbytes != sizeof *field)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(field, from, sizeof *field);
    return CUBLAS_STATUS_SUCCESS;
}

template <class T> cublasStatus_t write(T value, void *to, size_t nbytes, size_t *written) {
    if (to == nullptr || nbytes != sizeof value)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, &value, sizeof value);
    if (written != nullptr)
        *written = sizeof value;
    return CUBLAS_STATUS_SUCCESS;
}

} // namespace

/* ---- the library ------------------------------------------------------------------------------------------------- */

STANDIN_API cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
    LT_CALL(CUBLAS_STATUS_NOT_INITIALIZED);
    *handle = (cublasLtHandle_t) new Handle{ALIVE};
    leak_count("cublasLt handles", 1);
    return CUBLAS_STATUS_SUCCESS;
}

STANDIN_API cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    LT_CALL(CUBLAS_STATUS_NOT_INITIALIZED);
    check_handle(handle, __func__);
    ((Handle *)handle)->magic = 0; /* kept: a later use is found */
    leak_count("cublasLt handles", -1);
    return CUBLAS_STATUS_SUCCESS;
}

STANDIN_API size_t cublasLtGetVersion(void) {
    return CUBLAS_VER_MAJOR * 10000 + CUBLAS_VER_MINOR * 100 + CUBLAS_VER_PATCH;
}

STANDIN_API const char *cublasLtGetStatusString(cublasStatus_t status) {
    switch (status) {
    case CUBLAS_STATUS_SUCCESS:
        return "success";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "not supported";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "invalid value";
    default:
        return "failed";
    }
}

/* ---- descriptions ------------------------------------------------------------------------------------------------ */

STANDIN_API cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t layout, size_t, cudaDataType type,
                                                             uint64_t rows, uint64_t cols, int64_t ld) {
    LT_CALL(CUBLAS_STATUS_ALLOC_FAILED);
    store(layout, Layout{type, 1, (int64_t)rows, (int64_t)cols, ld, 0});
    return CUBLAS_STATUS_SUCCESS;
}

STANDIN_API cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                            cublasLtMatrixLayoutAttribute_t attribute, const void *from,
                                                            size_t nbytes) {
    LT_CALL(CUBLAS_STATUS_INVALID_VALUE);
    Layout l = load<Layout>(layout);
    cublasStatus_t status = CUBLAS_STATUS_INVALID_VALUE;
    if (attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT)
        status = read(&l.batch, from, nbytes);
    else if (attribute == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET)
        status = read(&l.step, from, nbytes);
    store(layout, l);
    return noted(status, __func__);
}

STANDIN_API cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t operation, size_t,
                                                           cublasComputeType_t compute, cudaDataType_t scale) {
    LT_CALL(CUBLAS_STATUS_ALLOC_FAILED);
    store(operation, Operation{compute, scale, {CUBLAS_OP_N, CUBLAS_OP_N}});
    return CUBLAS_STATUS_SUCCESS;
}

STANDIN_API cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation,
                                                          cublasLtMatmulDescAttributes_t attribute, const void *from,
                                                          size_t nbytes) {
    LT_CALL(CUBLAS_STATUS_INVALID_VALUE);
    Operation o = load<Operation>(operation);
    cublasStatus_t status = CUBLAS_STATUS_INVALID_VALUE;
    if (attribute == CUBLASLT_MATMUL_DESC_TRANSA || attribute == CUBLASLT_MATMUL_DESC_TRANSB)
        status = read(&o.transposed[attribute == CUBLASLT_MATMUL_DESC_TRANSB], from, nbytes);
    store(operation, o);
    return noted(status, __func__);
}

STANDIN_API cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t preference, size_t) {
    LT_CALL(CUBLAS_STATUS_ALLOC_FAILED);
    store(preference, Preference{0, CUBLASLT_REDUCTION_SCHEME_MASK, {256, 256, 256, 256}});
    return CUBLAS_STATUS_SUCCESS;
}

STANDIN_API cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                                cublasLtMatmulPreferenceAttributes_t attribute,
                                                                const void *from, size_t nbytes) {
    LT_CALL(CUBLAS_STATUS_INVALID_VALUE);
    Preference p = load<Preference>(preference);
    cublasStatus_t status = CUBLAS_STATUS_INVALID_VALUE;
    if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
        status = read(&p.workspace, from, nbytes);
    else if (attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
        status = read(&p.schemes, from, nbytes);
    else if (attribute >= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES &&
             attribute <= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES)
        status = read(&p.alignment[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], from, nbytes);
    store(preference, p);
    return noted(status, __func__);
}

/* ---- algorithms -------------------------------------------------------------------------------------------------- */

static bool rows_fit(const Layout &l) {
    return l.ld >= l.rows && l.ld * (int64_t)element_nbytes(l.type) % (int64_t)ALIGNMENT == 0 &&
           (l.batch == 1 || l.step * (int64_t)element_nbytes(l.type) % (int64_t)ALIGNMENT == 0);
}

bool lt::form_of(const Layouts &l, Form *form) {
    const bool ta = l.operation.transposed[0] == CUBLAS_OP_T, tb = l.operation.transposed[1] == CUBLAS_OP_T;
    *form = {l.c.rows, l.c.cols, ta ? l.a.rows : l.a.cols, l.c.batch, (uint32_t)(ta + 2 * tb), (uint32_t)l.a.type};
    const bool types =
        l.a.type == l.b.type && l.c.type == CUDA_R_32F && l.operation.scale == CUDA_R_32F &&
        l.operation.compute == (l.a.type == CUDA_R_32F ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F) &&
        (l.a.type == CUDA_R_32F || l.a.type == CUDA_R_16BF || l.a.type == CUDA_R_16F);
    const bool sizes = form->m > 0 && form->n > 0 && form->k > 0 && (ta ? l.a.cols : l.a.rows) == form->m &&
                       (tb ? l.b.rows : l.b.cols) == form->n && (tb ? l.b.cols : l.b.rows) == form->k;
    const bool result = memcmp(&l.c, &l.d, sizeof l.c) == 0;
    const bool batches = l.a.batch == l.c.batch && l.b.batch == l.c.batch && l.c.batch >= 1;
    return types && sizes && result && batches && rows_fit(l.a) && rows_fit(l.b) && rows_fit(l.c);
}

bool lt::runs(const Algorithm &x, const Form &f) {
    return x.m == f.m && x.n == f.n && x.k == f.k && x.transposed == f.transposed && x.type == f.type &&
           (f.batch == 1 || x.batches != 0);
}

namespace {

/* The fastest first, as it thinks: what depends on free multiprocessors, what takes no batch, and only then what is fit
 * to be pinned, another one where there is a batch. */
std::vector<Algorithm> algorithms_for(const Form &f, const Preference &p) {
    std::vector<Algorithm> all;
    const Algorithm plain = {0, 0, 1, CUBLASLT_REDUCTION_SCHEME_NONE, 64, 1, f.m, f.n, f.k, f.transposed, f.type};
    Algorithm x = plain;
    if ((p.schemes & CUBLASLT_REDUCTION_SCHEME_INPLACE) != 0) {
        x.kind = 1;
        x.splits = 2;
        x.scheme = CUBLASLT_REDUCTION_SCHEME_INPLACE;
        x.chunk = 16;
        all.push_back(x);
    }
    if (p.workspace >= 1024) {
        x = plain;
        x.kind = 2;
        x.workspace = 1024;
        x.chunk = 24;
        all.push_back(x);
    }
    x = plain;
    x.kind = 3;
    x.batches = 0;
    x.chunk = 48;
    if (f.batch == 1)
        all.push_back(x);
    x = plain;
    x.kind = f.batch == 1 ? 4 : 5;
    x.chunk = f.batch == 1 ? 64 : 40;
    all.push_back(x);
    return all;
}

void result_of(const Algorithm &x, cublasLtMatmulHeuristicResult_t *result) {
    memset(result, 0, sizeof *result);
    store(&result->algo, x);
    result->workspaceSize = x.workspace;
    result->state = CUBLAS_STATUS_SUCCESS;
    result->wavesCount = 1.0f;
}

} // namespace

STANDIN_API cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                                                          cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                                          cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                                          cublasLtMatmulPreference_t preference, int most,
                                                          cublasLtMatmulHeuristicResult_t *results, int *count) {
    LT_CALL(CUBLAS_STATUS_NOT_SUPPORTED);
    check_handle(handle, __func__);
    const Preference p = load<Preference>(preference);
    Form form;
    *count = 0;
    if (!form_of(layouts_of(operation, a, b, c, d), &form) ||
        *std::max_element(p.alignment, p.alignment + 4) > ALIGNMENT)
        return noted(CUBLAS_STATUS_NOT_SUPPORTED, __func__);
    for (const Algorithm &x : algorithms_for(form, p)) {
        if (*count < most)
            result_of(x, &results[(*count)++]);
    }
    return CUBLAS_STATUS_SUCCESS;
}

STANDIN_API cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                                                   cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                                   cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                                   const cublasLtMatmulAlgo_t *algorithm,
                                                   cublasLtMatmulHeuristicResult_t *result) {
    LT_CALL(CUBLAS_STATUS_NOT_SUPPORTED);
    check_handle(handle, __func__);
    Form form;
    const Algorithm x = load<Algorithm>(algorithm);
    if (!form_of(layouts_of(operation, a, b, c, d), &form) || !runs(x, form))
        return CUBLAS_STATUS_NOT_SUPPORTED; /* an answer, no error */
    result_of(x, result);
    return CUBLAS_STATUS_SUCCESS;
}

STANDIN_API cublasStatus_t cublasLtMatmulAlgoCapGetAttribute(const cublasLtMatmulAlgo_t *algorithm,
                                                             cublasLtMatmulAlgoCapAttributes_t attribute, void *to,
                                                             size_t nbytes, size_t *written) {
    LT_CALL(CUBLAS_STATUS_INVALID_VALUE);
    if (attribute != CUBLASLT_ALGO_CAP_STRIDED_BATCH_SUPPORT)
        return noted(CUBLAS_STATUS_INVALID_VALUE, __func__);
    return noted(write(load<Algorithm>(algorithm).batches, to, nbytes, written), __func__);
}

STANDIN_API cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algorithm,
                                                                cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                                void *to, size_t nbytes, size_t *written) {
    LT_CALL(CUBLAS_STATUS_INVALID_VALUE);
    const Algorithm x = load<Algorithm>(algorithm);
    switch (attribute) {
    case CUBLASLT_ALGO_CONFIG_ID:
        return noted(write((int32_t)x.kind, to, nbytes, written), __func__);
    case CUBLASLT_ALGO_CONFIG_SPLITK_NUM:
        return noted(write(x.splits, to, nbytes, written), __func__);
    case CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME:
        return noted(write(x.scheme, to, nbytes, written), __func__);
    case CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID:
    case CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID:
        return noted(write((uint16_t)0, to, nbytes, written), __func__);
    default: /* tile, stages, swizzling, custom option */
        return noted(write(x.chunk, to, nbytes, written), __func__);
    }
}
