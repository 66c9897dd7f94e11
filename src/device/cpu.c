/* The CPU device. The compute stream is the calling thread with its pool, so what is queued there has run when the call
 * returns; each communication stream is a worker thread. An event is a ticket of a worker's queue. */
#include "device/cpu.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fatal.h"
#include "base/str.h"
#include "base/trace.h"
#include "device/pool.h"
#include "device/queue.h"
#include "device/thread.h"

/* Enough for the scheduler to prefer a communication thread that wakes up, small enough to keep the core's throughput.
 */
#define COMPUTE_ADD_NICE 5

struct Stream {
    Device *device;
    StreamKind kind;
    Pool *pool;   /* owned; one thread on communication streams */
    Queue *queue; /* owned; NULL on the compute stream          */
};

struct Device {
    const KernelTable *table;
    char name[32];
    Stream stream[STREAM_COUNT];
    double wait_us; /* of the compute stream in event_wait */
};

struct Event {
    pthread_mutex_t mutex;
    Queue *queue;    /* borrowed; NULL: satisfied */
    uint64_t ticket; /* of that queue             */
};

typedef struct WaitArg {
    Queue *queue;
    uint64_t ticket;
} WaitArg;

typedef struct CopyArg {
    void *dst;
    const void *src;
    size_t nbytes;
} CopyArg;

static Status select_table(const KernelTable **table) {
    *table = kernels_cpu_select();
    if (*table != NULL)
        return STATUS_OK;
    const char *isa = getenv("DMUON_ISA");
    return STATUS_FAIL(STATUS_CONFIG,
                       "DMUON_ISA=%s: must be avx512, avx2 or generic, and a vector unit that this processor has "
                       "(unset it for the best one)",
                       isa != NULL ? isa : "");
}

static Status open_stream(Device *device, StreamKind kind, const DeviceOptions *options) {
    Stream *stream = &device->stream[kind];
    const bool compute = kind == STREAM_COMPUTE;
    stream->device = device;
    stream->kind = kind;
    TRY(pool_create(&stream->pool, compute ? options->threads : 1,
                    compute && options->yield_to_comm ? COMPUTE_ADD_NICE : 0));
    if (compute)
        return STATUS_OK;
    char name[16];
    str_format(name, sizeof name, "dm-%s", stream_name(kind));
    const QueueOptions queue = {.thread_name = name,
                                .self = stream,
                                .delay_id = (uint32_t)kind,
                                .delay_seed = options->delay_seed,
                                .delay_max_us = options->delay_max_us};
    TRY(queue_create(&stream->queue, &queue));
    return STATUS_OK;
}

static Status open_streams(Device *device, const DeviceOptions *options) {
    for (int kind = 0; kind < STREAM_COUNT; kind++)
        TRY(open_stream(device, (StreamKind)kind, options));
    return STATUS_OK;
}

Status cpu_create(Device **out, const DeviceOptions *options) {
    const KernelTable *table;
    TRY(select_table(&table));
    Device *device = HEAP_ALLOC(Device, 1);
    device->table = table;
    str_format(device->name, sizeof device->name, "cpu %s", table->name);
    const Status status = open_streams(device, options);
    if (status != STATUS_OK) {
        device_destroy(device);
        return status;
    }
    if (options->yield_to_comm)
        thread_add_nice(COMPUTE_ADD_NICE); /* after the workers: a new thread inherits its creator's value */
    *out = device;
    return STATUS_OK;
}

void device_destroy(Device *device) {
    if (device == NULL)
        return;
    for (int kind = 0; kind < STREAM_COUNT; kind++)
        if (device->stream[kind].queue != NULL)
            stream_sync(&device->stream[kind]); /* a worker may wait for another's: all must be idle before one ends */
    for (int kind = 0; kind < STREAM_COUNT; kind++) {
        queue_destroy(device->stream[kind].queue);
        pool_destroy(device->stream[kind].pool);
    }
    heap_free(device);
}

Stream *device_stream(Device *device, StreamKind kind) {
    DM_ASSERT(kind >= 0 && kind < STREAM_COUNT);
    return &device->stream[kind];
}

const char *device_name(const Device *device) {
    return device->name;
}

StreamKind stream_kind(const Stream *stream) {
    return stream->kind;
}

Device *stream_device(Stream *stream) {
    return stream->device;
}

static void run_kernel(Stream *stream, KernelId id, const void *args) {
    stream->device->table->fn[id](pool_ctx(stream->pool), args);
}

static void item_kernel(void *self, QueueItem *item) {
    run_kernel(self, item->kernel, item->arg);
}

static void item_call(void *self, QueueItem *item) {
    (void)self;
    item->fn(item->arg);
}

static void item_wait(void *self, QueueItem *item) {
    const Stream *stream = self;
    WaitArg wait;
    memcpy(&wait, item->arg, sizeof wait);
    const int64_t begin = clock_ns();
    if (queue_wait(wait.queue, wait.ticket) > 0)
        trace_add("wait", (int)stream->kind, -1, begin, clock_ns());
}

void stream_launch(Stream *stream, KernelId id, const void *args, size_t nbytes) {
    DM_ASSERT(id >= 0 && id < KERNEL_COUNT && nbytes <= QUEUE_ARG_BYTES);
    if (stream->queue == NULL)
        run_kernel(stream, id, args);
    else
        queue_push(stream->queue, &(QueueItem){.run = item_kernel, .kernel = id}, args, nbytes);
}

void stream_call(Stream *stream, void (*fn)(void *arg), const void *arg, size_t nbytes) {
    DM_ASSERT(nbytes <= QUEUE_ARG_BYTES);
    if (stream->queue != NULL) {
        queue_push(stream->queue, &(QueueItem){.run = item_call, .fn = fn}, arg, nbytes);
        return;
    }
    _Alignas(max_align_t) unsigned char copy[QUEUE_ARG_BYTES]; /* fn may write to its argument */
    if (nbytes > 0)
        memcpy(copy, arg, nbytes);
    fn(copy);
}

void stream_sync(Stream *stream) {
    if (stream->queue != NULL)
        (void)queue_wait(stream->queue, queue_mark(stream->queue));
}

Event *event_create(Device *device) {
    DM_ASSERT(device != NULL);
    Event *event = HEAP_ALLOC(Event, 1);
    pthread_mutex_init(&event->mutex, NULL);
    return event;
}

void event_destroy(Event *event) {
    if (event == NULL)
        return;
    pthread_mutex_destroy(&event->mutex);
    heap_free(event);
}

void event_record(Event *event, Stream *stream) {
    pthread_mutex_lock(&event->mutex);
    event->queue = stream->queue;
    event->ticket = stream->queue != NULL ? queue_mark(stream->queue) : 0;
    pthread_mutex_unlock(&event->mutex);
}

static WaitArg event_mark(Event *event) {
    pthread_mutex_lock(&event->mutex);
    const WaitArg mark = {.queue = event->queue, .ticket = event->ticket};
    pthread_mutex_unlock(&event->mutex);
    return mark;
}

void event_wait(Stream *stream, Event *event) {
    const WaitArg mark = event_mark(event);
    if (mark.queue == NULL || mark.queue == stream->queue)
        return; /* done already, or in order anyway */
    if (stream->queue != NULL) {
        queue_push(stream->queue, &(QueueItem){.run = item_wait}, &mark, sizeof mark);
        return;
    }
    const int64_t begin = clock_ns();
    const int64_t waited = queue_wait(mark.queue, mark.ticket);
    if (waited > 0) {
        stream->device->wait_us += (double)waited / 1e3;
        trace_add("wait", (int)STREAM_COMPUTE, -1, begin, clock_ns());
    }
}

double event_sync(Event *event) {
    const WaitArg mark = event_mark(event);
    return mark.queue != NULL ? (double)queue_wait(mark.queue, mark.ticket) / 1e3 : 0.0;
}

Status device_arena_init(Device *device, Arena *arena, size_t nbytes, const char *what) {
    DM_ASSERT(device != NULL);
    TRY(arena_init(arena, nbytes, what));
    return STATUS_OK;
}

void device_arena_deinit(Device *device, Arena *arena) {
    DM_ASSERT(device != NULL);
    arena_deinit(arena);
}

static void call_copy(void *arg) {
    const CopyArg *copy = arg;
    if (copy->nbytes > 0)
        memcpy(copy->dst, copy->src, copy->nbytes);
}

void device_copy_to_host(Stream *stream, void *host, const void *src, size_t nbytes) {
    DM_ASSERT(stream->kind == STREAM_COMPUTE);
    call_copy(&(CopyArg){.dst = host, .src = src, .nbytes = nbytes});
}

void device_copy_from_host(Stream *stream, void *dst, const void *host, size_t nbytes) {
    const CopyArg copy = {.dst = dst, .src = host, .nbytes = nbytes};
    stream_call(stream, call_copy, &copy, sizeof copy);
}

double device_take_wait_us(Device *device) {
    const double wait_us = device->wait_us;
    device->wait_us = 0.0;
    return wait_us;
}
