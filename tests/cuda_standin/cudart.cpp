/* The subset of the CUDA runtime's API that the engine uses, with the strictness that a test wants: what CUDA leaves
 * undefined, or makes quietly synchronous, is a fault. Releases (free, destroy) are not counted among the calls that
 * can be made to fail: they only repeat earlier errors. */
#include "cudart.h"

#include <cuda_runtime.h>
#include <execinfo.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "graph.h"
#include "mem.h"
#include "schedule.h"

namespace standin {

struct CopyOp : Op {
    void *to = nullptr;
    const void *from = nullptr;
    size_t nbytes = 0;
    const char *direction = "";
    Step step() override {
        count("bytes", direction, (int64_t)nbytes);
        memmove(to, from, nbytes);
        return Step::DONE;
    }
};

struct SetOp : Op {
    void *to = nullptr;
    int value = 0;
    size_t nbytes = 0;
    Step step() override {
        memset(to, value, nbytes);
        return Step::DONE;
    }
};

static void check_side(const char *api, const char *side, const void *p, size_t nbytes, bool device, bool later) {
    if (device)
        check_device_range(api, side, p, nbytes);
    else if (is_device_memory(p))
        fault("%s: %s = %p is device memory, and the kind of the copy says host", api, side, p);
    else if (later && nbytes != 0 && !is_pinned(p, nbytes))
        fault("%s: %s = %p is not pinned host memory: the copy would not be asynchronous", api, side, p);
}

/* What the host will find before the copy has run is nobody's data: it is made to look so, unless other queued work
 * still uses the place. */
static void spoil(void *to, size_t nbytes) {
    if (!is_used((const char *)to, nbytes))
        memset(to, 0xff, nbytes);
}

static void copy(void *to, const void *from, size_t nbytes, cudaMemcpyKind kind, cudaStream_t stream, const char *api) {
    const bool later = stream != nullptr;
    bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (kind == cudaMemcpyDefault) {
        to_device = is_device_memory(to);
        from_device = is_device_memory(from);
    }
    check_side(api, "destination", to, nbytes, to_device, later);
    check_side(api, "source", from, nbytes, from_device, later);
    const char *direction = to_device ? (from_device ? "D2D" : "H2D") : from_device ? "D2H" : "H2H";
    if (later && from_device && !to_device && nbytes != 0)
        spoil(to, nbytes);
    CopyOp *op = new CopyOp;
    op->to = to;
    op->from = from;
    op->nbytes = nbytes;
    op->direction = direction;
    op->repeats = to_device && from_device;
    op->describe("copy %s of %zu bytes", direction, nbytes);
    op->use(to, nbytes);
    op->use(from, nbytes);
    enqueue(stream, op, api);
}

/* ---- start and end ---------------------------------------------------------------------------------------------- */

static void at_exit(int status, void *) {
    const Lock lock;
    counts_write();
    if (status != 0)
        return;
    check_unnoticed_errors();
    check_recordings_ended();
    check_queues_empty();
    memory_check_margins();
    check_leaks();
}

__attribute__((constructor)) static void start() {
    void *frames[2];
    backtrace(frames, 2); /* loads what it needs before it is called in a signal handler */
    settings();
    memory_start();
    streams_start();
    schedule_start();
    on_exit(at_exit, nullptr);
}

} // namespace standin

using namespace standin;

STANDIN_API cudaError_t cudaDeviceSynchronize() {
    API_CALL(cudaErrorLaunchFailure);
    check_not_recording(__func__);
    wait_device(__func__);
    return cudaSuccess;
}

/* ---- memory ----------------------------------------------------------------------------------------------------- */

STANDIN_API cudaError_t cudaMalloc(void **p, size_t nbytes) {
    API_CALL(cudaErrorMemoryAllocation);
    check_not_recording(__func__);
    *p = nbytes != 0 ? memory_allocate(nbytes) : nullptr;
    return *p != nullptr || nbytes == 0 ? cudaSuccess : keep_error(cudaErrorMemoryAllocation, __func__);
}

STANDIN_API cudaError_t cudaFree(void *p) {
    const Lock lock;
    check_not_recording(__func__);
    if (p != nullptr)
        memory_free(p);
    return cudaSuccess;
}

static cudaError_t pinned_give(void **p, size_t nbytes, const char *api) {
    *p = nbytes != 0 ? pinned_allocate(nbytes) : nullptr;
    return *p != nullptr || nbytes == 0 ? cudaSuccess : keep_error(cudaErrorMemoryAllocation, api);
}

STANDIN_API cudaError_t cudaMallocHost(void **p, size_t nbytes) {
    API_CALL(cudaErrorMemoryAllocation);
    check_not_recording(__func__);
    return pinned_give(p, nbytes, __func__);
}

STANDIN_API cudaError_t cudaHostAlloc(void **p, size_t nbytes, unsigned) {
    API_CALL(cudaErrorMemoryAllocation);
    check_not_recording(__func__);
    return pinned_give(p, nbytes, __func__);
}

STANDIN_API cudaError_t cudaFreeHost(void *p) {
    const Lock lock;
    check_not_recording(__func__);
    if (p != nullptr)
        pinned_free(p);
    return cudaSuccess;
}

STANDIN_API cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t nbytes, cudaMemcpyKind kind,
                                        cudaStream_t stream) {
    API_CALL(cudaErrorLaunchFailure);
    copy(to, from, nbytes, kind, stream, __func__);
    return cudaSuccess;
}

STANDIN_API cudaError_t cudaMemcpy(void *to, const void *from, size_t nbytes, cudaMemcpyKind kind) {
    API_CALL(cudaErrorLaunchFailure);
    check_not_recording(__func__);
    copy(to, from, nbytes, kind, nullptr, __func__);
    return cudaSuccess;
}

static void set(void *to, int value, size_t nbytes, cudaStream_t stream, const char *api) {
    check_device_range(api, "destination", to, nbytes);
    SetOp *op = new SetOp;
    op->to = to;
    op->value = value;
    op->nbytes = nbytes;
    op->repeats = true;
    op->describe("memset of %zu bytes", nbytes);
    op->use(to, nbytes);
    enqueue(stream, op, api);
}

STANDIN_API cudaError_t cudaMemsetAsync(void *to, int value, size_t nbytes, cudaStream_t stream) {
    API_CALL(cudaErrorLaunchFailure);
    set(to, value, nbytes, stream, __func__);
    return cudaSuccess;
}

STANDIN_API cudaError_t cudaMemset(void *to, int value, size_t nbytes) {
    API_CALL(cudaErrorLaunchFailure);
    check_not_recording(__func__);
    set(to, value, nbytes, nullptr, __func__);
    return cudaSuccess;
}

/* ---- streams ---------------------------------------------------------------------------------------------------- */

static cudaStream_t new_stream(unsigned flags) {
    leak_count("streams", 1);
    return (cudaStream_t)stream_create(flags);
}

STANDIN_API cudaError_t cudaStreamCreate(cudaStream_t *stream) {
    API_CALL(cudaErrorUnknown);
    *stream = new_stream(0);
    return cudaSuccess;
}

STANDIN_API cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    API_CALL(cudaErrorUnknown);
    *stream = new_stream(flags);
    return cudaSuccess;
}

STANDIN_API cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int) {
    API_CALL(cudaErrorUnknown);
    *stream = new_stream(flags);
    return cudaSuccess;
}

STANDIN_API cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    const Lock lock;
    stream_destroy(stream);
    leak_count("streams", -1);
    return cudaSuccess;
}

STANDIN_API cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    API_CALL(cudaErrorLaunchFailure);
    check_not_recording(__func__);
    wait_stream(stream_of(stream, __func__), __func__);
    return cudaSuccess;
}

STANDIN_API cudaError_t cudaStreamQuery(cudaStream_t stream) {
    API_CALL(cudaErrorLaunchFailure, Numbered::FIRST);
    check_not_recording(__func__);
    Stream *s = stream_of(stream, __func__);
    poll_stream(s, __func__);
    return s->queue.empty() ? cudaSuccess : answer(cudaErrorNotReady);
}

STANDIN_API cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    API_CALL(cudaErrorLaunchFailure);
    event_wait(event_of(event, __func__), stream, __func__);
    return cudaSuccess;
}

/* ---- events ----------------------------------------------------------------------------------------------------- */

static cudaEvent_t new_event(unsigned flags) {
    leak_count("events", 1);
    return (cudaEvent_t)event_create(flags);
}

STANDIN_API cudaError_t cudaEventCreate(cudaEvent_t *event) {
    API_CALL(cudaErrorUnknown);
    *event = new_event(cudaEventDefault);
    return cudaSuccess;
}

STANDIN_API cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    API_CALL(cudaErrorUnknown);
    *event = new_event(flags);
    return cudaSuccess;
}

STANDIN_API cudaError_t cudaEventDestroy(cudaEvent_t event) {
    const Lock lock;
    event_destroy(event);
    leak_count("events", -1);
    return cudaSuccess;
}

STANDIN_API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    API_CALL(cudaErrorLaunchFailure);
    Event *e = event_of(event, __func__);
    if (e->timing)
        count_from_here();
    event_record(e, stream, __func__);
    return cudaSuccess;
}

STANDIN_API cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    API_CALL(cudaErrorLaunchFailure);
    check_not_recording(__func__);
    wait_event(event_of(event, __func__), __func__);
    return cudaSuccess;
}

STANDIN_API cudaError_t cudaEventQuery(cudaEvent_t event) {
    API_CALL(cudaErrorLaunchFailure, Numbered::FIRST);
    check_not_recording(__func__);
    Event *e = event_of(event, __func__);
    poll_event(e, __func__);
    return e->completed >= e->recorded ? cudaSuccess : answer(cudaErrorNotReady);
}

STANDIN_API cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end) {
    API_CALL(cudaErrorLaunchFailure);
    const Event *b = event_of(begin, __func__), *e = event_of(end, __func__);
    if (!b->timing || !e->timing || b->recorded == 0 || e->recorded == 0)
        return keep_error(cudaErrorInvalidResourceHandle, __func__);
    if (b->completed < b->recorded || e->completed < e->recorded)
        return answer(cudaErrorNotReady);
    *ms = (float)(1e3 * (e->reached_s - b->reached_s));
    return cudaSuccess;
}
