/* The CPU device. The compute stream is the calling thread with its pool, so what is queued there has run when the call
 * returns; each communication stream is a worker thread. An event is a ticket of a worker's queue. */
#include "device/backend.h"

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

typedef struct CpuStream {
    Stream head;
    Pool *pool;   /* owned; one thread on communication streams */
    Queue *queue; /* owned; NULL on the compute stream          */
} CpuStream;

typedef struct CpuDevice {
    Device head;
    const KernelTable *table;
    CpuStream stream[STREAM_COUNT];
} CpuDevice;

typedef struct CpuEvent {
    Event head;
    pthread_mutex_t mutex;
    Queue *queue;    /* borrowed; NULL: satisfied */
    uint64_t ticket; /* of that queue             */
} CpuEvent;

typedef struct CpuStopwatch {
    Stopwatch head;
    int64_t ns[STOPWATCH_MARKS];
} CpuStopwatch;

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

static CpuStream *cpu_stream(Stream *stream) {
    return (CpuStream *)stream;
}

static Status open_stream(CpuDevice *device, StreamKind kind, const DeviceOptions *options) {
    CpuStream *stream = &device->stream[kind];
    const bool compute = kind == STREAM_COMPUTE;
    stream->head = (Stream){.device = &device->head, .kind = kind};
    device->head.stream[kind] = &stream->head;
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

static Status open_streams(CpuDevice *device, const DeviceOptions *options) {
    for (int kind = 0; kind < STREAM_COUNT; kind++)
        TRY(open_stream(device, (StreamKind)kind, options));
    return STATUS_OK;
}

static void cpu_sync(Stream *stream) {
    Queue *queue = cpu_stream(stream)->queue;
    if (queue != NULL)
        (void)queue_wait(queue, queue_mark(queue));
}

static void cpu_destroy(Device *head) {
    CpuDevice *device = (CpuDevice *)head;
    for (int kind = 0; kind < STREAM_COUNT; kind++)
        cpu_sync(&device->stream[kind].head); /* a worker may wait for another's: all must be idle before one ends */
    for (int kind = 0; kind < STREAM_COUNT; kind++) {
        queue_destroy(device->stream[kind].queue);
        pool_destroy(device->stream[kind].pool);
    }
    heap_free(device);
}

static Status cpu_create(Device **out, const DeviceOptions *options) {
    const KernelTable *table;
    TRY(select_table(&table));
    CpuDevice *device = HEAP_ALLOC(CpuDevice, 1);
    device->table = table;
    device->head.backend = &backend_cpu;
    str_format(device->head.name, sizeof device->head.name, "cpu %s", table->name);
    const Status status = open_streams(device, options);
    if (status != STATUS_OK) {
        cpu_destroy(&device->head);
        return status;
    }
    if (options->yield_to_comm)
        thread_add_nice(COMPUTE_ADD_NICE); /* after the workers: a new thread inherits its creator's value */
    *out = &device->head;
    return STATUS_OK;
}

static Status cpu_find(DeviceChoice *choice, int local_rank) {
    (void)local_rank;
    choice->gpus = 0;
    return STATUS_OK;
}

/* The host's memory is judged by whoever counts all that is put there. */
static void cpu_memory(Device *device, size_t *available, size_t *total) {
    (void)device;
    *available = *total = 0;
}

static double cpu_listed_flops(Device *device) {
    (void)device;
    return DEVICE_FLOPS_MEASURE;
}

static void run_kernel(CpuStream *stream, KernelId id, const void *args) {
    const CpuDevice *device = (const CpuDevice *)stream->head.device;
    device->table->fn[id](pool_ctx(stream->pool), args);
}

static void item_kernel(void *self, QueueItem *item) {
    run_kernel(self, item->kernel, item->arg);
}

static void item_call(void *self, QueueItem *item) {
    (void)self;
    item->fn(item->arg);
}

static void item_wait(void *self, QueueItem *item) {
    const CpuStream *stream = self;
    WaitArg wait;
    memcpy(&wait, item->arg, sizeof wait);
    const int64_t begin = clock_ns();
    if (queue_wait(wait.queue, wait.ticket) > 0)
        trace_add("wait", (int)stream->head.kind, -1, begin, clock_ns());
}

static void cpu_launch(Stream *head, KernelId id, const void *args, size_t nbytes) {
    CpuStream *stream = cpu_stream(head);
    if (stream->queue == NULL)
        run_kernel(stream, id, args);
    else
        queue_push(stream->queue, &(QueueItem){.run = item_kernel, .kernel = id}, args, nbytes);
}

static void cpu_call(Stream *stream, void (*fn)(void *arg), const void *arg, size_t nbytes) {
    Queue *queue = cpu_stream(stream)->queue;
    if (queue != NULL) {
        queue_push(queue, &(QueueItem){.run = item_call, .fn = fn}, arg, nbytes);
        return;
    }
    _Alignas(max_align_t) unsigned char copy[STREAM_ARG_BYTES]; /* fn may write to its argument */
    if (nbytes > 0)
        memcpy(copy, arg, nbytes);
    fn(copy);
}

static Event *cpu_event_create(Device *device) {
    CpuEvent *event = HEAP_ALLOC(CpuEvent, 1);
    event->head.backend = device->backend;
    pthread_mutex_init(&event->mutex, NULL);
    return &event->head;
}

static void cpu_event_destroy(Event *head) {
    CpuEvent *event = (CpuEvent *)head;
    pthread_mutex_destroy(&event->mutex);
    heap_free(event);
}

static void cpu_event_record(Event *head, Stream *stream) {
    CpuEvent *event = (CpuEvent *)head;
    Queue *queue = cpu_stream(stream)->queue;
    pthread_mutex_lock(&event->mutex);
    event->queue = queue;
    event->ticket = queue != NULL ? queue_mark(queue) : 0;
    pthread_mutex_unlock(&event->mutex);
}

static WaitArg event_mark(Event *head) {
    CpuEvent *event = (CpuEvent *)head;
    pthread_mutex_lock(&event->mutex);
    const WaitArg mark = {.queue = event->queue, .ticket = event->ticket};
    pthread_mutex_unlock(&event->mutex);
    return mark;
}

static void cpu_event_wait(Stream *stream, Event *event) {
    Queue *queue = cpu_stream(stream)->queue;
    const WaitArg mark = event_mark(event);
    if (mark.queue == NULL || mark.queue == queue)
        return; /* done already, or in order anyway */
    if (queue != NULL) {
        queue_push(queue, &(QueueItem){.run = item_wait}, &mark, sizeof mark);
        return;
    }
    const int64_t begin = clock_ns();
    const int64_t waited = queue_wait(mark.queue, mark.ticket);
    if (waited > 0) {
        stream->device->wait_us += (double)waited / 1e3;
        trace_add("wait", (int)STREAM_COMPUTE, -1, begin, clock_ns());
    }
}

static double cpu_event_sync(Event *event) {
    const WaitArg mark = event_mark(event);
    return mark.queue != NULL ? (double)queue_wait(mark.queue, mark.ticket) / 1e3 : 0.0;
}

static bool cpu_event_passed(Event *event) {
    const WaitArg mark = event_mark(event);
    return mark.queue == NULL || queue_done(mark.queue) >= mark.ticket;
}

static Stopwatch *cpu_stopwatch_create(Device *device) {
    CpuStopwatch *watch = HEAP_ALLOC(CpuStopwatch, 1);
    watch->head.backend = device->backend;
    return &watch->head;
}

static void cpu_stopwatch_destroy(Stopwatch *watch) {
    heap_free(watch);
}

static void cpu_stopwatch_mark(Stopwatch *watch, int mark) {
    ((CpuStopwatch *)watch)->ns[mark] = clock_ns();
}

static bool cpu_stopwatch_ms(Stopwatch *head, int from, int to, double *ms) {
    const CpuStopwatch *watch = (const CpuStopwatch *)head;
    *ms = (double)(watch->ns[to] - watch->ns[from]) * 1e-6;
    return true;
}

static Status cpu_arena_init(Device *device, Arena *arena, size_t nbytes, const char *what) {
    (void)device;
    TRY(arena_init(arena, nbytes, what));
    return STATUS_OK;
}

static void cpu_arena_deinit(Device *device, Arena *arena) {
    (void)device;
    arena_deinit(arena);
}

/* Whoever queued the last work on a block has waited for it: nothing is left to run when the block is given back. */
static void *cpu_alloc(Stream *stream, size_t nbytes) {
    (void)stream;
    return heap_alloc(nbytes);
}

static void cpu_free(Stream *stream, void *block) {
    (void)stream;
    heap_free(block);
}

static void call_copy(void *arg) {
    const CopyArg *copy = arg;
    if (copy->nbytes > 0)
        memmove(copy->dst, copy->src, copy->nbytes);
}

static void cpu_copy(Stream *stream, void *dst, const void *src, size_t nbytes) {
    const CopyArg copy = {.dst = dst, .src = src, .nbytes = nbytes};
    cpu_call(stream, call_copy, &copy, sizeof copy);
}

static void cpu_copy_to_host(Stream *stream, void *host, const void *src, size_t nbytes) {
    (void)stream; /* compute: what was queued has run */
    call_copy(&(CopyArg){.dst = host, .src = src, .nbytes = nbytes});
}

const Backend backend_cpu = {
    .name = "cpu",
    .host_reads_memory = true,
    .find = cpu_find,
    .create = cpu_create,
    .destroy = cpu_destroy,
    .memory = cpu_memory,
    .listed_flops = cpu_listed_flops,
    .launch = cpu_launch,
    .call = cpu_call,
    .sync = cpu_sync,
    .copy = cpu_copy,
    .copy_to_host = cpu_copy_to_host,
    .copy_from_host = cpu_copy,
    .event_create = cpu_event_create,
    .event_destroy = cpu_event_destroy,
    .event_record = cpu_event_record,
    .event_wait = cpu_event_wait,
    .event_sync = cpu_event_sync,
    .event_passed = cpu_event_passed,
    .stopwatch_create = cpu_stopwatch_create,
    .stopwatch_destroy = cpu_stopwatch_destroy,
    .stopwatch_mark = cpu_stopwatch_mark,
    .stopwatch_ms = cpu_stopwatch_ms,
    .arena_init = cpu_arena_init,
    .arena_deinit = cpu_arena_deinit,
    .alloc = cpu_alloc,
    .free = cpu_free,
};
