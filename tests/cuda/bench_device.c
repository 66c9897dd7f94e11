/* The exact matrix product and Newton-Schulz on a whole device: bench_device NAME [DIVISOR [fast]]. Wall time between
 * an idle stream and an idle stream; the dims are divided by DIVISOR, for a try on a device that is no accelerator.
 * `fast`: Newton-Schulz alone, with products in fp16. One JSON object on stdout; peak_tflops null where the device's is
 * not listed. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "optim/newton_schulz.h"
#include "tests/bench/bench.h"
#include "tests/cuda/pin.h"

enum { ROUNDS = 5 };

typedef struct Size {
    int64_t m, n, k;
} Size;

static const Size products[] = {{2048, 2048, 2048}, {4096, 4096, 4096}, {4096, 14336, 4096}, {4096, 4096, 14336}};
static const Size matrices[] = {{2048, 2048, 0}, {3072, 8192, 0}, {4096, 14336, 0}};
#define NMATRICES (sizeof matrices / sizeof matrices[0])

/* Random numbers, as far as they go: a product takes as long on any. */
static float *random_block(Stream *stream, Arena *arena, int64_t n) {
    float *block = arena_push(arena, (size_t)n * sizeof *block);
    float *host = bench_random(n);
    device_copy_from_host(stream, block, host, (size_t)n * sizeof *block);
    stream_sync(stream);
    free(host);
    return block;
}

static double gemm_seconds(Stream *stream, Size size) {
    Arena arena;
    const size_t nbytes = (size_t)(size.m * size.k + size.k * size.n + size.m * size.n) * sizeof(float) + 4096;
    bench_check(device_arena_init(stream_device(stream), &arena, nbytes, "operands") == STATUS_OK, "no memory");
    const Gemm gemm = {.m = size.m,
                       .n = size.n,
                       .nparts = 1,
                       .part = {{.a = random_block(stream, &arena, size.m * size.k),
                                 .b = random_block(stream, &arena, size.k * size.n),
                                 .lda = size.k,
                                 .ldb = size.n,
                                 .k = size.k,
                                 .segment = size.k}},
                       .nsegments = 1,
                       .c = random_block(stream, &arena, size.m * size.n),
                       .ldc = size.n};
    double time[ROUNDS + 1];
    for (int round = 0; round <= ROUNDS; round++) {
        const int64_t begin = clock_ns();
        ops_gemm(stream, gemm);
        stream_sync(stream);
        time[round] = clock_ms_since(begin) * 1e-3;
    }
    device_arena_deinit(stream_device(stream), &arena);
    return bench_median(time + 1, ROUNDS); /* the first one loads the kernel */
}

static NsPlan plan_of(Size size) {
    const NsConfig config = {.algorithm = NS_AUTO, .steps = 5, .restarts = {2}, .restart_count = 1};
    return ns_plan(&config, size.m, size.n, -1, 1);
}

static double ns_seconds(Stream *stream, Size size) {
    Arena arena;
    const NsPlan plan = plan_of(size);
    const size_t nbytes = (size_t)(size.m * size.n + ns_scratch_nelem(&plan, 1)) * sizeof(float) + 4096;
    bench_check(device_arena_init(stream_device(stream), &arena, nbytes, "matrix") == STATUS_OK, "no memory");
    float *x = random_block(stream, &arena, size.m * size.n);
    float *scratch = arena_push(&arena, (size_t)ns_scratch_nelem(&plan, 1) * sizeof *scratch);
    const NsPlan *only = &plan;
    const NsBatch one = {.count = 1, .plan = &only, .x = &x};
    double time[ROUNDS + 1];
    for (int round = 0; round <= ROUNDS; round++) {
        const int64_t begin = clock_ns();
        ns_run(&one, stream, scratch);
        stream_sync(stream);
        time[round] = clock_ms_since(begin) * 1e-3;
    }
    device_arena_deinit(stream_device(stream), &arena);
    return bench_median(time + 1, ROUNDS);
}

static void print_products(Stream *stream, int64_t divisor, double peak) {
    double best = 0.0;
    printf("\"products\": [");
    for (size_t i = 0; i < sizeof products / sizeof products[0]; i++) {
        const Size s = {products[i].m / divisor, products[i].n / divisor, products[i].k / divisor};
        const double rate = 2e-12 * (double)s.m * (double)s.n * (double)s.k / gemm_seconds(stream, s);
        best = rate > best ? rate : best;
        printf("%s{\"m\": %d, \"n\": %d, \"k\": %d, \"tflops\": %.4f}", i == 0 ? "" : ", ", (int)s.m, (int)s.n,
               (int)s.k, rate);
    }
    printf("], \"best_tflops\": %.4f, ", best);
    if (peak > 0)
        printf("\"peak_tflops\": %.2f, \"of_peak\": %.3f, ", 1e-12 * peak, 1e12 * best / peak);
    else
        printf("\"peak_tflops\": null, \"of_peak\": null, ");
}

static Size divided(size_t i, int64_t divisor) {
    return (Size){matrices[i].m / divisor, matrices[i].n / divisor, 0};
}

static void pin(Device *device, int64_t divisor) {
    ProductList list = {0};
    for (size_t i = 0; i < NMATRICES; i++) {
        const NsPlan plan = plan_of(divided(i, divisor));
        ns_products(&plan, 1, &list);
    }
    pin_products(device, &list);
}

static void print_newton_schulz(Stream *stream, int64_t divisor) {
    printf("\"newton_schulz\": [");
    for (size_t i = 0; i < NMATRICES; i++) {
        const Size s = divided(i, divisor);
        printf("%s{\"m\": %d, \"n\": %d, \"ms\": %.4f}", i == 0 ? "" : ", ", (int)s.m, (int)s.n,
               1e3 * ns_seconds(stream, s));
    }
    printf("]}\n");
}

int main(int argc, char **argv) {
    Device *device;
    const char *name = argc > 1 ? argv[1] : "cpu";
    const int64_t divisor = argc > 2 ? strtoll(argv[2], NULL, 10) : 1;
    const bool fast = argc > 3 && strcmp(argv[3], "fast") == 0;
    bench_check(divisor >= 1 && divisor <= 512 && (fast || argc <= 3), "usage: bench_device NAME [DIVISOR [fast]]");
    const DeviceOptions options = {.name = name, .threads = 1, .compute = fast ? DEVICE_BF16 : DEVICE_EXACT};
    if (device_create(&device, &options) != STATUS_OK)
        bench_check(false, status_trail());
    Stream *stream = device_stream(device, STREAM_COMPUTE);
    printf("{\"device\": \"%s\", ", device_name(device));
    if (fast)
        pin(device, divisor);
    else
        print_products(stream, divisor, device_listed_flops(device));
    print_newton_schulz(stream, divisor);
    device_destroy(device);
    return 0;
}
