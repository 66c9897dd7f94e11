/* cuBLASLt. It takes matrices by columns: a matrix by rows is to it the transposed one, so that it is asked for c^T =
 * op(b)^T op(a)^T. Whatever it may choose from, one algorithm is pinned for a shape: without split-K and without a
 * workspace, so that no sum is cut by how many multiprocessors happen to be free, and fit for batches, so that a
 * product has the same bits alone and in a batch. */
#include "device/gemm_cuda.h"

#include <cublasLt.h>
#include <inttypes.h>
#include <string.h>

#include "base/arena.h"
#include "base/fatal.h"
#include "base/hash.h"
#include "base/str.h"
#include "device/cuda.h"
#include "kernels/cuda/gemm_operands.h"

#define CANDIDATES 32
#define TRIED_BATCH 3 /* a batch for which an algorithm is checked */

/* Descriptions for cuBLASLt, of a product as it lies in memory. */
typedef struct Layouts {
    cublasLtMatmulDescOpaque_t operation;
    cublasLtMatrixLayoutOpaque_t a, b, c;
} Layouts;

/* What they depend on beside the call. */
typedef struct LayoutKey {
    int64_t stride[3], step[3], batch; /* of a, b, c; steps 0 without a batch */
} LayoutKey;

typedef struct Pinned {
    GemmCall call;
    cublasLtMatmulAlgo_t algorithm;
    LayoutKey key; /* of `layouts`, as it was called last */
    Layouts layouts;
} Pinned;

struct GemmCuda {
    cublasLtHandle_t handle;
    Pinned *pinned; /* owned */
    int count;
};

typedef struct Choices {
    uint64_t version;
    cublasLtMatmulAlgo_t algorithm[];
} Choices;

/* ---- errors ---- */

static Status lt_status(cublasStatus_t status, const char *call) {
    if (status == CUBLAS_STATUS_SUCCESS)
        return STATUS_OK;
    cuda_reported();
    return STATUS_FAIL(STATUS_DEVICE, "%.*s failed: %s", (int)strcspn(call, "("), call,
                       cublasLtGetStatusString(status));
}

#define LT_TRY(call) TRY(lt_status((call), #call))

static void lt_check(cublasStatus_t status, const char *call) {
    if (status != CUBLAS_STATUS_SUCCESS)
        fatal_status(lt_status(status, call));
}

#define LT_OK(call) lt_check((call), #call)

/* ---- calls ---- */

static bool same(const GemmCall *a, const GemmCall *b) {
    return a->m == b->m && a->n == b->n && a->k == b->k && a->trans_a == b->trans_a && a->trans_b == b->trans_b &&
           a->type == b->type;
}

static void describe(const GemmCall *c, char *text, size_t capacity) {
    static const char *const types[] = {[OPERAND_F32] = "tf32", [OPERAND_BF16] = "bf16", [OPERAND_F16] = "fp16"};
    str_format(text, capacity, "[%" PRId64 ", %" PRId64 "]%s x [%" PRId64 ", %" PRId64 "]%s in %s",
               c->trans_a ? c->k : c->m, c->trans_a ? c->m : c->k, c->trans_a ? "^T" : "", c->trans_b ? c->n : c->k,
               c->trans_b ? c->k : c->n, c->trans_b ? "^T" : "", types[c->type]);
}

/* ---- descriptions for cuBLASLt ---- */

/* [rows, cols] by rows. */
static Status layout_init(cublasLtMatrixLayoutOpaque_t *layout, cudaDataType type, int64_t rows, int64_t cols,
                          GemmPlace place, int32_t batch) {
    LT_TRY(cublasLtMatrixLayoutInit(layout, type, (uint64_t)cols, (uint64_t)rows, place.stride));
    if (batch == 1)
        return STATUS_OK;
    LT_TRY(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch));
    LT_TRY(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &place.step,
                                            sizeof place.step));
    return STATUS_OK;
}

static Status layouts_init(Layouts *layouts, const GemmCall *c, GemmPlace a, GemmPlace b, GemmPlace result,
                           int32_t batch) {
    static const cudaDataType types[] = {
        [OPERAND_F32] = CUDA_R_32F, [OPERAND_BF16] = CUDA_R_16BF, [OPERAND_F16] = CUDA_R_16F};
    const bool tf32 = c->type == OPERAND_F32;
    const cublasOperation_t first = c->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t second = c->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    LT_TRY(cublasLtMatmulDescInit(&layouts->operation, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
                                  CUDA_R_32F));
    LT_TRY(cublasLtMatmulDescSetAttribute(&layouts->operation, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first));
    LT_TRY(cublasLtMatmulDescSetAttribute(&layouts->operation, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second));
    TRY(layout_init(&layouts->a, types[c->type], c->trans_a ? c->k : c->m, c->trans_a ? c->m : c->k, a, batch));
    TRY(layout_init(&layouts->b, types[c->type], c->trans_b ? c->n : c->k, c->trans_b ? c->k : c->n, b, batch));
    TRY(layout_init(&layouts->c, CUDA_R_32F, c->m, c->n, result, batch));
    return STATUS_OK;
}

/* As the product lies where it is alone. */
static Status usual_layouts(Layouts *layouts, const GemmCall *c, int32_t batch) {
    const int64_t a = gemm_cuda_stride(c->trans_a ? c->m : c->k, c->type),
                  b = gemm_cuda_stride(c->trans_b ? c->k : c->n, c->type);
    const int64_t result = gemm_cuda_stride(c->n, OPERAND_F32);
    return layouts_init(layouts, c, (GemmPlace){.stride = a, .step = (c->trans_a ? c->k : c->m) * a},
                        (GemmPlace){.stride = b, .step = (c->trans_b ? c->n : c->k) * b},
                        (GemmPlace){.stride = result, .step = c->m * result}, batch);
}

/* ---- choosing ---- */

static Status preference_init(cublasLtMatmulPreferenceOpaque_t *preference) {
    static const cublasLtMatmulPreferenceAttributes_t alignments[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    const uint32_t alignment = GEMM_CUDA_ALIGN, schemes = CUBLASLT_REDUCTION_SCHEME_NONE;
    const uint64_t workspace = 0;
    LT_TRY(cublasLtMatmulPreferenceInit(preference));
    LT_TRY(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                                sizeof workspace));
    LT_TRY(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes,
                                                sizeof schemes));
    for (size_t i = 0; i < sizeof alignments / sizeof alignments[0]; i++)
        LT_TRY(cublasLtMatmulPreferenceSetAttribute(preference, alignments[i], &alignment, sizeof alignment));
    return STATUS_OK;
}

static Status fits(const cublasLtMatmulHeuristicResult_t *candidate, bool *fit) {
    int32_t splits, batches;
    uint32_t scheme;
    *fit = false;
    if (candidate->state != CUBLAS_STATUS_SUCCESS || candidate->workspaceSize > 0)
        return STATUS_OK;
    const cublasLtMatmulAlgo_t *algorithm = &candidate->algo;
    LT_TRY(
        cublasLtMatmulAlgoConfigGetAttribute(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &splits, sizeof splits, NULL));
    LT_TRY(cublasLtMatmulAlgoConfigGetAttribute(algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme,
                                                sizeof scheme, NULL));
    LT_TRY(cublasLtMatmulAlgoCapGetAttribute(algorithm, CUBLASLT_ALGO_CAP_STRIDED_BATCH_SUPPORT, &batches,
                                             sizeof batches, NULL));
    *fit = splits <= 1 && scheme == CUBLASLT_REDUCTION_SCHEME_NONE && batches != 0;
    return STATUS_OK;
}

static Status refuse(const GemmCall *call, const char *why) {
    char text[160];
    describe(call, text, sizeof text);
    return STATUS_FAIL(STATUS_DEVICE, "cuBLASLt: product %s: %s (precision.compute: f32 does without cuBLASLt)", text,
                       why);
}

static Status choose(const GemmCuda *gemms, const GemmCall *call, cublasLtMatmulAlgo_t *algorithm) {
    cublasLtMatmulHeuristicResult_t candidate[CANDIDATES];
    cublasLtMatmulPreferenceOpaque_t preference;
    Layouts l;
    int count = 0;
    TRY(preference_init(&preference));
    TRY(usual_layouts(&l, call, 1));
    LT_TRY(cublasLtMatmulAlgoGetHeuristic(gemms->handle, &l.operation, &l.b, &l.a, &l.c, &l.c, &preference, CANDIDATES,
                                          candidate, &count));
    for (int i = 0; i < count; i++) {
        bool fit;
        TRY(fits(&candidate[i], &fit));
        *algorithm = candidate[i].algo;
        if (fit)
            return STATUS_OK;
    }
    return refuse(call, "no algorithm without split-K and workspace that takes batches");
}

size_t gemm_cuda_choice_nbytes(int count) {
    return sizeof(Choices) + (size_t)count * sizeof(cublasLtMatmulAlgo_t);
}

Status gemm_cuda_choose(GemmCuda *gemms, const GemmCall *calls, int count, void *out) {
    Choices *choices = out;
    choices->version = cublasLtGetVersion();
    for (int i = 0; i < count; i++)
        TRY(choose(gemms, &calls[i], &choices->algorithm[i]));
    return STATUS_OK;
}

/* ---- pinning ---- */

/* Alone and in a batch. */
static Status check(const GemmCuda *gemms, const Pinned *p) {
    for (int32_t batch = 1; batch <= TRIED_BATCH; batch += TRIED_BATCH - 1) {
        cublasLtMatmulHeuristicResult_t result;
        Layouts l;
        TRY(usual_layouts(&l, &p->call, batch));
        const cublasStatus_t status =
            cublasLtMatmulAlgoCheck(gemms->handle, &l.operation, &l.b, &l.a, &l.c, &l.c, &p->algorithm, &result);
        if (status != CUBLAS_STATUS_SUCCESS || result.workspaceSize > 0)
            return refuse(&p->call,
                          "the algorithm that rank 0 chose does not run on this GPU: all ranks need the same");
    }
    return STATUS_OK;
}

/* The algorithm by what it does; its bytes may hold more. */
static uint64_t hash_pinned(const Pinned *p, uint64_t hash) {
    static const struct {
        cublasLtMatmulAlgoConfigAttributes_t attribute;
        size_t nbytes;
    } words[] = {{CUBLASLT_ALGO_CONFIG_ID, 4},
                 {CUBLASLT_ALGO_CONFIG_TILE_ID, 4},
                 {CUBLASLT_ALGO_CONFIG_STAGES_ID, 4},
                 {CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, 4},
                 {CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, 4},
                 {CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, 2},
                 {CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, 2}};
    const GemmCall *c = &p->call;
    const int64_t shape[] = {c->m, c->n, c->k, c->trans_a, c->trans_b, c->type};
    hash = hash_bytes(shape, sizeof shape, hash);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        uint32_t value = 0;
        LT_OK(cublasLtMatmulAlgoConfigGetAttribute(&p->algorithm, words[i].attribute, &value, words[i].nbytes, NULL));
        hash = hash_bytes(&value, words[i].nbytes, hash);
    }
    return hash;
}

Status gemm_cuda_pin(GemmCuda *gemms, const GemmCall *calls, int count, const void *in,
                     char identity[GEMM_CUDA_IDENTITY]) {
    const Choices *choices = in;
    const uint64_t version = cublasLtGetVersion();
    uint64_t hash = version;
    if (choices->version != version)
        return STATUS_FAIL(STATUS_DEVICE, "cuBLASLt is version %" PRIu64 " here and %" PRIu64 " on rank 0", version,
                           choices->version);
    gemms->pinned = HEAP_ALLOC(Pinned, count > 0 ? count : 1);
    for (int i = 0; i < count; i++) {
        Pinned *p = &gemms->pinned[i];
        *p = (Pinned){.call = calls[i], .algorithm = choices->algorithm[i]};
        TRY(check(gemms, p));
        hash = hash_pinned(p, hash);
    }
    gemms->count = count;
    str_format(identity, GEMM_CUDA_IDENTITY, "%d products, cuBLASLt %" PRIu64 ", %016" PRIx64, count, version, hash);
    return STATUS_OK;
}

static Pinned *find(GemmCuda *gemms, const GemmCall *call) {
    char text[160];
    for (int i = 0; i < gemms->count; i++)
        if (same(&gemms->pinned[i].call, call))
            return &gemms->pinned[i];
    describe(call, text, sizeof text);
    fatal("no algorithm was pinned at start-up for the product %s", text);
}

/* ---- calling ---- */

/* A shape lies in the same way nearly always: its descriptions are kept from call to call. */
static Layouts *layouts_of(Pinned *pinned, const GemmTask *task) {
    const GemmPlace place[3] = {task->a, task->b, task->c};
    LayoutKey key = {.batch = task->batch};
    for (int i = 0; i < 3; i++) {
        key.stride[i] = place[i].stride;
        key.step[i] = task->batch > 1 ? place[i].step : 0;
    }
    if (memcmp(&key, &pinned->key, sizeof key) == 0)
        return &pinned->layouts;
    const Status ready = layouts_init(&pinned->layouts, &pinned->call, task->a, task->b, task->c, (int32_t)task->batch);
    if (ready != STATUS_OK)
        fatal_status(ready);
    pinned->key = key;
    return &pinned->layouts;
}

void gemm_cuda_call(GemmCuda *gemms, const GemmCall *call, const GemmTask *task, void *stream) {
    const float one = 1.0f, beta = task->accumulate ? 1.0f : 0.0f;
    Pinned *pinned = find(gemms, call);
    Layouts *l = layouts_of(pinned, task);
    LT_OK(cublasLtMatmul(gemms->handle, &l->operation, &one, task->b.at, &l->b, task->a.at, &l->a, &beta, task->c.at,
                         &l->c, task->c.at, &l->c, &pinned->algorithm, NULL, 0, (cudaStream_t)stream));
}

/* ---- life ---- */

Status gemm_cuda_create(GemmCuda **out) {
    cublasLtHandle_t handle = NULL;
    LT_TRY(cublasLtCreate(&handle));
    GemmCuda *gemms = HEAP_ALLOC(GemmCuda, 1);
    gemms->handle = handle;
    *out = gemms;
    return STATUS_OK;
}

void gemm_cuda_destroy(GemmCuda *gemms) {
    if (gemms == NULL)
        return;
    const cublasStatus_t status = cublasLtDestroy(gemms->handle);
    if (!cuda_has_reported())
        lt_check(status, "cublasLtDestroy");
    heap_free(gemms->pinned);
    heap_free(gemms);
}
