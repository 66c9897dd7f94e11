/* Events of the CUDA device. A wait keeps the mark of the time of the call, so every record takes a cudaEvent_t of its
 * own from a pool. */
#include <string.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/trace.h"
#include "device/cuda.h"

/* ---- marks ---- */

/* With one user, the caller. */
static Mark *mark_take(CudaDevice *device) {
    pthread_mutex_lock(&device->lock);
    Mark *mark = device->free_marks;
    if (mark != NULL)
        device->free_marks = mark->next_free;
    pthread_mutex_unlock(&device->lock);
    if (mark == NULL) {
        mark = HEAP_ALLOC(Mark, 1);
        CUDA_OK(cudaEventCreateWithFlags(&mark->handle, cudaEventDisableTiming));
        mark->next = device->marks; /* by the queueing thread only */
        device->marks = mark;
    }
    mark->users = 1;
    return mark;
}

static void mark_hold(CudaDevice *device, Mark *mark) {
    pthread_mutex_lock(&device->lock);
    mark->users++;
    pthread_mutex_unlock(&device->lock);
}

static void mark_drop(CudaDevice *device, Mark *mark) {
    if (mark == NULL)
        return;
    pthread_mutex_lock(&device->lock);
    if (--mark->users == 0) {
        mark->next_free = device->free_marks;
        device->free_marks = mark;
    }
    pthread_mutex_unlock(&device->lock);
}

void cuda_marks_destroy(CudaDevice *device) {
    while (device->marks != NULL) {
        Mark *mark = device->marks;
        device->marks = mark->next;
        CUDA_DROP(cudaEventDestroy(mark->handle));
        heap_free(mark);
    }
}

/* ---- events ---- */

Event *cuda_event_create(Device *device) {
    CudaEvent *event = HEAP_ALLOC(CudaEvent, 1);
    event->head.backend = device->backend;
    event->device = cuda_device(device);
    return &event->head;
}

void cuda_event_destroy(Event *head) {
    CudaEvent *event = (CudaEvent *)head;
    mark_drop(event->device, event->mark);
    heap_free(event);
}

static Mark *item_mark(const QueueItem *item) {
    Mark *mark;
    memcpy(&mark, item->arg, sizeof mark);
    return mark;
}

static void item_record(void *self, QueueItem *item) {
    const CudaStream *stream = self;
    Mark *mark = item_mark(item);
    CUDA_OK(cudaEventRecord(mark->handle, stream->handle));
    mark_drop(cuda_device(stream->head.device), mark);
}

void cuda_event_record(Event *head, Stream *shead) {
    CudaEvent *event = (CudaEvent *)head;
    const CudaStream *stream = cuda_stream(shead);
    Mark *mark = mark_take(event->device);
    mark->stream = stream;
    if (stream->queue != NULL) {
        mark_hold(event->device, mark);
        queue_push(stream->queue, &(QueueItem){.run = item_record}, &mark, sizeof mark);
        mark->ticket = queue_mark(stream->queue);
    } else {
        CUDA_OK(cudaEventRecord(mark->handle, stream->handle));
    }
    mark_drop(event->device, event->mark);
    event->mark = mark;
}

/* The microseconds until the mark was recorded. */
static double wait_recorded(const Mark *mark) {
    return mark->stream->queue != NULL ? (double)queue_wait(mark->stream->queue, mark->ticket) / 1e3 : 0.0;
}

static double wait_now(const CudaStream *stream, const Mark *mark) {
    const int64_t begin = clock_ns();
    const double us = wait_recorded(mark);
    if (us > 0)
        trace_add("wait", (int)stream->head.kind, -1, begin, clock_ns());
    CUDA_OK(cudaStreamWaitEvent(stream->handle, mark->handle, 0));
    return us;
}

static void item_wait(void *self, QueueItem *item) {
    const CudaStream *stream = self;
    Mark *mark = item_mark(item);
    (void)wait_now(stream, mark);
    mark_drop(cuda_device(stream->head.device), mark);
}

void cuda_event_wait(Stream *shead, Event *head) {
    CudaEvent *event = (CudaEvent *)head;
    CudaStream *stream = cuda_stream(shead);
    Mark *mark = event->mark;
    if (mark == NULL || mark->stream == stream)
        return; /* satisfied, or in order anyway */
    if (stream->queue != NULL) {
        mark_hold(event->device, mark);
        queue_push(stream->queue, &(QueueItem){.run = item_wait}, &mark, sizeof mark);
        return;
    }
    stream->head.device->wait_us += wait_now(stream, mark);
}

bool cuda_event_passed(Event *head) {
    const Mark *mark = ((CudaEvent *)head)->mark;
    if (mark == NULL)
        return true;
    if (mark->stream->queue != NULL && queue_done(mark->stream->queue) < mark->ticket)
        return false;
    return cuda_event_ready(mark->handle);
}

double cuda_event_sync(Event *head) {
    const CudaEvent *event = (const CudaEvent *)head;
    if (cuda_event_passed(head))
        return 0.0;
    const int64_t begin = clock_ns();
    (void)wait_recorded(event->mark);
    cuda_wait_event(event->device, event->mark->handle);
    return (double)(clock_ns() - begin) / 1e3;
}

/* ---- timers ---- */

typedef struct CudaStopwatch {
    Stopwatch head;
    const CudaStream *stream; /* compute */
    cudaEvent_t mark[STOPWATCH_MARKS];
} CudaStopwatch;

Stopwatch *cuda_stopwatch_create(Device *device) {
    CudaStopwatch *watch = HEAP_ALLOC(CudaStopwatch, 1);
    watch->head.backend = device->backend;
    watch->stream = &cuda_device(device)->stream[STREAM_COMPUTE];
    for (int i = 0; i < STOPWATCH_MARKS; i++)
        CUDA_OK(cudaEventCreateWithFlags(&watch->mark[i], cudaEventDefault));
    return &watch->head;
}

void cuda_stopwatch_destroy(Stopwatch *head) {
    CudaStopwatch *watch = (CudaStopwatch *)head;
    for (int i = 0; i < STOPWATCH_MARKS; i++)
        CUDA_DROP(cudaEventDestroy(watch->mark[i]));
    heap_free(watch);
}

void cuda_stopwatch_mark(Stopwatch *head, int mark) {
    const CudaStopwatch *watch = (const CudaStopwatch *)head;
    CUDA_OK(cudaEventRecord(watch->mark[mark], watch->stream->handle));
}

bool cuda_stopwatch_ms(Stopwatch *head, int from, int to, double *ms) {
    const CudaStopwatch *watch = (const CudaStopwatch *)head;
    float elapsed = 0.0f;
    if (!cuda_event_ready(watch->mark[from]) || !cuda_event_ready(watch->mark[to]))
        return false;
    CUDA_OK(cudaEventElapsedTime(&elapsed, watch->mark[from], watch->mark[to]));
    *ms = (double)elapsed;
    return true;
}
