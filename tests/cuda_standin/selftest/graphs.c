/* One process records work as graphs and launches them; each bug of the command line is one misuse of that. */
#include <cuda_runtime_api.h>
#include <pthread.h>

#include "tests/cuda_standin/selftest/check.h"
#include "tests/cuda_standin/selftest/kernels.h"

#define N 300
#define ROUNDS 6

const char *planted = "";

static cudaStream_t stream;
static float *x, *copy, *total; /* device, [N] */
static float *pinned;           /* [ROUNDS][N] */
static cudaEvent_t event;

static float *device_floats(void) {
    float *at;
    OK(cudaMalloc((void **)&at, N * sizeof(float)));
    OK(cudaMemsetAsync(at, 0, N * sizeof(float), stream));
    return at;
}

static void open_all(void) {
    OK(cudaSetDevice(0));
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    OK(cudaMallocHost((void **)&pinned, ROUNDS * N * sizeof(float)));
    x = device_floats();
    copy = device_floats();
    total = device_floats();
    OK(cudaEventRecord(event, stream));
}

static void close_all(void) {
    OK(cudaFree(x));
    OK(cudaFree(copy));
    OK(cudaFree(total));
    OK(cudaFreeHost(pinned));
    OK(cudaEventDestroy(event));
    OK(cudaStreamDestroy(stream));
}

/* What must not stand in a recording. */
static void misuse_recording(void) {
    cudaGraph_t graph;
    void *memory;
    if (bug("query"))
        OK(cudaStreamQuery(stream));
    if (bug("synchronize"))
        OK(cudaStreamSynchronize(stream));
    if (bug("device"))
        OK(cudaDeviceSynchronize());
    if (bug("ask_event"))
        OK(cudaEventQuery(event));
    if (bug("await_event"))
        OK(cudaEventSynchronize(event));
    if (bug("record_event"))
        OK(cudaEventRecord(event, stream));
    if (bug("wait_event"))
        OK(cudaStreamWaitEvent(stream, event, 0));
    if (bug("allocate"))
        OK(cudaMalloc(&memory, 4));
    if (bug("free"))
        OK(cudaFree(copy));
    if (bug("host_copy"))
        OK(cudaMemcpyAsync(x, pinned, 4, cudaMemcpyHostToDevice, stream));
    if (bug("twice"))
        OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    if (bug("destroy_stream"))
        OK(cudaStreamDestroy(stream));
    if (bug("exit"))
        exit(0);
    if (bug("end_twice"))
        OK(cudaStreamEndCapture(stream, &graph));
}

static void *end_elsewhere(void *graph) {
    OK(cudaSetDevice(0));
    OK(cudaStreamEndCapture(stream, graph));
    return NULL;
}

/* copy = 0; copy += x by way of a copy; total += 2*copy */
static cudaGraphExec_t record(void) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    pthread_t other;
    OK(cudaStreamBeginCapture(stream, bug("global") ? cudaStreamCaptureModeGlobal : cudaStreamCaptureModeThreadLocal));
    OK(cudaMemsetAsync(copy, 0, N * sizeof(float), stream));
    OK(cudaMemcpyAsync(copy, x, N * sizeof(float), cudaMemcpyDeviceToDevice, stream));
    OK(add_scaled_launch(total, copy, 2.0f, N, stream));
    misuse_recording();
    if (bug("other_thread")) {
        OK(pthread_create(&other, NULL, end_elsewhere, &graph));
        OK(pthread_join(other, NULL));
    } else {
        OK(cudaStreamEndCapture(stream, &graph));
    }
    OK(cudaGraphInstantiate(&exec, graph, 0));
    if (!bug("leak_graph"))
        OK(cudaGraphDestroy(graph));
    if (bug("destroyed_graph"))
        OK(cudaGraphInstantiate(&exec, graph, 0));
    return exec;
}

/* Meanwhile other threads may do what the one that records may not. */
static void *allocate_elsewhere(void *unused) {
    float *at;
    cudaStream_t own;
    OK(cudaSetDevice(0));
    OK(cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking));
    OK(cudaMalloc((void **)&at, N * sizeof(float)));
    OK(cudaMemsetAsync(at, 0, N * sizeof(float), own));
    OK(cudaStreamSynchronize(own));
    OK(cudaFree(at));
    if (bug("foreign_work"))
        OK(cudaMemsetAsync(copy, 0, 4, stream));
    OK(cudaStreamDestroy(own));
    return unused;
}

static void check_threads(void) {
    pthread_t other;
    cudaGraph_t graph;
    OK(cudaStreamBeginCapture(stream, bug("global") ? cudaStreamCaptureModeGlobal : cudaStreamCaptureModeThreadLocal));
    OK(pthread_create(&other, NULL, allocate_elsewhere, NULL));
    OK(pthread_join(other, NULL));
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphDestroy(graph));
}

static void misuse_graph(cudaGraphExec_t exec) {
    if (bug("freed_memory")) {
        OK(cudaFree(copy));
        OK(cudaGraphLaunch(exec, stream));
    }
    if (bug("in_use")) {
        OK(cudaGraphLaunch(exec, stream));
        OK(cudaGraphExecDestroy(exec));
    }
    if (bug("into_recording")) {
        OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        OK(cudaGraphLaunch(exec, stream));
    }
    if (bug("default_stream"))
        OK(cudaStreamBeginCapture(NULL, cudaStreamCaptureModeThreadLocal));
}

static int check_total(cudaGraphExec_t exec) {
    int wrong = 0;
    for (int round = 0; round < ROUNDS; round++) {
        float *mine = pinned + round * N;
        for (int i = 0; i < N; i++)
            mine[i] = (float)(round * i % 17);
        OK(cudaMemcpyAsync(x, mine, N * sizeof(float), cudaMemcpyHostToDevice, stream));
        OK(cudaGraphLaunch(exec, stream));
    }
    OK(cudaStreamSynchronize(stream));
    OK(cudaMemcpyAsync(pinned, total, N * sizeof(float), cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
    for (int i = 0; i < N; i++) {
        float want = 0.0f;
        for (int round = 0; round < ROUNDS; round++)
            want += 2.0f * (float)(round * i % 17);
        wrong += !(pinned[i] == want);
    }
    return wrong;
}

int main(int argc, char **argv) {
    planted = argc > 1 ? argv[1] : "";
    open_all();
    const cudaGraphExec_t exec = record();
    check_threads();
    const int wrong = check_total(exec);
    misuse_graph(exec);
    if (!bug("leak_exec"))
        OK(cudaGraphExecDestroy(exec));
    if (bug("destroyed"))
        OK(cudaGraphLaunch(exec, stream));
    OK(cudaStreamSynchronize(stream));
    close_all();
    if (wrong != 0)
        fprintf(stderr, "WRONG: %d values\n", wrong);
    return wrong != 0 ? WRONG_EXIT : 0;
}
