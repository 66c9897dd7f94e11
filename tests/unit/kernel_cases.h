/* Running one kernel on every vector unit of this processor with one to three threads, and comparing all that it wrote
 * with a scalar reference, bit for bit; buffers stand between sentinels. */
#ifndef DMUON_TESTS_UNIT_KERNEL_CASES_H
#define DMUON_TESTS_UNIT_KERNEL_CASES_H

#include <stdio.h>
#include <stdlib.h>

#include "kernels/kernels.h"
#include "tests/fixtures/kernel_ctx.h"
#include "tests/unit/bits.h"

enum { CASES_MARGIN = 64, CASES_MAX_BUFFERS = 64, CASES_MAX_OUTPUTS = 4, CASES_MAX_THREADS = 3, CASES_LANES = 32 };

/* ---- tables ----------------------------------------------------------------------------------------------------- */

typedef struct CasesTables {
    const KernelTable *table[3];
    int count;
} CasesTables;

static inline CasesTables cases_tables(void) {
    CasesTables tables = {.table = {&kernels_cpu_generic}, .count = 1};
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (avx2)
        tables.table[tables.count++] = &kernels_cpu_avx2;
    if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
        tables.table[tables.count++] = &kernels_cpu_avx512;
    return tables;
}

/* ---- buffers ---------------------------------------------------------------------------------------------------- */

typedef struct CasesBuffer {
    unsigned char *block; /* owned */
    size_t nbytes;
} CasesBuffer;

static CasesBuffer cases_buffers[CASES_MAX_BUFFERS];
static int cases_nbuffers;

/* nbytes between two margins of 0xA5; the content is 0xA5 too. Freed by cases_end. */
static inline void *cases_bytes(size_t nbytes) {
    if (cases_nbuffers == CASES_MAX_BUFFERS)
        abort();
    const size_t whole = (nbytes + 2 * CASES_MARGIN + 63) / 64 * 64;
    unsigned char *block = aligned_alloc(64, whole);
    if (block == NULL)
        abort();
    memset(block, 0xA5, whole);
    cases_buffers[cases_nbuffers++] = (CasesBuffer){.block = block, .nbytes = nbytes};
    return block + CASES_MARGIN;
}

static inline float *cases_floats(int64_t n) {
    return cases_bytes((size_t)n * sizeof(float));
}

static inline void cases_check_margins(const char *what) {
    for (int b = 0; b < cases_nbuffers; b++) {
        const CasesBuffer *buffer = &cases_buffers[b];
        for (size_t i = 0; i < CASES_MARGIN; i++)
            if (buffer->block[i] != 0xA5 || buffer->block[CASES_MARGIN + buffer->nbytes + i] != 0xA5)
                fail_msg("%s wrote outside of buffer %d of %zu bytes", what, b, buffer->nbytes);
    }
}

static inline void cases_end(void) {
    for (int b = 0; b < cases_nbuffers; b++)
        free(cases_buffers[b].block);
    cases_nbuffers = 0;
}

/* ---- random data ------------------------------------------------------------------------------------------------ */

static uint64_t cases_random_state = 1;

static inline uint32_t cases_u32(void) {
    cases_random_state = cases_random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(cases_random_state >> 32);
}

/* Uniform in (-1, 1), with signed zeros and subnormals among them. */
static inline float cases_float(void) {
    const float sign = (cases_u32() & 1) != 0 ? -1.0f : 1.0f;
    const float x = (float)(cases_u32() >> 8) * 0x1p-24f;
    switch (cases_u32() % 16) {
    case 0:
        return sign * 0.0f;
    case 1:
        return sign * x * 0x1p-128f;
    default:
        return sign * x;
    }
}

static inline float *cases_random(int64_t n) {
    float *x = cases_floats(n);
    for (int64_t i = 0; i < n; i++)
        x[i] = cases_float();
    return x;
}

static inline float *cases_copy(const float *x, int64_t n) {
    float *copy = cases_floats(n);
    memcpy(copy, x, (size_t)n * sizeof *x);
    return copy;
}

/* ---- scalar references ------------------------------------------------------------------------------------------ */

static inline float cases_fold(float lane[CASES_LANES]) {
    for (int half = 16; half >= 1; half /= 2)
        for (int l = 0; l < half; l++)
            lane[l] = lane[l] + lane[l + half];
    return lane[0];
}

static inline float cases_lane_sum(const float *x, int64_t n) {
    float lane[CASES_LANES] = {0};
    for (int64_t i = 0; i < n; i++)
        lane[i % CASES_LANES] = lane[i % CASES_LANES] + x[i];
    return cases_fold(lane);
}

static inline float cases_lane_dot(const float *a, const float *b, int64_t n) {
    float lane[CASES_LANES] = {0};
    for (int64_t i = 0; i < n; i++)
        lane[i % CASES_LANES] = fmaf(a[i], b[i], lane[i % CASES_LANES]);
    return cases_fold(lane);
}

static inline int64_t cases_left(int64_t n) {
    int64_t left = 1;
    while (2 * left < n)
        left = 2 * left;
    return left;
}

static inline float cases_tree(const float *x, int64_t n, int64_t stride) {
    if (n == 1)
        return x[0];
    const int64_t left = cases_left(n);
    return cases_tree(x, left, stride) + cases_tree(x + left * stride, n - left, stride);
}

static inline double cases_tree64(const double *x, int64_t n) {
    if (n == 0)
        return 0.0;
    if (n == 1)
        return x[0];
    const int64_t left = cases_left(n);
    return cases_tree64(x, left) + cases_tree64(x + left, n - left);
}

/* ---- running ---------------------------------------------------------------------------------------------------- */

typedef struct CasesOutput {
    void *x; /* what the kernel writes; its content before the call is what the kernel finds */
    const void *expected;
    size_t nbytes;
} CasesOutput;

#define CASES_OUTPUT(out, want, n)                                                                                     \
    (CasesOutput) {                                                                                                    \
        .x = (out), .expected = (want), .nbytes = (size_t)(n) * sizeof *(out)                                          \
    }

static inline void cases_compare(const CasesOutput *output, const char *what) {
    if (output->nbytes % sizeof(float) != 0)
        abort();
    bits_equal_f32(output->x, output->expected, output->nbytes / sizeof(float), what, __FILE__, __LINE__);
}

static inline void cases_run_once(const KernelTable *table, int nthreads, KernelId id, const void *args) {
    table->fn[id](test_kernel_ctx(nthreads), args);
}

/* Every table, one to three threads, the outputs restored before each and at the end; compares outputs and margins. */
static inline void cases_run(KernelId id, const void *args, const char *name, const CasesOutput *outputs, int count) {
    const CasesTables tables = cases_tables();
    void *before[CASES_MAX_OUTPUTS];
    for (int o = 0; o < count; o++) {
        before[o] = malloc(outputs[o].nbytes + 1);
        if (before[o] == NULL)
            abort();
        memcpy(before[o], outputs[o].x, outputs[o].nbytes);
    }
    for (int t = 0; t < tables.count; t++) {
        for (int nthreads = 1; nthreads <= CASES_MAX_THREADS; nthreads++) {
            char what[128];
            for (int o = 0; o < count; o++)
                memcpy(outputs[o].x, before[o], outputs[o].nbytes);
            cases_run_once(tables.table[t], nthreads, id, args);
            for (int o = 0; o < count; o++) {
                (void)snprintf(what, sizeof what, "%s, output %d, %s, %d threads", name, o, tables.table[t]->name,
                               nthreads);
                cases_compare(&outputs[o], what);
            }
            cases_check_margins(what);
        }
    }
    for (int o = 0; o < count; o++) {
        memcpy(outputs[o].x, before[o], outputs[o].nbytes);
        free(before[o]);
    }
}

#define CASES_RUN(id, args, ...)                                                                                       \
    cases_run(KERNEL_##id, (args), #id, (const CasesOutput[]){__VA_ARGS__},                                            \
              (int)(sizeof((const CasesOutput[]){__VA_ARGS__}) / sizeof(CasesOutput)))

#endif
