/* What the benchmarks share: processor time of this thread, which leaves out what the rest of the machine takes, and
 * medians. Header only, because each benchmark is one program of one file. */
#ifndef DMUON_TESTS_BENCH_BENCH_H
#define DMUON_TESTS_BENCH_BENCH_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/status.h"
#include "device/device.h"
#include "tensor/ops.h"

static inline double bench_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline int bench_by_value(const void *left, const void *right) {
    const double l = *(const double *)left, r = *(const double *)right;
    return (l > r) - (l < r);
}

static inline double bench_median(double *x, int n) {
    qsort(x, (size_t)n, sizeof *x, bench_by_value);
    return x[n / 2];
}

static inline void bench_check(bool ok, const char *what) {
    if (ok)
        return;
    (void)fprintf(stderr, "bench: %s\n", what);
    exit(1);
}

/* n numbers in [-1, 1), 64-byte aligned. */
static inline float *bench_random(int64_t n) {
    static uint32_t state = 1;
    float *x = aligned_alloc(64, (size_t)(n + 15) / 16 * 16 * sizeof *x);
    bench_check(x != NULL, "no memory");
    for (int64_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = (float)(state >> 8) / 8388608.0f - 1.0f;
    }
    return x;
}

/* The yardstick: the exact matrix product where it is fastest, both operands in the second-level cache's reach. */
enum { BENCH_PEAK_DIM = 768 };

static inline Gemm bench_peak_gemm(void) {
    const int64_t n = BENCH_PEAK_DIM;
    const float *a = bench_random(n * n), *b = bench_random(n * n);
    return (Gemm){.m = n,
                  .n = n,
                  .nparts = 1,
                  .part = {{.a = a, .b = b, .lda = n, .ldb = n, .k = n, .segment = n}},
                  .nsegments = 1,
                  .c = bench_random(n * n),
                  .ldc = n};
}

/* GFLOP/s: the best of a few runs in a row, for they are short and an interrupted one says nothing of the peak. */
static inline double bench_peak(Stream *stream, const Gemm *gemm) {
    double best = 0.0;
    for (int run = 0; run < 5; run++) {
        const double start = bench_seconds();
        ops_gemm(stream, *gemm);
        const double rate = 2e-9 * (double)(gemm->m * gemm->n * gemm->part[0].k) / (bench_seconds() - start);
        best = rate > best ? rate : best;
    }
    return best;
}

#endif
