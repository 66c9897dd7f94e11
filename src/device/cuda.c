/* The CUDA device: choosing a GPU, streams, launches, host calls, waiting. */
#include "device/cuda.h"

#include <string.h>

#include "base/clock.h"
#include "base/fatal.h"
#include "base/str.h"
#include "kernels/cuda/table.h"

#define LEAST_CAPABILITY 8 /* of the machine code in this program: sm_80 */
#define LOOKS_BEFORE_SLEEP 4
#define SLEEP_MIN_US 20
#define SLEEP_MAX_US 200

/* ---- errors ---- */

/* "cudaMalloc" of "cudaMalloc(&p, n)". */
static int name_length(const char *call) {
    return (int)strcspn(call, "(");
}

static _Atomic bool reported;

void cuda_reported(void) {
    (void)cudaGetLastError(); /* the next check must not find it */
    reported = true;
}

bool cuda_has_reported(void) {
    return reported;
}

Status cuda_status(cudaError_t error, const char *call) {
    if (error == cudaSuccess)
        return STATUS_OK;
    cuda_reported();
    return STATUS_FAIL(STATUS_DEVICE, "%.*s failed: %s (%s)", name_length(call), call, cudaGetErrorString(error),
                       cudaGetErrorName(error));
}

void cuda_check(cudaError_t error, const char *call) {
    if (error != cudaSuccess)
        fatal_status(cuda_status(error, call));
}

void cuda_drop(cudaError_t error, const char *call) {
    if (!reported)
        cuda_check(error, call);
}

void kernels_cuda_failed(const char *kernel, int error) {
    char call[96];
    str_format(call, sizeof call, "launching kernel %s", kernel);
    fatal_status(cuda_status((cudaError_t)error, call));
}

/* ---- which GPU ---- */

/* The slot says which GPU, the unique number also which part of it (MIG). */
static void identify(const struct cudaDeviceProp *properties, char *text, size_t capacity) {
    str_format(text, capacity, "%04x:%02x:%02x ", (unsigned)properties->pciDomainID, (unsigned)properties->pciBusID,
               (unsigned)properties->pciDeviceID);
    for (size_t i = 0; i < sizeof properties->uuid.bytes; i++) {
        const size_t used = strlen(text);
        str_format(text + used, capacity - used, "%02x", (unsigned)(unsigned char)properties->uuid.bytes[i]);
    }
}

static Status cuda_find(DeviceChoice *choice, int local_rank) {
    int count = 0;
    struct cudaDeviceProp properties;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) {
        cuda_reported();
        return STATUS_FAIL(STATUS_DEVICE, "device: cuda needs a GPU, and there is none here: %s",
                           error != cudaSuccess ? cudaGetErrorString(error) : "no device is visible");
    }
    const int gpu = local_rank % count;
    CUDA_TRY(cudaGetDeviceProperties(&properties, gpu));
    if (properties.major < LEAST_CAPABILITY)
        return STATUS_FAIL(STATUS_DEVICE, "device: cuda needs compute capability %d.0, and GPU %d (%s) has %d.%d",
                           LEAST_CAPABILITY, gpu, properties.name, properties.major, properties.minor);
    choice->gpus = count;
    choice->gpu = gpu;
    identify(&properties, choice->identity, sizeof choice->identity);
    return STATUS_OK;
}

/* Peaks of the vendors' data sheets, dense: of binary32 without tensor cores, what the exact product can reach, and of
 * bf16 with sums in binary32; tf32 has half of that. The first whose words all stand in the name. */
static double cuda_listed_flops(Device *head) {
    static const struct {
        const char *name;
        double tflops, bf16;
    } list[] = {
        {"H100 PCIe", 51.2, 756.0}, {"H100 NVL", 60.0, 835.0}, {"H100", 66.9, 989.0},     {"GH200", 66.9, 989.0},
        {"H200 NVL", 60.0, 835.0},  {"H200", 66.9, 989.0},     {"B200", 74.5, 2250.0},    {"A100", 19.5, 312.0},
        {"A800", 19.5, 312.0},      {"H800", 66.9, 989.0},     {"A30", 10.3, 165.0},      {"A40", 37.4, 149.7},
        {"A10", 31.2, 125.0},       {"L40S", 91.6, 362.0},     {"L40", 90.5, 181.0},      {"L4", 30.3, 121.0},
        {"RTX A6000", 38.7, 154.8}, {"RTX 3090", 35.6, 71.0},  {"RTX 4090", 82.6, 165.2}, {"RTX 5090", 104.8, 209.5}};
    const DeviceCompute compute = cuda_compute(cuda_device(head));
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        if (strstr(head->name, list[i].name) != NULL)
            return (compute == DEVICE_EXACT ? list[i].tflops : list[i].bf16 / (compute == DEVICE_TF32 ? 2 : 1)) * 1e12;
    return 0.0;
}

static void cuda_memory(Device *device, size_t *available, size_t *total) {
    (void)device;
    CUDA_OK(cudaMemGetInfo(available, total));
}

/* ---- waiting ---- */

static void sleep_a_little(void *arg, int tries) {
    (void)arg;
    if (tries < LOOKS_BEFORE_SLEEP)
        return;
    const int doublings = tries - LOOKS_BEFORE_SLEEP;
    clock_sleep_us(doublings < 4 ? SLEEP_MIN_US << doublings : SLEEP_MAX_US);
}

static bool finished(cudaError_t answer, const char *call) {
    if (answer != cudaErrorNotReady)
        cuda_check(answer, call);
    else
        (void)cudaGetLastError(); /* "not ready" is no error, but is remembered as one */
    return answer == cudaSuccess;
}

bool cuda_event_ready(cudaEvent_t event) {
    return finished(cudaEventQuery(event), "cudaEventQuery");
}

void cuda_wait_stream(CudaStream *stream) {
    const CudaDevice *device = cuda_device(stream->head.device);
    for (int tries = 0; !finished(cudaStreamQuery(stream->handle), "cudaStreamQuery"); tries++)
        device->pause(device->pause_arg, tries);
}

void cuda_wait_event(CudaDevice *device, cudaEvent_t event) {
    for (int tries = 0; !cuda_event_ready(event); tries++)
        device->pause(device->pause_arg, tries);
}

static void cuda_sync(Stream *head) {
    CudaStream *stream = cuda_stream(head);
    if (stream->queue != NULL)
        (void)queue_wait(stream->queue, queue_mark(stream->queue));
    cuda_wait_stream(stream);
}

static void settle_stream(CudaStream *stream) {
    const CudaDevice *device = cuda_device(stream->head.device);
    cudaError_t answer = cudaErrorNotReady;
    if (stream->queue != NULL)
        (void)queue_wait(stream->queue, queue_mark(stream->queue));
    for (int tries = 0; (answer = cudaStreamQuery(stream->handle)) == cudaErrorNotReady; tries++) {
        (void)cudaGetLastError();
        device->pause(device->pause_arg, tries);
    }
    cuda_drop(answer, "cudaStreamQuery");
}

/* One stream may wait for another: all before anything ends. */
void cuda_settle(CudaDevice *device) {
    for (int kind = 0; kind < STREAM_COUNT; kind++)
        if (device->stream[kind].handle != NULL)
            settle_stream(&device->stream[kind]);
}

static void cuda_set_pause(Device *head, void (*pause)(void *arg, int tries), void *arg) {
    CudaDevice *device = cuda_device(head);
    device->pause = pause != NULL ? pause : sleep_a_little;
    device->pause_arg = arg;
}

/* ---- what is queued ---- */

static void run_kernel(const CudaStream *stream, KernelId id, const void *args) {
    const CudaDevice *device = (const CudaDevice *)stream->head.device;
    if (device->products != NULL && id == KERNEL_GEMM)
        cuda_product(device->products, &stream->ctx, args);
    else if (device->products != NULL && id == KERNEL_ATTENTION_FORWARD)
        cuda_attention_forward(device->products, &stream->ctx, args);
    else if (device->products != NULL && id == KERNEL_ATTENTION_BACKWARD)
        cuda_attention_backward(device->products, &stream->ctx, args);
    else
        kernels_cuda.fn[id](&stream->ctx, args);
}

static void item_kernel(void *self, QueueItem *item) {
    run_kernel(self, item->kernel, item->arg);
}

static void cuda_launch(Stream *head, KernelId id, const void *args, size_t nbytes) {
    CudaStream *stream = cuda_stream(head);
    if (stream->queue == NULL)
        run_kernel(stream, id, args);
    else
        queue_push(stream->queue, &(QueueItem){.run = item_kernel, .kernel = id}, args, nbytes);
}

static void item_call(void *self, QueueItem *item) {
    cuda_wait_stream(self);
    item->fn(item->arg);
}

static void cuda_call(Stream *head, void (*fn)(void *arg), const void *arg, size_t nbytes) {
    CudaStream *stream = cuda_stream(head);
    if (stream->queue != NULL) {
        queue_push(stream->queue, &(QueueItem){.run = item_call, .fn = fn}, arg, nbytes);
        return;
    }
    _Alignas(max_align_t) unsigned char copy[STREAM_ARG_BYTES]; /* fn may write to its argument */
    if (nbytes > 0)
        memcpy(copy, arg, nbytes);
    cuda_wait_stream(stream);
    fn(copy);
}

static void *cuda_native(Stream *stream) {
    return cuda_stream(stream)->handle;
}

/* ---- life ---- */

/* The runtime keeps a current GPU for each thread. */
static void item_begin(void *self, QueueItem *item) {
    const CudaStream *stream = self;
    (void)item;
    CUDA_OK(cudaSetDevice(cuda_device(stream->head.device)->gpu));
}

static Status open_worker(CudaStream *stream, const DeviceOptions *options) {
    char name[16];
    str_format(name, sizeof name, "dm-%s", stream_name(stream->head.kind));
    const QueueOptions queue = {.thread_name = name,
                                .self = stream,
                                .delay_id = (uint32_t)stream->head.kind,
                                .delay_seed = options->delay_seed,
                                .delay_max_us = options->delay_max_us};
    TRY(queue_create(&stream->queue, &queue));
    queue_push(stream->queue, &(QueueItem){.run = item_begin}, NULL, 0);
    return STATUS_OK;
}

/* Weights on their way in and gradients on their way out hold up the computation; the publish has a step's time. */
static Status open_stream(CudaDevice *device, StreamKind kind, const DeviceOptions *options) {
    CudaStream *stream = &device->stream[kind];
    int least = 0, greatest = 0;
    stream->head = (Stream){.device = &device->head, .kind = kind};
    device->head.stream[kind] = &stream->head;
    CUDA_TRY(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    const bool urgent = kind == STREAM_GATHER || kind == STREAM_REDUCE;
    CUDA_TRY(cudaStreamCreateWithPriority(&stream->handle, cudaStreamNonBlocking, urgent ? greatest : least));
    stream->ctx = (KernelCtx){.nthreads = 1, .scratch = cuda_scratch, .self = stream, .stream = stream->handle};
    if (options->host_calls && kind != STREAM_COMPUTE)
        TRY(open_worker(stream, options));
    return STATUS_OK;
}

static Status open_gpu(CudaDevice *device, const DeviceOptions *options) {
    struct cudaDeviceProp properties;
    CUDA_TRY(cudaSetDevice(options->gpu));
    CUDA_TRY(cudaGetDeviceProperties(&properties, options->gpu));
    str_format(device->head.name, sizeof device->head.name, "cuda %.80s", properties.name);
    for (int kind = 0; kind < STREAM_COUNT; kind++)
        TRY(open_stream(device, (StreamKind)kind, options));
    return cuda_products_create(device, options->compute);
}

static void close_stream(CudaStream *stream) {
    queue_destroy(stream->queue);
    if (stream->handle != NULL)
        CUDA_DROP(cudaStreamDestroy(stream->handle));
}

static void cuda_destroy(Device *head) {
    CudaDevice *device = cuda_device(head);
    cuda_settle(device);
    cuda_memory_destroy(device);
    cuda_marks_destroy(device);
    cuda_products_destroy(device);
    for (int kind = 0; kind < STREAM_COUNT; kind++)
        close_stream(&device->stream[kind]);
    pthread_mutex_destroy(&device->lock);
    heap_free(device);
}

static Status cuda_create(Device **out, const DeviceOptions *options) {
    CudaDevice *device = HEAP_ALLOC(CudaDevice, 1);
    device->head.backend = &backend_cuda;
    device->gpu = options->gpu;
    device->pause = sleep_a_little;
    pthread_mutex_init(&device->lock, NULL);
    const Status status = open_gpu(device, options);
    if (status != STATUS_OK) {
        cuda_destroy(&device->head);
        return status;
    }
    *out = &device->head;
    return STATUS_OK;
}

const Backend backend_cuda = {
    .name = "cuda",
    .find = cuda_find,
    .create = cuda_create,
    .destroy = cuda_destroy,
    .memory = cuda_memory,
    .listed_flops = cuda_listed_flops,
    .choice_nbytes = cuda_choice_nbytes,
    .choose_products = cuda_choose_products,
    .pin_products = cuda_pin_products,
    .launch = cuda_launch,
    .call = cuda_call,
    .sync = cuda_sync,
    .copy = cuda_copy,
    .copy_to_host = cuda_copy_to_host,
    .copy_from_host = cuda_copy_from_host,
    .event_create = cuda_event_create,
    .event_destroy = cuda_event_destroy,
    .event_record = cuda_event_record,
    .event_wait = cuda_event_wait,
    .event_sync = cuda_event_sync,
    .event_passed = cuda_event_passed,
    .stopwatch_create = cuda_stopwatch_create,
    .stopwatch_destroy = cuda_stopwatch_destroy,
    .stopwatch_mark = cuda_stopwatch_mark,
    .stopwatch_ms = cuda_stopwatch_ms,
    .repeat_create = cuda_repeat_create,
    .repeat_destroy = cuda_repeat_destroy,
    .repeat_begin = cuda_repeat_begin,
    .repeat_end = cuda_repeat_end,
    .arena_init = cuda_arena_init,
    .arena_deinit = cuda_arena_deinit,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .pinned = cuda_pinned,
    .read = cuda_read,
    .write = cuda_write,
    .native = cuda_native,
    .set_pause = cuda_set_pause,
};
