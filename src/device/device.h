/* Memory, streams and events of one device. The engine is written once against CUDA's execution model; the CPU backend
 * keeps it: the compute stream runs in the calling thread (kernels may use a pool of threads), every communication
 * stream is a worker thread with a FIFO queue, an event is a counter with a condition variable. A failure inside a
 * queued operation is fatal(): peers are already waiting. */
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

typedef struct DeviceOptions {
    const char *name;    /* "cpu" ("cuda" where it is linked in)                                        */
    int threads;         /* of the compute stream's pool, at least 1                                    */
    bool yield_to_comm;  /* more threads than cores on the node: compute threads raise their nice value */
    uint64_t delay_seed; /* tests only: non-zero sleeps 0..delay_max_us before queued operations        */
    int delay_max_us;
} DeviceOptions;

DM_NODISCARD Status device_create(Device **device, const DeviceOptions *options);
void device_destroy(Device *device); /* after all streams are idle; joins the threads */

Stream *device_stream(Device *device, StreamKind kind); /* borrowed */
const char *device_name(const Device *device);          /* "cpu avx2" */
const char *stream_name(StreamKind kind);               /* "compute", "gather", "reduce", "publish" */
StreamKind stream_kind(const Stream *stream);
Device *stream_device(Stream *stream);

/* Queues kernel `id` with a copy of its argument struct (nbytes <= 512). On the CPU's compute stream it has run when
 * this returns. Kernels on communication streams use one thread. */
void stream_launch(Stream *stream, KernelId id, const void *args, size_t nbytes);

/* Queues a call on the host, in stream order, with a copy of `arg` (nbytes <= 512). On the CPU's compute stream it has
 * run when this returns. fn may block (that is how MPI runs on a stream); it must not queue on its own stream. */
void stream_call(Stream *stream, void (*fn)(void *arg), const void *arg, size_t nbytes);

/* Waits until all that was queued has run. */
void stream_sync(Stream *stream);

/* Events. record marks the work queued so far; a wait that precedes any record is already satisfied. Re-recording moves
 * the mark; waits queued earlier keep the old one. */
Event *event_create(Device *device);
void event_destroy(Event *event);
void event_record(Event *event, Stream *stream);
void event_wait(Stream *stream, Event *event); /* work queued on `stream` after this runs after the mark */
double
event_sync(Event *event); /* the host waits; gives the microseconds it waited; not for events recorded on compute */

/* Device memory. On the CPU arena memory is host memory. Copies run in order on `stream`. */
DM_NODISCARD Status device_arena_init(Device *device, Arena *arena, size_t nbytes, const char *what);
void device_arena_deinit(Device *device, Arena *arena);
void device_copy_to_host(Stream *stream, void *host, const void *src,
                         size_t nbytes); /* synchronous: done on return, for STREAM_COMPUTE only */
void device_copy_from_host(Stream *stream, void *dst, const void *host, size_t nbytes);

/* Microseconds the compute stream spent blocked in event_wait since the last call of this function. */
double device_take_wait_us(Device *device);

#endif
