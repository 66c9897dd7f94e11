/* The pinned products of fast mode, as the engine calls them, against the fastest that cuBLASLt has for the same shape:
 * any algorithm that its heuristics name, with a workspace and with split sums. bench_products [DIVISOR]: the dims are
 * divided, for a try on a device that is no accelerator. One JSON object on stdout. */
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "tests/bench/bench.h"
#include "tests/cuda/pin.h"

enum { ROUNDS = 5, CALLS = 8, CANDIDATES = 16, WORKSPACE_NBYTES = 64 << 20 };

/* c [m,n] = a [m,k] b^T, b [n,k]: a layer's forward. */
typedef struct Size {
    int64_t m, n, k;
} Size;

static const Size sizes[] = {
    {16384, 768, 768}, {16384, 2048, 768}, {8192, 2048, 2048}, {8192, 8192, 2048}, {4096, 4096, 4096}};
enum { NSIZES = sizeof sizes / sizeof sizes[0] };

typedef struct Product {
    Stream *stream;
    Size size;
    uint16_t *a, *b; /* bf16 */
    float *c;
    void *workspace;
} Product;

#define CUDA_DONE(call) bench_check((call) == cudaSuccess, #call)
#define LT_DONE(call) bench_check((call) == CUBLAS_STATUS_SUCCESS, #call)

/* ---- times ---- */

typedef void (*Call)(const Product *p, const void *how);

/* Seconds of one of several calls between an idle stream and an idle stream; the first round is not counted. */
static double seconds(const Product *p, Call call, const void *how) {
    double time[ROUNDS + 1];
    for (int round = 0; round <= ROUNDS; round++) {
        const int64_t begin = clock_ns();
        for (int i = 0; i < CALLS; i++)
            call(p, how);
        stream_sync(p->stream);
        time[round] = clock_ms_since(begin) * 1e-3 / CALLS;
    }
    return bench_median(time + 1, ROUNDS);
}

static void call_pinned(const Product *p, const void *how) {
    const Size *s = &p->size;
    (void)how;
    ops_gemm(p->stream, (Gemm){.m = s->m,
                               .n = s->n,
                               .nparts = 1,
                               .part = {{.a = p->c, /* not read: the 16 bits are there */
                                         .b = p->c,
                                         .a_bf16 = p->a,
                                         .b_bf16 = p->b,
                                         .lda = s->k,
                                         .ldb = s->k,
                                         .k = s->k,
                                         .segment = s->k}},
                               .nsegments = 1,
                               .trans_b = true,
                               .c = p->c,
                               .ldc = s->n});
}

/* ---- cuBLASLt itself: by columns c^T [n,m] = (b^T)^T [n,k] a^T [k,m] ---- */

static void prefer(cublasLtMatmulPreference_t preference) {
    static const cublasLtMatmulPreferenceAttributes_t alignments[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    const uint32_t alignment = 16; /* as the engine's operands lie */
    const uint64_t workspace = WORKSPACE_NBYTES;
    LT_DONE(cublasLtMatmulPreferenceInit(preference));
    LT_DONE(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                                 sizeof workspace));
    for (size_t i = 0; i < sizeof alignments / sizeof alignments[0]; i++)
        LT_DONE(cublasLtMatmulPreferenceSetAttribute(preference, alignments[i], &alignment, sizeof alignment));
}

typedef struct Library {
    cublasLtHandle_t handle;
    cublasLtMatmulDescOpaque_t operation;
    cublasLtMatrixLayoutOpaque_t first, second, result;
    cublasLtMatmulHeuristicResult_t candidate[CANDIDATES];
    int count, chosen;
} Library;

static void library_open(Library *l, Size s) {
    const cublasOperation_t transposed = CUBLAS_OP_T;
    cublasLtMatmulPreferenceOpaque_t preference;
    LT_DONE(cublasLtCreate(&l->handle));
    LT_DONE(cublasLtMatmulDescInit(&l->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    LT_DONE(cublasLtMatmulDescSetAttribute(&l->operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed));
    LT_DONE(cublasLtMatrixLayoutInit(&l->first, CUDA_R_16BF, (uint64_t)s.k, (uint64_t)s.n, s.k));
    LT_DONE(cublasLtMatrixLayoutInit(&l->second, CUDA_R_16BF, (uint64_t)s.k, (uint64_t)s.m, s.k));
    LT_DONE(cublasLtMatrixLayoutInit(&l->result, CUDA_R_32F, (uint64_t)s.n, (uint64_t)s.m, s.n));
    prefer(&preference);
    LT_DONE(cublasLtMatmulAlgoGetHeuristic(l->handle, &l->operation, &l->first, &l->second, &l->result, &l->result,
                                           &preference, CANDIDATES, l->candidate, &l->count));
}

static void call_chosen(const Product *p, const void *how) {
    const float one = 1.0f, zero = 0.0f;
    Library *l = (Library *)(uintptr_t)how;
    LT_DONE(cublasLtMatmul(l->handle, &l->operation, &one, p->b, &l->first, p->a, &l->second, &zero, p->c, &l->result,
                           p->c, &l->result, &l->candidate[l->chosen].algo, p->workspace, WORKSPACE_NBYTES,
                           (cudaStream_t)stream_native(p->stream)));
}

static double best_seconds(const Product *p) {
    Library l = {.count = 0};
    double best = 0.0;
    library_open(&l, p->size);
    bench_check(l.count > 0, "cuBLASLt names no algorithm");
    for (l.chosen = 0; l.chosen < l.count; l.chosen++) {
        const double time = seconds(p, call_chosen, &l);
        best = l.chosen == 0 || time < best ? time : best;
    }
    LT_DONE(cublasLtDestroy(l.handle));
    return best;
}

/* ---- one shape ---- */

static uint16_t *random_bf16(int64_t n) {
    uint16_t *host = calloc((size_t)n, sizeof *host), *device;
    uint32_t state = 1;
    bench_check(host != NULL, "no memory");
    for (int64_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        host[i] = (uint16_t)((state >> 31 << 15) + 0x3f00 + (state >> 8 & 0x7f)); /* magnitudes in [0.5, 1) */
    }
    CUDA_DONE(cudaMalloc((void **)&device, (size_t)n * sizeof *device));
    CUDA_DONE(cudaMemcpy(device, host, (size_t)n * sizeof *device, cudaMemcpyHostToDevice));
    free(host);
    return device;
}

static void print_product(Product *p, bool first) {
    const Size s = p->size;
    const double flops = 2e-12 * (double)s.m * (double)s.n * (double)s.k;
    p->a = random_bf16(s.m * s.k);
    p->b = random_bf16(s.n * s.k);
    CUDA_DONE(cudaMalloc((void **)&p->c, (size_t)(s.m * s.n) * sizeof *p->c));
    CUDA_DONE(cudaMalloc(&p->workspace, WORKSPACE_NBYTES));
    const double pinned = seconds(p, call_pinned, NULL), best = best_seconds(p);
    printf("%s{\"m\": %d, \"n\": %d, \"k\": %d, \"tflops\": %.4f, \"best_tflops\": %.4f, \"of_best\": %.3f}",
           first ? "" : ", ", (int)s.m, (int)s.n, (int)s.k, flops / pinned, flops / best, best / pinned);
    CUDA_DONE(cudaFree(p->a));
    CUDA_DONE(cudaFree(p->b));
    CUDA_DONE(cudaFree(p->c));
    CUDA_DONE(cudaFree(p->workspace));
}

static Size divided(int i, int64_t divisor) {
    return (Size){sizes[i].m / divisor, sizes[i].n / divisor, sizes[i].k / divisor};
}

static void pin(Device *device, int64_t divisor) {
    ProductList list = {0};
    for (int i = 0; i < NSIZES; i++) {
        const Size s = divided(i, divisor);
        products_add(&list, (ProductShape){.m = s.m, .n = s.n, .k = s.k, .trans_b = true});
    }
    pin_products(device, &list);
}

int main(int argc, char **argv) {
    Device *device;
    const int64_t divisor = argc > 1 ? strtoll(argv[1], NULL, 10) : 1;
    bench_check(divisor >= 1 && divisor <= 48, "usage: bench_products [DIVISOR]");
    const DeviceOptions options = {.name = "cuda", .threads = 1, .compute = DEVICE_BF16};
    if (device_create(&device, &options) != STATUS_OK)
        bench_check(false, status_trail());
    pin(device, divisor);
    printf("{\"bf16_products\": [");
    for (int i = 0; i < NSIZES; i++) {
        Product p = {.stream = device_stream(device, STREAM_COMPUTE), .size = divided(i, divisor)};
        print_product(&p, i == 0);
    }
    printf("]}\n");
    device_destroy(device);
    return 0;
}
