/* One kernel on the CPU and on the device, on the same bytes, and the comparison of all that both left behind.
 *
 * Every buffer of a case lies in one pool, between margins, at an odd place; the device holds a copy of the pool. After
 * both runs the two pools are compared as a whole: outputs, inputs and margins. A NaN equals a NaN, whatever its
 * payload, which no contract fixes; all else is equal to the bit. Header only, because each test is one program of one
 * file. */
#ifndef DMUON_TESTS_CUDA_PARITY_H
#define DMUON_TESTS_CUDA_PARITY_H

/* cmocka.h wants these before it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "kernels/cuda/table.h"
#include "kernels/kernels.h"
#include "tests/fixtures/kernel_ctx.h"

enum { POOL_NBYTES = 32 << 20, POOL_MARGIN = 80, POOL_SHOWN = 8 };

typedef struct Parity {
    unsigned char *host, *result; /* owned */
    unsigned char *device;        /* owned */
    size_t used;
    cudaStream_t stream; /* owned */
    void *scratch;       /* owned, on the device */
    size_t scratch_nbytes;
    bool ran[KERNEL_COUNT];
    uint64_t random;
    bool special; /* infinities and NaNs among the random values */
    char what[128];
} Parity;

static Parity parity = {.random = 1};

#define CUDA_DONE(call) cuda_done((call), #call)

static inline void cuda_done(cudaError_t error, const char *call) {
    if (error != cudaSuccess)
        fail_msg("%s: %s", call, cudaGetErrorString(error));
}

void kernels_cuda_failed(const char *kernel, int error) {
    (void)fprintf(stderr, "launch of %s: %s\n", kernel, cudaGetErrorString((cudaError_t)error));
    abort();
}

/* cmocka takes the signals of faults for itself at the start of every test; an emulated device needs them, to watch its
 * memory and to say what a kernel did wrong. */
static const int parity_signals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};
enum { PARITY_NSIGNALS = sizeof parity_signals / sizeof *parity_signals };
static struct sigaction parity_on_signal[PARITY_NSIGNALS];

static inline void parity_keep_signals(void) {
    CUDA_DONE(cudaFree(NULL)); /* the first call: whoever wants the signals has asked for them after this */
    for (int i = 0; i < PARITY_NSIGNALS; i++)
        (void)sigaction(parity_signals[i], NULL, &parity_on_signal[i]);
}

/* First thing in every test. */
static inline void parity_restore_signals(void) {
    for (int i = 0; i < PARITY_NSIGNALS; i++)
        (void)sigaction(parity_signals[i], &parity_on_signal[i], NULL);
}

static inline int parity_open(void **state) {
    (void)state;
    parity_restore_signals();
    parity.host = aligned_alloc(256, POOL_NBYTES);
    parity.result = aligned_alloc(256, POOL_NBYTES);
    assert_true(parity.host && parity.result);
    parity.used = POOL_NBYTES;
    CUDA_DONE(cudaMalloc((void **)&parity.device, POOL_NBYTES));
    CUDA_DONE(cudaStreamCreateWithFlags(&parity.stream, cudaStreamNonBlocking));
    return 0;
}

static inline int parity_close(void **state) {
    (void)state;
    parity_restore_signals();
    CUDA_DONE(cudaFree(parity.scratch));
    CUDA_DONE(cudaStreamDestroy(parity.stream));
    CUDA_DONE(cudaFree(parity.device));
    free(parity.host);
    free(parity.result);
    return 0;
}

/* ---- the pool --------------------------------------------------------------------------------------------------- */

/* Starts a case with an empty pool. What the last case used is made anew; beyond, it is still 0xA5. */
static inline void pool_begin(bool special) {
    memset(parity.host, 0xA5, parity.used);
    parity.used = 0;
    parity.special = special;
}

/* nbytes of 0xA5 between margins, `skew` bytes off a multiple of 64; an alignment that a kernel counts on is chosen by
 * the caller. */
static inline void *pool_bytes(size_t nbytes, size_t skew) {
    const size_t at = (parity.used + 63) / 64 * 64 + 64 + skew;
    assert_true(at + nbytes + POOL_MARGIN + 3 <= POOL_NBYTES);
    parity.used = (at + nbytes + POOL_MARGIN + 3) / 4 * 4; /* whole words are compared */
    return parity.host + at;
}

static inline uint32_t random_u32(void) {
    parity.random = parity.random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(parity.random >> 32);
}

static inline int64_t random_below(int64_t n) {
    return (int64_t)(random_u32() % (uint32_t)n);
}

/* Uniform in (-1, 1), with signed zeros, subnormals and larger numbers among them, and what is special if asked for. */
static inline float random_float(void) {
    const float sign = (random_u32() & 1) != 0 ? -1.0f : 1.0f;
    const float x = (float)(random_u32() >> 8) * 0x1p-24f;
    const uint32_t kind = random_u32() % 64;
    if (parity.special && kind >= 60)
        return kind == 60 ? NAN : sign * INFINITY;
    if (kind < 4)
        return sign * 0.0f;
    if (kind < 8)
        return sign * x * 0x1p-128f;
    return kind < 12 ? sign * x * 64.0f : sign * x;
}

/* n floats at a place that is aligned to 4 bytes and no more, three times of four. */
static inline float *pool_floats(int64_t n) {
    return pool_bytes((size_t)n * sizeof(float), (size_t)random_below(4) * sizeof(float));
}

static inline float *pool_random(int64_t n) {
    float *x = pool_floats(n);
    for (int64_t i = 0; i < n; i++)
        x[i] = random_float();
    return x;
}

static inline float *pool_positive(int64_t n) {
    float *x = pool_random(n);
    for (int64_t i = 0; i < n; i++)
        x[i] = 0.125f + fabsf(x[i]);
    return x;
}

/* Numbers in [low, high). */
static inline int32_t *pool_ids(int64_t n, int64_t low, int64_t high) {
    int32_t *ids = pool_bytes((size_t)n * sizeof *ids, sizeof *ids);
    for (int64_t i = 0; i < n; i++)
        ids[i] = (int32_t)(low + random_below(high - low));
    return ids;
}

static inline double *pool_doubles(int64_t n) {
    double *x = pool_bytes((size_t)n * sizeof *x, sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = fabs((double)random_float());
    return x;
}

/* ---- running ---------------------------------------------------------------------------------------------------- */

/* Scratch with NaN in every word, so that a kernel which reads what it never wrote is found. */
static inline void *parity_scratch(const KernelCtx *ctx, int thread, size_t nbytes) {
    (void)ctx;
    assert_int_equal(thread, 0);
    CUDA_DONE(cudaStreamSynchronize(parity.stream));
    if (nbytes > parity.scratch_nbytes) {
        CUDA_DONE(cudaFree(parity.scratch));
        CUDA_DONE(cudaMalloc(&parity.scratch, nbytes));
        parity.scratch_nbytes = nbytes;
    }
    CUDA_DONE(cudaMemsetAsync(parity.scratch, 0xff, parity.scratch_nbytes, parity.stream));
    return parity.scratch;
}

/* A copy of the arguments in which every word that points into the host's pool points into the device's. */
static inline void parity_translate(void *to, const void *args, size_t nbytes) {
    memcpy(to, args, nbytes);
    for (size_t i = 0; i + sizeof(uintptr_t) <= nbytes; i += sizeof(uintptr_t)) {
        uintptr_t word;
        memcpy(&word, (unsigned char *)to + i, sizeof word);
        const uintptr_t offset = word - (uintptr_t)parity.host;
        if (offset > POOL_NBYTES)
            continue;
        word = (uintptr_t)parity.device + offset;
        memcpy((unsigned char *)to + i, &word, sizeof word);
    }
}

static inline bool is_nan_word(uint32_t word) {
    return (word & 0x7fffffffu) > 0x7f800000u;
}

static inline void parity_compare(const char *kernel) {
    size_t wrong = 0;
    for (size_t i = 0; i < parity.used; i += sizeof(uint32_t)) {
        uint32_t want, got;
        memcpy(&want, parity.host + i, sizeof want);
        memcpy(&got, parity.result + i, sizeof got);
        if (want == got || (is_nan_word(want) && is_nan_word(got)))
            continue;
        if (wrong++ < POOL_SHOWN)
            print_error("%s: byte %zu of the pool: %08" PRIx32 " on the device, %08" PRIx32 " on the CPU\n", kernel, i,
                        got, want);
    }
    if (wrong > 0)
        fail_msg("%s, %s: %zu words differ", kernel, parity.what, wrong);
}

static inline void parity_run(KernelId id, const void *args, size_t nbytes, const char *kernel) {
    unsigned char translated[512];
    assert_true(nbytes <= sizeof translated);
    parity_translate(translated, args, nbytes);
    const KernelCtx ctx = {.nthreads = 1, .scratch = parity_scratch, .stream = parity.stream};
    CUDA_DONE(cudaMemcpy(parity.device, parity.host, parity.used, cudaMemcpyHostToDevice));
    kernels_cuda.fn[id](&ctx, translated);
    CUDA_DONE(cudaStreamSynchronize(parity.stream));
    CUDA_DONE(cudaMemcpy(parity.result, parity.device, parity.used, cudaMemcpyDeviceToHost));
    kernels_cpu_generic.fn[id](test_kernel_ctx(1), args);
    parity_compare(kernel);
    parity.ran[id] = true;
}

/* Stray bytes between the arguments could pass for a pointer. */
#define PARITY_RUN(id, args)                                                                                           \
    do {                                                                                                               \
        __typeof__(*(args)) parity_args_ = *(args);                                                                    \
        __builtin_clear_padding(&parity_args_);                                                                        \
        parity_run(KERNEL_##id, &parity_args_, sizeof parity_args_, #id);                                              \
    } while (0)

#endif
