/* One process: kernels and their vocabulary, memory, handles; each bug of the command line is one misuse of them. */
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdint.h>

#include "tests/cuda_standin/selftest/check.h"
#include "tests/cuda_standin/selftest/kernels.h"

#define N 1000
#define THREADS 96
#define BIG_TILE 16384 /* 64 KiB of shared memory: more than a block has without asking */

const char *planted = "";

static cudaStream_t stream;
static float *x, *y;  /* device, [N] */
static float *pinned; /* [N] */

static void open_all(void) {
    int count = 0;
    struct cudaDeviceProp properties;
    OK(cudaGetDeviceCount(&count));
    OK(cudaGetDeviceProperties(&properties, count - 1));
    OK(cudaSetDevice(0));
    OK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, -1));
    OK(cudaMalloc((void **)&x, N * sizeof(float)));
    OK(cudaMalloc((void **)&y, N * sizeof(float)));
    OK(cudaMallocHost((void **)&pinned, N * sizeof(float)));
    for (int i = 0; i < N; i++)
        pinned[i] = (float)(i % 9);
    OK(cudaMemcpyAsync(x, pinned, N * sizeof(float), cudaMemcpyHostToDevice, stream));
    OK(cudaMemsetAsync(y, 0, N * sizeof(float), stream));
    OK(cudaStreamSynchronize(stream));
}

static void close_all(void) {
    if (!bug("leak"))
        OK(cudaFree(x));
    OK(cudaFree(y));
    OK(cudaFreeHost(pinned));
    OK(cudaStreamDestroy(stream));
}

static int check_row_sum(void) {
    int wrong = 0;
    OK(row_sum_launch(y, x, 4, 250, !bug("kernel_race"), stream));
    OK(cudaMemcpyAsync(pinned, y, 4 * sizeof(float), cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
    for (int r = 0; r < 4; r++) {
        float want = 0.0f;
        for (int i = r * 250; i < (r + 1) * 250; i++)
            want += (float)(i % 9);
        wrong += !(pinned[r] == want);
    }
    return wrong;
}

static int check_shared(void) {
    int wrong = 0;
    float *big, *host;
    OK(cudaMalloc((void **)&big, BIG_TILE * sizeof(float)));
    OK(cudaMallocHost((void **)&host, BIG_TILE * sizeof(float)));
    for (int i = 0; i < BIG_TILE; i++)
        host[i] = (float)i;
    OK(cudaMemcpyAsync(big, host, BIG_TILE * sizeof(float), cudaMemcpyHostToDevice, stream));
    if (!bug("shared_limit"))
        OK(reverse_allow(BIG_TILE));
    OK(reverse_launch(big, big, BIG_TILE, BIG_TILE, stream));
    OK(cudaMemcpyAsync(host, big, BIG_TILE * sizeof(float), cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
    for (int i = 0; i < BIG_TILE; i++)
        wrong += !(host[i] == (float)(BIG_TILE - 1 - i));
    OK(cudaFree(big));
    OK(cudaFreeHost(host));
    return wrong;
}

static double warp_expected(int t, int i) {
    const int lane = t % 32, warp = t - lane;
    const double want[WARP_RESULTS] = {t ^ 5,
                                       lane + 3 < 32 ? t + 3 : t,
                                       (lane >= 2 ? t - 2 : t) + 0.25,
                                       warp + 7,
                                       t ^ 1,
                                       lane % 16 + 6 < 16 ? t + 6 : t,
                                       0x49249249,
                                       1,
                                       0,
                                       warp + (lane < 16 ? 2 : 18),
                                       5 * THREADS / 32,
                                       1,
                                       0,
                                       16 + 4 + 31,
                                       t,
                                       2 * t + 1};
    return want[i];
}

static int check_warp_functions(void) {
    int wrong = 0;
    double *out, *host;
    const size_t nbytes = THREADS * WARP_RESULTS * sizeof(double);
    OK(cudaMalloc((void **)&out, nbytes));
    OK(cudaMallocHost((void **)&host, nbytes));
    OK(warp_functions_launch(out, THREADS, stream));
    OK(cudaMemcpyAsync(host, out, nbytes, cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
    for (int t = 0; t < THREADS; t++) {
        for (int i = 0; i < WARP_RESULTS; i++) {
            if (host[t * WARP_RESULTS + i] == warp_expected(t, i))
                continue;
            fprintf(stderr, "WRONG: thread %d function %d: %g, not %g\n", t, i, host[t * WARP_RESULTS + i],
                    warp_expected(t, i));
            wrong++;
        }
    }
    OK(cudaFree(out));
    OK(cudaFreeHost(host));
    return wrong;
}

static int check_window(void) {
    int wrong = 0;
    float *host_y = pinned; /* not the device's: the bug */
    OK(fill_window_launch((Window){bug("host_window") ? host_y : y, 8, 100}, stream));
    OK(cudaMemcpyAsync(pinned, y + 8, 100 * sizeof(float), cudaMemcpyDeviceToHost, stream));
    while (cudaStreamQuery(stream) == cudaErrorNotReady)
        (void)cudaGetLastError();
    for (int i = 0; i < 100; i++)
        wrong += !(pinned[i] == (float)i);
    return wrong;
}

/* Misuses of memory and of kernels. */
static void misuse_memory(void) {
    float local[4] = {0}, *freed;
    volatile float *device = y;
    OK(cudaMalloc((void **)&freed, 4096));
    OK(cudaFree(freed));
    if (bug("host_read"))
        local[0] = device[3];
    if (bug("host_write"))
        device[3] = local[0];
    if (bug("free_twice"))
        OK(cudaFree(freed));
    if (bug("use_after_free"))
        OK(add_scaled_launch(freed, x, 1.0f, 4, stream));
    if (bug("out_of_bounds"))
        OK(add_scaled_launch(y, x, 1.0f, N + 64, stream));
    if (bug("slack"))
        OK(fill_window_launch((Window){y, N, 1}, stream));
    if (bug("host_pointer"))
        OK(add_scaled_launch(y, local, 1.0f, 4, stream));
    if (bug("pinned_pointer"))
        OK(add_scaled_launch(y, pinned, 1.0f, 4, stream));
    if (bug("copy_range"))
        OK(cudaMemcpyAsync(y + 1, x, N * sizeof(float), cudaMemcpyDeviceToDevice, stream));
    if (bug("copy_kind"))
        OK(cudaMemcpyAsync(pinned, x, 4, cudaMemcpyHostToDevice, stream));
    if (bug("free_in_use")) {
        OK(add_scaled_launch(y, x, 0.0f, N, stream));
        OK(cudaFree(y));
    }
}

static void misuse_kernels(void) {
    if (bug("divergent_barrier"))
        OK(wrong_launch(WRONG_DIVERGENT_BARRIER, y, stream));
    if (bug("absent_lanes"))
        OK(wrong_launch(WRONG_ABSENT_LANES, y, stream));
    if (bug("misaligned"))
        OK(wrong_launch(WRONG_MISALIGNED, y, stream));
    if (bug("shared_overrun"))
        OK(wrong_launch(WRONG_SHARED_OVERRUN, y, stream));
    if (bug("unchecked"))
        (void)warp_functions_launch((double *)y, 2048, stream);
}

static void misuse_handles(void) {
    cudaEvent_t event;
    OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    if (bug("never_recorded"))
        OK(cudaStreamWaitEvent(stream, event, 0));
    if (bug("event_in_use")) {
        OK(cudaEventRecord(event, stream));
        OK(cudaEventDestroy(event));
    }
    OK(cudaEventDestroy(event));
    if (bug("destroyed"))
        OK(cudaEventRecord(event, stream));
    if (bug("stream_in_use")) {
        OK(cudaMemsetAsync(y, 0, 4, stream));
        OK(cudaStreamDestroy(stream));
    }
    if (bug("exit")) {
        OK(cudaMemsetAsync(y, 0, 4, stream));
        exit(0);
    }
    if (bug("other_gpu")) {
        OK(cudaSetDevice(1));
        OK(cudaMemsetAsync(y, 0, 4, stream));
    }
}

int main(int argc, char **argv) {
    planted = argc > 1 ? argv[1] : "";
    open_all();
    int wrong = check_row_sum();
    wrong += check_shared();
    wrong += check_warp_functions();
    wrong += check_window();
    misuse_memory();
    misuse_kernels();
    misuse_handles();
    OK(cudaStreamSynchronize(stream));
    close_all();
    if (wrong != 0)
        fprintf(stderr, "WRONG: %d values\n", wrong);
    return wrong != 0 ? WRONG_EXIT : 0;
}
