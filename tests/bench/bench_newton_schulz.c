/* Newton-Schulz on the Gram matrix, five steps and one restart, as a share of what the matrix product reaches in the
 * same run. Counted are the products that the contract needs, a symmetric one by half: 6 m^2 n + 17 m^3.
 * One JSON object on stdout. */
#include <string.h>

#include "optim/newton_schulz.h"
#include "tests/bench/bench.h"

typedef struct Size {
    int64_t m, n;
    int rounds;
} Size;

static const Size sizes[] = {{512, 1376, 15}, {2048, 8192, 3}};
enum { NSIZES = sizeof sizes / sizeof sizes[0], MAX_ROUNDS = 15 };

static double measure(Stream *stream, Size size, const Gemm *gemm, bool first) {
    const NsConfig config = {.algorithm = NS_GRAM, .steps = 5, .restarts = {2}, .restart_count = 1};
    const NsPlan plan = ns_plan(&config, size.m, size.n, -1, 1);
    const double m = (double)size.m, n = (double)size.n, gflop = 1e-9 * (6 * m * m * n + 17 * m * m * m);
    const float *start = bench_random(size.m * size.n);
    float *x = bench_random(size.m * size.n), *scratch = bench_random(ns_scratch_nelem(&plan, 1));
    const NsPlan *only = &plan;
    const NsBatch one = {.count = 1, .plan = &only, .x = &x};
    double time[MAX_ROUNDS], peak[MAX_ROUNDS];
    for (int round = 0; round < size.rounds; round++) {
        peak[round] = bench_peak(stream, gemm);
        memcpy(x, start, (size_t)(size.m * size.n) * sizeof *x);
        const double begin = bench_seconds();
        ns_run(&one, stream, scratch);
        time[round] = bench_seconds() - begin;
    }
    const double rate = gflop / bench_median(time, size.rounds);
    const double best = bench_median(peak, size.rounds);
    printf(
        "%s\n  {\"m\": %d, \"n\": %d, \"plan_gflop\": %.2f, \"gflops\": %.1f, \"peak_gflops\": %.1f, \"ratio\": %.3f}",
        first ? "" : ",", (int)size.m, (int)size.n, 1e-9 * ns_flops(&plan), rate, best, rate / best);
    (void)fflush(stdout);
    free(x);
    free(scratch);
    free((void *)(uintptr_t)start);
    return rate / best;
}

int main(void) {
    Device *device;
    bench_check(device_create(&device, &(DeviceOptions){.name = "cpu", .threads = 1}) == STATUS_OK, "no device");
    Stream *stream = device_stream(device, STREAM_COMPUTE);
    const Gemm gemm = bench_peak_gemm();
    double lowest = 1e9;
    printf("{\"sizes\": [");
    for (int i = 0; i < NSIZES; i++) {
        const double ratio = measure(stream, sizes[i], &gemm, i == 0);
        lowest = ratio < lowest ? ratio : lowest;
    }
    printf("\n ],\n \"ns_gram_vs_peak\": %.3f}\n", lowest);
    device_destroy(device);
    return 0;
}
