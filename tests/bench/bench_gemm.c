/* The exact matrix product against OpenBLAS's sgemm on one thread, over the products of one training step of llama-60m
 * and llama-124m (1024 tokens) and of the demo model (512 tokens). One JSON object on stdout. */
#include <immintrin.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cblas.h>

#include "kernels/kernels.h"

enum { MIN_REPS = 3, MAX_REPS = 21, SEGMENTS = 8 };
static const double SECONDS_PER_SHAPE = 0.4; /* where MIN_REPS do not take longer */

/* ---- one thread, one block of scratch ---------------------------------------------------------------------------- */

static void run_here(const KernelCtx *ctx, int nitems, void (*body)(void *arg, int item, int thread), void *arg) {
    (void)ctx;
    for (int item = 0; item < nitems; item++)
        body(arg, item, 0);
}

static void *one_block(const KernelCtx *ctx, int thread, size_t nbytes) {
    static void *block;
    static size_t capacity;
    (void)ctx;
    (void)thread;
    if (nbytes > capacity) {
        free(block);
        capacity = (nbytes + 4095) / 4096 * 4096;
        block = aligned_alloc(4096, capacity);
    }
    return block;
}

static const KernelCtx one_thread = {.nthreads = 1, .parallel = run_here, .scratch = one_block};

static double seconds_of(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Both sides run in the calling thread; its processor time leaves out what the rest of the machine takes. */
static double seconds(void) {
    return seconds_of(CLOCK_THREAD_CPUTIME_ID);
}

/* ---- what the processor can do ----------------------------------------------------------------------------------- */

enum { PEAK_CHAINS = 12, PEAK_STEPS = 4000000 };

__attribute__((target("avx2,fma"))) static void fma_loop_256(float *sink) {
    __m256 c[PEAK_CHAINS], a = _mm256_set1_ps(0.999f);
    for (int i = 0; i < PEAK_CHAINS; i++)
        c[i] = _mm256_set1_ps((float)i);
    for (int k = 0; k < PEAK_STEPS; k++)
        for (int i = 0; i < PEAK_CHAINS; i++)
            c[i] = _mm256_fmadd_ps(c[i], a, a);
    for (int i = 0; i < PEAK_CHAINS; i++)
        sink[i] = _mm256_cvtss_f32(c[i]);
}

__attribute__((target("avx512f"))) static void fma_loop_512(float *sink) {
    __m512 c[PEAK_CHAINS], a = _mm512_set1_ps(0.999f);
    for (int i = 0; i < PEAK_CHAINS; i++)
        c[i] = _mm512_set1_ps((float)i);
    for (int k = 0; k < PEAK_STEPS; k++)
        for (int i = 0; i < PEAK_CHAINS; i++)
            c[i] = _mm512_fmadd_ps(c[i], a, a);
    for (int i = 0; i < PEAK_CHAINS; i++)
        sink[i] = _mm512_cvtss_f32(c[i]);
}

static double peak_gflops(void) {
    static volatile float kept;
    float sink[PEAK_CHAINS];
    const bool wide = __builtin_cpu_supports("avx512f");
    double best = 0.0;
    for (int rep = 0; rep < 5; rep++) {
        const double start = seconds();
        if (wide)
            fma_loop_512(sink);
        else if (__builtin_cpu_supports("avx2"))
            fma_loop_256(sink);
        else
            return 0.0;
        const double rate = 2e-9 * (wide ? 16 : 8) * PEAK_CHAINS * PEAK_STEPS / (seconds() - start);
        best = rate > best ? rate : best;
        kept = sink[0];
    }
    (void)kept;
    return best;
}

/* ---- the products of a step -------------------------------------------------------------------------------------- */

typedef enum Kind { FORWARD, INPUT_GRAD, WEIGHT_GRAD } Kind;

/* out and in of the weight as multiples of a model dimension: c, f or v. */
typedef struct Product {
    const char *name;
    Kind kind;
    char out, in;
    int nparts, nsegments;
} Product;

static const Product products[] = {
    {"qkv_forward", FORWARD, 'c', 'c', 1, 1},
    {"o_forward", FORWARD, 'c', 'c', 1, SEGMENTS},
    {"gate_up_forward", FORWARD, 'f', 'c', 1, 1},
    {"down_forward", FORWARD, 'c', 'f', 1, SEGMENTS},
    {"lm_head_forward", FORWARD, 'v', 'c', 1, 1},
    {"qkv_input_grad", INPUT_GRAD, 'c', 'c', 3, SEGMENTS},
    {"o_input_grad", INPUT_GRAD, 'c', 'c', 1, 1},
    {"gate_up_input_grad", INPUT_GRAD, 'f', 'c', 2, SEGMENTS},
    {"down_input_grad", INPUT_GRAD, 'c', 'f', 1, 1},
    {"lm_head_input_grad", INPUT_GRAD, 'v', 'c', 1, SEGMENTS},
    {"attention_weight_grad", WEIGHT_GRAD, 'c', 'c', 1, 1},
    {"gate_up_weight_grad", WEIGHT_GRAD, 'f', 'c', 1, 1},
    {"down_weight_grad", WEIGHT_GRAD, 'c', 'f', 1, 1},
    {"lm_head_weight_grad", WEIGHT_GRAD, 'v', 'c', 1, 1},
};
enum { NPRODUCTS = sizeof products / sizeof products[0] };

typedef struct Model {
    const char *name;
    int64_t c, f, v, tokens;
    bool counts; /* in the required figures; the demo model is only reported */
} Model;

static const Model models[] = {
    {"llama-60m", 512, 1376, 32000, 1024, true},
    {"llama-124m", 768, 2048, 50304, 1024, true},
    {"demo", 128, 352, 256, 512, false},
};
enum { NMODELS = sizeof models / sizeof models[0] };

static int64_t dim_of(const Model *model, char letter) {
    return letter == 'c' ? model->c : letter == 'f' ? model->f : model->v;
}

static float *random_matrix(int64_t nelem) {
    static uint32_t state = 1;
    float *x = aligned_alloc(64, (size_t)(nelem + 15) / 16 * 16 * sizeof *x);
    if (!x)
        exit(1);
    for (int64_t i = 0; i < nelem; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = (float)(state >> 8) / 8388608.0f - 1.0f;
    }
    return x;
}

static Gemm gemm_of(const Model *model, const Product *product) {
    const int64_t out = dim_of(model, product->out), in = dim_of(model, product->in), tokens = model->tokens;
    const Kind kind = product->kind;
    Gemm g = {.nparts = product->nparts, .nsegments = product->nsegments};
    g.m = kind == WEIGHT_GRAD ? out : tokens;
    g.n = kind == FORWARD ? out : in;
    g.trans_a = kind == WEIGHT_GRAD;
    g.trans_b = kind == FORWARD;
    g.ldc = g.n;
    g.c = random_matrix(g.m * g.n);
    for (int p = 0; p < g.nparts; p++) {
        GemmPart *part = &g.part[p];
        part->k = kind == FORWARD ? in : kind == INPUT_GRAD ? out : tokens;
        part->segment = part->k / g.nsegments;
        part->lda = g.trans_a ? g.m : part->k;
        part->ldb = g.trans_b ? part->k : g.n;
        part->a = random_matrix(g.m * part->k);
        part->b = random_matrix(g.n * part->k);
    }
    return g;
}

static void gemm_free(Gemm *g) {
    for (int p = 0; p < g->nparts; p++) {
        free((void *)(uintptr_t)g->part[p].a);
        free((void *)(uintptr_t)g->part[p].b);
    }
    free(g->c);
}

static void openblas_run(const Gemm *g) {
    for (int p = 0; p < g->nparts; p++) {
        const GemmPart *part = &g->part[p];
        cblas_sgemm(CblasRowMajor, g->trans_a ? CblasTrans : CblasNoTrans, g->trans_b ? CblasTrans : CblasNoTrans,
                    (int)g->m, (int)g->n, (int)part->k, 1.0f, part->a, (int)part->lda, part->b, (int)part->ldb,
                    p > 0 ? 1.0f : 0.0f, g->c, (int)g->ldc);
    }
}

/* ---- measuring --------------------------------------------------------------------------------------------------- */

static int by_value(const void *left, const void *right) {
    const double l = *(const double *)left, r = *(const double *)right;
    return (l > r) - (l < r);
}

static double median(double *x, int n) {
    qsort(x, (size_t)n, sizeof *x, by_value);
    return x[n / 2];
}

/* The ratio of medians of interleaved runs, so that a slow moment of the machine meets both. */
static double measure(const Model *model, const Product *product, KernelFn gemm, bool first) {
    Gemm g = gemm_of(model, product);
    double ours[MAX_REPS], theirs[MAX_REPS];
    int reps = 0;
    const double start = seconds();
    for (; reps < MIN_REPS || (reps < MAX_REPS && seconds() - start < SECONDS_PER_SHAPE); reps++) {
        double t = seconds();
        gemm(&one_thread, &g);
        ours[reps] = seconds() - t;
        t = seconds();
        openblas_run(&g);
        theirs[reps] = seconds() - t;
    }
    const double t0 = median(ours, reps), t1 = median(theirs, reps);
    const double gflop = 2e-9 * (double)g.m * (double)g.n * (double)g.part[0].k * g.nparts;
    printf("%s\n  {\"name\": \"%s %s\", \"m\": %d, \"n\": %d, \"k\": %d, \"parts\": %d, \"segments\": %d, "
           "\"gflops\": %.1f, \"openblas_gflops\": %.1f, \"ratio\": %.3f}",
           first ? "" : ",", model->name, product->name, (int)g.m, (int)g.n, (int)g.part[0].k, g.nparts, g.nsegments,
           gflop / t0, gflop / t1, t1 / t0);
    fflush(stdout);
    gemm_free(&g);
    return t1 / t0;
}

/* OpenBLAS reads these before main: they would run another processor's kernels, or start threads that spin. */
static void forget_environment(char **argv) {
    const char *nthreads = getenv("OPENBLAS_NUM_THREADS");
    if (!getenv("OPENBLAS_CORETYPE") && !getenv("OPENBLAS_L2_SIZE") && nthreads && strcmp(nthreads, "1") == 0)
        return;
    unsetenv("OPENBLAS_CORETYPE");
    unsetenv("OPENBLAS_L2_SIZE");
    setenv("OPENBLAS_NUM_THREADS", "1", 1);
    execv("/proc/self/exe", argv);
    perror("bench_gemm: cannot start itself again with OpenBLAS's own defaults");
    exit(1);
}

/* bench_gemm [words]: only the shapes whose "model product" contains the words. */
int main(int argc, char **argv) {
    forget_environment(argv);
    const KernelTable *table = kernels_cpu_select();
    if (!table)
        return 1;
    openblas_set_num_threads(1);
    double log_sum = 0.0, lowest = 1e9, demo_log_sum = 0.0;
    int count = 0, demo_count = 0;
    printf("{\"isa\": \"%s\", \"openblas_core\": \"%s\", \"shapes\": [", table->name, openblas_get_corename());
    for (int m = 0; m < NMODELS; m++) {
        for (int p = 0; p < NPRODUCTS; p++) {
            char name[64];
            snprintf(name, sizeof name, "%s %s", models[m].name, products[p].name);
            if (argc > 1 && !strstr(name, argv[1]))
                continue;
            const double ratio = measure(&models[m], &products[p], table->fn[KERNEL_GEMM], count + demo_count == 0);
            if (!models[m].counts) {
                demo_log_sum += log(ratio);
                demo_count++;
                continue;
            }
            log_sum += log(ratio);
            lowest = ratio < lowest ? ratio : lowest;
            count++;
        }
    }
    printf("\n ],\n \"gemm_vs_openblas_geomean\": %.3f, \"gemm_vs_openblas_min\": %.3f, \"demo_geomean\": %.3f, "
           "\"peak_gflops\": %.1f}\n",
           exp(log_sum / fmax(count, 1)), lowest, exp(demo_log_sum / fmax(demo_count, 1)), peak_gflops());
    return 0;
}
