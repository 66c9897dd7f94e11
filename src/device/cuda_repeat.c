/* Launches that come again on the CUDA device's compute stream. The first time they are queued as they are: kernels are
 * loaded and their scratch grows, neither of which may happen in a recording. The second time they are recorded as a
 * graph, and from then on the graph is launched. */
#include <string.h>

#include "base/arena.h"
#include "device/cuda.h"

typedef struct CudaRepeat {
    Repeat head;
    CudaStream *stream; /* compute */
    void *key;          /* owned; NULL: nothing was queued yet */
    size_t key_nbytes;
    cudaGraphExec_t graph;  /* NULL: not recorded */
    uint64_t scratch_moves; /* of the stream, when it was: a graph names the scratch of its kernels */
    bool recording;
} CudaRepeat;

Repeat *cuda_repeat_create(Device *device) {
    CudaRepeat *repeat = HEAP_ALLOC(CudaRepeat, 1);
    repeat->head.backend = device->backend;
    repeat->stream = &cuda_device(device)->stream[STREAM_COMPUTE];
    return &repeat->head;
}

void cuda_repeat_destroy(Repeat *head) {
    CudaRepeat *repeat = (CudaRepeat *)head;
    cuda_settle(cuda_device(repeat->stream->head.device));
    if (repeat->graph != NULL)
        CUDA_DROP(cudaGraphExecDestroy(repeat->graph));
    heap_free(repeat->key);
    heap_free(repeat);
}

static void forget_graph(CudaRepeat *repeat) {
    if (repeat->graph == NULL)
        return;
    cuda_wait_stream(repeat->stream); /* it may be running */
    CUDA_OK(cudaGraphExecDestroy(repeat->graph));
    repeat->graph = NULL;
}

static bool same_key(const CudaRepeat *repeat, const void *key, size_t nbytes) {
    return repeat->key != NULL && repeat->key_nbytes == nbytes && memcmp(repeat->key, key, nbytes) == 0;
}

static void set_key(CudaRepeat *repeat, const void *key, size_t nbytes) {
    heap_free(repeat->key);
    repeat->key = heap_alloc(nbytes);
    repeat->key_nbytes = nbytes;
    memcpy(repeat->key, key, nbytes);
}

static void launch(const CudaRepeat *repeat) {
    CUDA_OK(cudaGraphLaunch(repeat->graph, repeat->stream->handle));
}

bool cuda_repeat_begin(Repeat *head, const void *key, size_t nbytes) {
    CudaRepeat *repeat = (CudaRepeat *)head;
    const CudaStream *stream = repeat->stream;
    const bool same = same_key(repeat, key, nbytes);
    if (same && repeat->graph != NULL && repeat->scratch_moves == stream->scratch_moves) {
        launch(repeat);
        return true;
    }
    forget_graph(repeat);
    if (!same) {
        set_key(repeat, key, nbytes);
        return false;
    }
    /* Other threads queue on their own streams meanwhile, and allocate. */
    CUDA_OK(cudaStreamBeginCapture(stream->handle, cudaStreamCaptureModeThreadLocal));
    repeat->scratch_moves = stream->scratch_moves;
    repeat->recording = true;
    return false;
}

void cuda_repeat_end(Repeat *head) {
    CudaRepeat *repeat = (CudaRepeat *)head;
    cudaGraph_t recorded = NULL;
    if (!repeat->recording)
        return;
    repeat->recording = false;
    CUDA_OK(cudaStreamEndCapture(repeat->stream->handle, &recorded));
    CUDA_OK(cudaGraphInstantiate(&repeat->graph, recorded, 0));
    CUDA_OK(cudaGraphDestroy(recorded));
    launch(repeat);
}
