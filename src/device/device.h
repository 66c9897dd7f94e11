/* Memory, streams and events of one device. The engine is written once against CUDA's execution model; the CPU backend
 * keeps it: the compute stream runs in the calling thread (kernels may use a pool of threads), every communication
 * stream is a worker thread with a FIFO queue, an event is a counter with a condition variable. Everything is queued by
 * one thread. A failure inside a queued operation is fatal(): peers are already waiting. */
#ifndef DMUON_DEVICE_DEVICE_H
#define DMUON_DEVICE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"
#include "kernels/kernels.h"

typedef struct Device Device; /* opaque, owned by the session */
typedef struct Stream Stream; /* opaque, owned by its device  */
typedef struct Event Event;   /* opaque                       */

typedef enum StreamKind {
    STREAM_COMPUTE, /* forward, backward, optimizer; on the CPU the calling thread itself */
    STREAM_GATHER,  /* unshard broadcasts and all-gathers                                 */
    STREAM_REDUCE,  /* shard reductions, tp gathers                                       */
    STREAM_PUBLISH, /* replicate reductions, post-step broadcasts, tp scatters            */
    STREAM_COUNT
} StreamKind;

/* What `device:` means to one process. */
typedef struct DeviceChoice {
    const char *backend; /* for DeviceOptions.name                                  */
    int gpus;            /* that this process sees; 0: none are needed              */
    int gpu;             /* which of them: the node-local rank mod gpus             */
    char identity[48];   /* of that GPU: the same in every process of the node      */
    char why[240];       /* for the log: "a GPU is there", "asked for", what others lack */
} DeviceChoice;

/* `name`: auto, cpu, cuda. STATUS_DEVICE when it is not built in or there is nothing to run on. */
DM_NODISCARD Status device_choose(DeviceChoice *choice, const char *name, int local_rank);
const char *device_backends(void); /* "cpu", or "cpu, cuda": what is built in */

/* How matrix products are computed where numerics.mode is fast: exactly, or with operands rounded on the way in. */
typedef enum DeviceCompute { DEVICE_EXACT, DEVICE_TF32, DEVICE_BF16 } DeviceCompute;

typedef struct DeviceOptions {
    const char *name;      /* of a backend: "cpu", "cuda" where it is built in                            */
    int gpu;               /* cuda: which                                                                 */
    bool host_calls;       /* cuda: host functions run on communication streams, which block; see stream_call */
    int threads;           /* of the compute stream's pool, at least 1                                    */
    DeviceCompute compute; /* cuda: see device/products.h; the CPU is always exact                        */
    bool yield_to_comm;    /* more threads than cores on the node: compute threads raise their nice value */
    uint64_t delay_seed;   /* tests only: non-zero sleeps 0..delay_max_us before queued operations        */
    int delay_max_us;
} DeviceOptions;

DM_NODISCARD Status device_create(Device **device, const DeviceOptions *options);
void device_destroy(Device *device); /* after all streams are idle; joins the threads */

Stream *device_stream(Device *device, StreamKind kind); /* borrowed */
const char *device_name(const Device *device);          /* "cpu avx2", "cuda NVIDIA H200" */
/* May the host read and write what it gets from arenas and device_alloc? */
bool device_host_reads_memory(const Device *device);
/* Bytes of the device's own memory; 0 where that is the host's. */
void device_memory(Device *device, size_t *available, size_t *total);
#define DEVICE_FLOPS_MEASURE (-1.0)
/* FLOP/s of its products by the device's name, 0: unknown; DEVICE_FLOPS_MEASURE: there is no list. */
double device_listed_flops(Device *device);
const char *stream_name(StreamKind kind); /* "compute", "gather", "reduce", "publish" */
StreamKind stream_kind(const Stream *stream);
Device *stream_device(Stream *stream);

/* Queues kernel `id` with a copy of its argument struct (nbytes <= 512). On the CPU's compute stream it has run when
 * this returns. Kernels on communication streams use one thread. */
void stream_launch(Stream *stream, KernelId id, const void *args, size_t nbytes);

/* Queues a call on the host, in stream order, with a copy of `arg` (nbytes <= 512). On the CPU's compute stream it has
 * run when this returns, on cuda on every stream without a worker thread (the compute stream; all without
 * DeviceOptions.host_calls). fn may block (that is how MPI runs on a stream); it must not queue on its own stream. */
void stream_call(Stream *stream, void (*fn)(void *arg), const void *arg, size_t nbytes);

/* Waits until all that was queued has run. */
void stream_sync(Stream *stream);

/* Events. record marks the work queued so far; a wait that precedes any record is already satisfied. Re-recording moves
 * the mark; waits queued earlier keep the old one. */
Event *event_create(Device *device);
void event_destroy(Event *event);
void event_record(Event *event, Stream *stream);
void event_wait(Stream *stream, Event *event); /* work queued on `stream` after this runs after the mark */
double event_sync(Event *event);               /* the host waits; gives the microseconds it waited */
bool event_passed(Event *event);               /* would event_sync return at once? */

/* Times of the compute stream: when the work queued before each mark had run. */
typedef struct Stopwatch Stopwatch; /* opaque */
#define STOPWATCH_MARKS 4
Stopwatch *stopwatch_create(Device *device);
void stopwatch_destroy(Stopwatch *watch); /* accepts NULL */
void stopwatch_mark(Stopwatch *watch, int mark);
/* Milliseconds from one mark to another. False when they have not both passed. */
bool stopwatch_ms(Stopwatch *watch, int from, int to, double *ms);

/* Launches on the compute stream that come again, step after step, with the same arguments: a device may record them
 * and replay them at once. Between begin and end stands nothing but launches; `key` is all that their arguments depend
 * on. True: they have been queued, and there is no end. False: the caller queues them and ends. A device that never
 * replays has no Repeat, NULL, which is accepted everywhere. */
typedef struct Repeat Repeat; /* opaque */
Repeat *repeat_create(Device *device);
void repeat_destroy(Repeat *repeat);
bool repeat_begin(Repeat *repeat, const void *key, size_t nbytes);
void repeat_end(Repeat *repeat);

/* Device memory, zeroed like arena_init's. On the CPU it is host memory. */
DM_NODISCARD Status device_arena_init(Device *device, Arena *arena, size_t nbytes, const char *what);
/* Waits for the compute stream; nothing queued on another may use it. */
void device_arena_deinit(Device *device, Arena *arena);
/* A block for work queued on `stream` from here on. Work queued after device_free on any stream may be given the block
 * behind the work queued on `stream` so far: all that uses it must be waited for there. */
void *device_alloc(Stream *stream, size_t nbytes);
void device_free(Stream *stream, void *block); /* accepts NULL */

/* Copies run in order on `stream`. */
void device_copy(Stream *stream, void *dst, const void *src, size_t nbytes); /* within the device */
void device_copy_to_host(Stream *stream, void *host, const void *src,
                         size_t nbytes); /* synchronous: done on return, for STREAM_COMPUTE only */
/* `host` may be used again on return where the stream has no worker thread, else once the stream has passed. */
void device_copy_from_host(Stream *stream, void *dst, const void *host, size_t nbytes);

/* For transports, where the host cannot read device memory. From inside a stream_call on `stream`: a page-locked buffer
 * (undefined contents, valid until the next call), a copy to it that is done on return, and one from it that is done
 * when the next call on the stream begins. */
void *stream_pinned(Stream *stream, size_t nbytes);
void stream_read(Stream *stream, void *pinned, const void *src, size_t nbytes);
void stream_write(Stream *stream, void *dst, const void *pinned, size_t nbytes);
/* The cudaStream_t, for a transport that queues there itself. */
void *stream_native(Stream *stream);
/* What a host does between two looks at unfinished work of a device whose work it does not run itself: `tries` counts
 * from 0 in each wait. It must sleep a little, and may end the process. */
void device_set_pause(Device *device, void (*pause)(void *arg, int tries), void *arg);

/* Microseconds the compute stream spent blocked in event_wait since the last call of this function. */
double device_take_wait_us(Device *device);

#endif
