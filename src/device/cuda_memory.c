/* Memory of the CUDA device: arenas, blocks, the scratch of kernels, and copies through page-locked memory. */
#include <string.h>

#include "base/fatal.h"
#include "device/cuda.h"

#define STAGING_BYTES ((size_t)4 << 20)
#define BLOCK_MIN_BYTES 256

/* ---- arenas ---- */

static Status allocate(void **at, size_t nbytes, const char *what) {
    size_t available = 0, total = 0;
    const cudaError_t error = cudaMalloc(at, nbytes > BLOCK_MIN_BYTES ? nbytes : BLOCK_MIN_BYTES);
    if (error != cudaErrorMemoryAllocation)
        return cuda_status(error, "cudaMalloc");
    cuda_reported();
    (void)cudaMemGetInfo(&available, &total);
    return STATUS_FAIL(STATUS_NO_MEMORY, "%s: %zu bytes do not fit, the GPU has %zu of its %zu bytes left", what,
                       nbytes, available, total);
}

static void *allocate_or_die(size_t nbytes, const char *what) {
    void *at = NULL;
    const Status status = allocate(&at, nbytes, what);
    if (status != STATUS_OK)
        fatal_status(status);
    return at;
}

Status cuda_arena_init(Device *head, Arena *arena, size_t nbytes, const char *what) {
    CudaStream *compute = &cuda_device(head)->stream[STREAM_COMPUTE];
    void *at = NULL;
    *arena = (Arena){0};
    TRY(allocate(&at, nbytes, what));
    arena->base = at;
    arena->capacity = nbytes;
    CUDA_TRY(cudaMemsetAsync(at, 0, nbytes, compute->handle));
    cuda_wait_stream(compute);
    return STATUS_OK;
}

void cuda_arena_deinit(Device *head, Arena *arena) {
    CudaDevice *device = cuda_device(head);
    cuda_settle(device);
    if (arena->base != NULL)
        CUDA_DROP(cudaFree(arena->base));
    *arena = (Arena){0};
}

/* ---- blocks: given back blocks are kept, and given out again behind the stream that gave them back ---- */

void *cuda_alloc(Stream *stream, size_t nbytes) {
    CudaDevice *device = cuda_device(stream->device);
    Block *block = device->blocks;
    while (block != NULL && (block->used || block->nbytes != nbytes))
        block = block->next;
    if (block == NULL) {
        block = HEAP_ALLOC(Block, 1);
        *block = (Block){.at = allocate_or_die(nbytes, "a buffer of a step"),
                         .nbytes = nbytes,
                         .freed = cuda_event_create(stream->device),
                         .next = device->blocks};
        device->blocks = block;
    }
    cuda_event_wait(stream, block->freed);
    block->used = true;
    return block->at;
}

void cuda_free(Stream *stream, void *at) {
    for (Block *block = cuda_device(stream->device)->blocks; block != NULL; block = block->next) {
        if (block->at != at)
            continue;
        DM_ASSERT(block->used);
        cuda_event_record(block->freed, stream);
        block->used = false;
        return;
    }
    fatal("device_free of a block that is none");
}

/* ---- scratch ---- */

void *cuda_scratch(const KernelCtx *ctx, int thread, size_t nbytes) {
    CudaStream *stream = ctx->self;
    DM_ASSERT(thread == 0);
    if (stream->scratch_nbytes < nbytes) {
        cuda_wait_stream(stream); /* kernels that were given the smaller block */
        if (stream->scratch != NULL)
            CUDA_OK(cudaFree(stream->scratch));
        stream->scratch_moves++;
        stream->scratch_nbytes = nbytes; /* it grows in the first step only */
        stream->scratch = allocate_or_die(stream->scratch_nbytes, "kernel scratch");
    }
    return stream->scratch;
}

/* ---- copies ---- */

typedef struct CopyArg {
    void *dst;
    const void *src;
    size_t nbytes;
} CopyArg;

static void copy_now(CudaStream *stream, const CopyArg *copy) {
    if (copy->nbytes > 0 && copy->dst != copy->src)
        CUDA_OK(cudaMemcpyAsync(copy->dst, copy->src, copy->nbytes, cudaMemcpyDeviceToDevice, stream->handle));
}

/* The next slot, free to be filled. */
static int staging_take(CudaStream *stream) {
    Staging *staging = &stream->staging;
    const int slot = staging->next;
    staging->next = (slot + 1) % STAGING_SLOTS;
    if (staging->passed[slot] == NULL) {
        CUDA_OK(cudaHostAlloc(&staging->slot[slot], STAGING_BYTES, cudaHostAllocDefault));
        CUDA_OK(cudaEventCreateWithFlags(&staging->passed[slot], cudaEventDisableTiming));
    } else {
        cuda_wait_event(cuda_device(stream->head.device), staging->passed[slot]);
    }
    return slot;
}

static size_t piece(size_t nbytes, size_t at) {
    return nbytes - at < STAGING_BYTES ? nbytes - at : STAGING_BYTES;
}

static void copy_in_now(CudaStream *stream, const CopyArg *copy) {
    Staging *staging = &stream->staging;
    for (size_t at = 0; at < copy->nbytes; at += STAGING_BYTES) {
        const size_t n = piece(copy->nbytes, at);
        const int slot = staging_take(stream);
        memcpy(staging->slot[slot], (const char *)copy->src + at, n);
        CUDA_OK(
            cudaMemcpyAsync((char *)copy->dst + at, staging->slot[slot], n, cudaMemcpyHostToDevice, stream->handle));
        CUDA_OK(cudaEventRecord(staging->passed[slot], stream->handle));
    }
}

void cuda_copy_to_host(Stream *head, void *host, const void *src, size_t nbytes) {
    CudaStream *stream = cuda_stream(head);
    Staging *staging = &stream->staging;
    for (size_t at = 0; at < nbytes; at += STAGING_BYTES) {
        const size_t n = piece(nbytes, at);
        const int slot = staging_take(stream);
        CUDA_OK(
            cudaMemcpyAsync(staging->slot[slot], (const char *)src + at, n, cudaMemcpyDeviceToHost, stream->handle));
        CUDA_OK(cudaEventRecord(staging->passed[slot], stream->handle));
        cuda_wait_event(cuda_device(head->device), staging->passed[slot]);
        memcpy((char *)host + at, staging->slot[slot], n);
    }
}

static void item_copy(void *self, QueueItem *item) {
    CopyArg copy;
    memcpy(&copy, item->arg, sizeof copy);
    copy_now(self, &copy);
}

static void item_copy_in(void *self, QueueItem *item) {
    CopyArg copy;
    memcpy(&copy, item->arg, sizeof copy);
    copy_in_now(self, &copy);
}

void cuda_copy(Stream *head, void *dst, const void *src, size_t nbytes) {
    CudaStream *stream = cuda_stream(head);
    const CopyArg copy = {.dst = dst, .src = src, .nbytes = nbytes};
    if (stream->queue == NULL)
        copy_now(stream, &copy);
    else
        queue_push(stream->queue, &(QueueItem){.run = item_copy}, &copy, sizeof copy);
}

void cuda_copy_from_host(Stream *head, void *dst, const void *host, size_t nbytes) {
    CudaStream *stream = cuda_stream(head);
    const CopyArg copy = {.dst = dst, .src = host, .nbytes = nbytes};
    if (stream->queue == NULL)
        copy_in_now(stream, &copy);
    else
        queue_push(stream->queue, &(QueueItem){.run = item_copy_in}, &copy, sizeof copy);
}

/* ---- for transports ---- */

void *cuda_pinned(Stream *head, size_t nbytes) {
    CudaStream *stream = cuda_stream(head);
    if (stream->pinned_nbytes < nbytes) {
        if (stream->pinned != NULL)
            CUDA_OK(cudaFreeHost(stream->pinned));
        CUDA_OK(cudaHostAlloc(&stream->pinned, nbytes, cudaHostAllocDefault));
        stream->pinned_nbytes = nbytes;
    }
    return stream->pinned;
}

void cuda_read(Stream *head, void *pinned, const void *src, size_t nbytes) {
    CudaStream *stream = cuda_stream(head);
    if (nbytes == 0)
        return;
    CUDA_OK(cudaMemcpyAsync(pinned, src, nbytes, cudaMemcpyDeviceToHost, stream->handle));
    cuda_wait_stream(stream);
}

/* The buffer is read until the next host call on the stream, which begins by waiting for it. */
void cuda_write(Stream *head, void *dst, const void *pinned, size_t nbytes) {
    const CudaStream *stream = cuda_stream(head);
    if (nbytes > 0)
        CUDA_OK(cudaMemcpyAsync(dst, pinned, nbytes, cudaMemcpyHostToDevice, stream->handle));
}

/* ---- the end ---- */

static void stream_memory_destroy(CudaStream *stream) {
    for (int slot = 0; slot < STAGING_SLOTS; slot++) {
        if (stream->staging.passed[slot] == NULL)
            continue;
        CUDA_DROP(cudaEventDestroy(stream->staging.passed[slot]));
        CUDA_DROP(cudaFreeHost(stream->staging.slot[slot]));
    }
    if (stream->pinned != NULL)
        CUDA_DROP(cudaFreeHost(stream->pinned));
    if (stream->scratch != NULL)
        CUDA_DROP(cudaFree(stream->scratch));
}

void cuda_memory_destroy(CudaDevice *device) {
    for (int kind = 0; kind < STREAM_COUNT; kind++)
        stream_memory_destroy(&device->stream[kind]);
    while (device->blocks != NULL) {
        Block *block = device->blocks;
        device->blocks = block->next;
        cuda_event_destroy(block->freed);
        CUDA_DROP(cudaFree(block->at));
        heap_free(block);
    }
}
