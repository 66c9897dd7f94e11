/* The CUDA backend's own structs, for the files cuda*.c. A stream is a cudaStream_t. With
 * DeviceOptions.host_calls a communication stream has a worker thread in front of it: everything queued there passes
 * through the worker's queue, so that a host call that blocks holds up its own stream only. The other streams are
 * queued on by the calling thread directly. */
#ifndef DMUON_DEVICE_CUDA_H
#define DMUON_DEVICE_CUDA_H

#include <pthread.h>

#include <cuda_runtime_api.h>

#include "device/backend.h"
#include "device/gemm_cuda.h"
#include "device/queue.h"

#define STAGING_SLOTS 2

/* Page-locked memory through which pageable memory passes: one slot is filled while the other is under way. Used by the
 * thread that queues on the stream's cudaStream_t. */
typedef struct Staging {
    void *slot[STAGING_SLOTS];
    cudaEvent_t passed[STAGING_SLOTS]; /* NULL: never used */
    int next;
} Staging;

typedef struct CudaStream {
    Stream head;
    cudaStream_t handle;
    Queue *queue; /* NULL: no worker thread */
    KernelCtx ctx;
    void *scratch; /* device memory for kernels */
    size_t scratch_nbytes;
    uint64_t scratch_moves; /* how often it was given up for a larger one */
    Staging staging;
    void *pinned; /* for transports */
    size_t pinned_nbytes;
} CudaStream;

/* One record of an event. It goes back to the device's pool when neither the event nor a queued wait needs it: CUDA's
 * waits, once made, do not look at the cudaEvent_t again. */
typedef struct Mark {
    cudaEvent_t handle;
    int users; /* guarded by the device's lock */
    const CudaStream *stream;
    uint64_t ticket; /* of the stream's queue: the item that records */
    struct Mark *next_free, *next;
} Mark;

typedef struct CudaEvent {
    Event head;
    struct CudaDevice *device;
    Mark *mark; /* NULL: never recorded */
} CudaEvent;

typedef struct CudaProducts CudaProducts; /* of cuda_product.c */

/* A block of device_alloc. */
typedef struct Block {
    void *at;
    size_t nbytes;
    bool used;
    Event *freed;
    struct Block *next;
} Block;

typedef struct CudaDevice {
    Device head;
    int gpu;
    CudaStream stream[STREAM_COUNT];
    pthread_mutex_t lock; /* guards marks */
    Mark *marks, *free_marks;
    CudaProducts *products; /* owned; NULL: products are exact */
    Block *blocks;
    void (*pause)(void *arg, int tries);
    void *pause_arg;
} CudaDevice;

/* A runtime call that failed where peers wait: names the call and ends the process. */
void cuda_check(cudaError_t error, const char *call);
#define CUDA_OK(call) cuda_check((call), #call)
/* The same in tear-down: silent when a failure has been reported before, since then everything fails. */
void cuda_drop(cudaError_t error, const char *call);
#define CUDA_DROP(call) cuda_drop((call), #call)
/* The same in set-up. */
DM_NODISCARD Status cuda_status(cudaError_t error, const char *call);
#define CUDA_TRY(call) TRY(cuda_status((call), #call))
/* A failure that has been put into words elsewhere; and whether there was one. */
void cuda_reported(void);
bool cuda_has_reported(void);

static inline CudaDevice *cuda_device(Device *device) {
    return (CudaDevice *)device;
}

static inline CudaStream *cuda_stream(Stream *stream) {
    return (CudaStream *)stream;
}

/* Has what the event marks run? */
bool cuda_event_ready(cudaEvent_t event);
/* Looks until what is queued on the cudaStream_t, or what `event` marks, has run. */
void cuda_wait_stream(CudaStream *stream);
void cuda_wait_event(CudaDevice *device, cudaEvent_t event);
/* In tear-down: waits for everything that was queued on any stream. */
void cuda_settle(CudaDevice *device);

/* cuda_event.c */
Event *cuda_event_create(Device *device);
void cuda_event_destroy(Event *event);
void cuda_event_record(Event *event, Stream *stream);
void cuda_event_wait(Stream *stream, Event *event);
double cuda_event_sync(Event *event);
bool cuda_event_passed(Event *event);
Stopwatch *cuda_stopwatch_create(Device *device);
void cuda_stopwatch_destroy(Stopwatch *watch);
void cuda_stopwatch_mark(Stopwatch *watch, int mark);
bool cuda_stopwatch_ms(Stopwatch *watch, int from, int to, double *ms);
void cuda_marks_destroy(CudaDevice *device); /* nothing may be queued */

/* cuda_repeat.c */
Repeat *cuda_repeat_create(Device *device);
void cuda_repeat_destroy(Repeat *repeat);
bool cuda_repeat_begin(Repeat *repeat, const void *key, size_t nbytes);
void cuda_repeat_end(Repeat *repeat);

/* cuda_memory.c */
Status cuda_arena_init(Device *device, Arena *arena, size_t nbytes, const char *what);
void cuda_arena_deinit(Device *device, Arena *arena);
void *cuda_alloc(Stream *stream, size_t nbytes);
void cuda_free(Stream *stream, void *block);
void cuda_copy(Stream *stream, void *dst, const void *src, size_t nbytes);
void cuda_copy_to_host(Stream *stream, void *host, const void *src, size_t nbytes);
void cuda_copy_from_host(Stream *stream, void *dst, const void *host, size_t nbytes);
void *cuda_pinned(Stream *stream, size_t nbytes);
void cuda_read(Stream *stream, void *pinned, const void *src, size_t nbytes);
void cuda_write(Stream *stream, void *dst, const void *pinned, size_t nbytes);
void *cuda_scratch(const KernelCtx *ctx, int thread, size_t nbytes);
void cuda_memory_destroy(CudaDevice *device); /* nothing may be queued */

/* cuda_product.c */
Status cuda_products_create(CudaDevice *device, DeviceCompute compute);
void cuda_products_destroy(CudaDevice *device); /* nothing may be queued */
DeviceCompute cuda_compute(const CudaDevice *device);
size_t cuda_choice_nbytes(const Device *device, int count);
Status cuda_choose_products(Device *device, const ProductList *list, void *choices);
Status cuda_pin_products(Device *device, const ProductList *list, const void *choices);
/* Queues a Gemm on ctx->stream. Every part is one contraction, whatever its segments. */
void cuda_product(const CudaProducts *products, const KernelCtx *ctx, const Gemm *gemm);
/* For who prepares operands: what was pinned, and the type of operands of any range. */
GemmCuda *cuda_products_gemms(const CudaProducts *products);
OperandType cuda_products_type(const CudaProducts *products);

/* cuda_attention.c: queues the kernel of that name on ctx->stream, by products (device/products.h). */
void cuda_attention_forward(const CudaProducts *products, const KernelCtx *ctx, const AttentionForward *f);
void cuda_attention_backward(const CudaProducts *products, const KernelCtx *ctx, const AttentionBackward *g);

#endif
