/* The public collectives: checks, byte counters, the queue, trace spans. */
#include "comm/comm.h"

#include <stdatomic.h>

#include "base/clock.h"
#include "base/fatal.h"
#include "base/trace.h"
#include "comm/collective.h"
#include "comm/flight.h"
#include "comm/queued.h"
#include "comm/staged.h"
#include "comm/transport.h"
#include "comm/watchdog.h"
#include "comm/world.h"

typedef struct Request {
    Comm *comm;
    Collective run;
    CommTag tag;
    StreamKind stream;
    Stream *queue; /* of that kind */
    CommPlace place;
    int64_t step;
} Request;

static _Atomic int drop_op = -1;
static _Atomic int64_t drop_after;

const char *comm_op_name(CommOp op) {
    static const char *const name[COMM_OP_COUNT] = {
        [COMM_BROADCAST] = "broadcast",   [COMM_REDUCE] = "reduce",
        [COMM_ALL_REDUCE] = "all_reduce", [COMM_REDUCE_SCATTER] = "reduce_scatter",
        [COMM_ALL_GATHER] = "all_gather", [COMM_GATHER] = "gather",
        [COMM_SCATTER] = "scatter"};
    DM_ASSERT(op >= 0 && op < COMM_OP_COUNT);
    return name[op];
}

const char *comm_name(const Comm *comm) {
    return comm->name;
}

int comm_rank(const Comm *comm) {
    return comm->rank;
}

int comm_size(const Comm *comm) {
    return comm->size;
}

void comm_set_step(int64_t step) {
    watch_set_step(step);
}

void comm_debug_drop(CommOp op, int64_t nth) {
    drop_after = nth;
    drop_op = nth >= 0 ? (int)op : -1;
}

static bool take_drop(CommOp op) {
    if (atomic_load_explicit(&drop_op, memory_order_relaxed) != (int)op)
        return false;
    if (atomic_fetch_sub(&drop_after, 1) != 0)
        return false;
    drop_op = -1;
    return true;
}

static void count(Comm *comm, CommOp op, int64_t payload) {
    const int64_t n = comm->size;
    if (n == 1 || comm->rank != 0 || payload <= 0)
        return;
    int64_t bus = (n - 1) * payload;
    if (op == COMM_ALL_REDUCE)
        bus *= 2;
    else if (op == COMM_GATHER || op == COMM_SCATTER)
        bus /= n;
    comm->count[op][0] += 1;
    comm->count[op][1] += payload;
    comm->count[op][2] += bus;
}

void comm_take_counts(Comm *comm, CommCount counts[COMM_OP_COUNT]) {
    for (int op = 0; op < COMM_OP_COUNT; op++)
        counts[op] = (CommCount){.calls = atomic_exchange(&comm->count[op][0], 0),
                                 .payload_bytes = atomic_exchange(&comm->count[op][1], 0),
                                 .bus_bytes = atomic_exchange(&comm->count[op][2], 0)};
}

static int64_t whole_bytes(const Collective *c) {
    const bool per_rank =
        c->op == COMM_REDUCE_SCATTER || c->op == COMM_ALL_GATHER || c->op == COMM_GATHER || c->op == COMM_SCATTER;
    return c->n * (int64_t)dtype_nbytes(c->dtype) * (per_rank ? c->size : 1);
}

static WatchLabel label_of(const Request *request) {
    return (WatchLabel){.what = request->tag.what,
                        .op = comm_op_name(request->run.op),
                        .axis = request->comm->name,
                        .stream = stream_name(request->stream),
                        .unit = request->tag.unit,
                        .nbytes = whole_bytes(&request->run),
                        .place = request->place};
}

static FlightEntry *record(const Request *request, const WatchLabel *label) {
    return flight_begin((int)request->stream, &(FlightOperation){.op = label->op,
                                                                 .axis = label->axis,
                                                                 .what = label->what,
                                                                 .sequence = request->place.sequence,
                                                                 .hash = request->place.hash,
                                                                 .step = request->step,
                                                                 .count = request->run.n,
                                                                 .nbytes = label->nbytes,
                                                                 .unit = label->unit,
                                                                 .root = request->run.root,
                                                                 .leader = request->comm->leader});
}

/* On the host, in stream order. */
static void run_request(void *arg) {
    Request *request = arg;
    const Collective *c = &request->run;
    const WatchLabel label = label_of(request);
    const int64_t begin = clock_ns();
    FlightEntry *entry = record(request, &label);
    const Staged staged = staged_begin(&request->run, request->queue);
    watch_label(&label);
    collective_run(c);
    watch_label(NULL);
    staged_end(&staged, request->queue);
    flight_end(entry);
    trace_add(request->tag.what, (int)request->stream, request->tag.unit, begin, clock_ns());
}

/* On the device, by a transport. */
static void queue_request(const Request *request) {
    Link *link = request->comm->link[request->stream];
    const WatchLabel label = label_of(request);
    DM_ASSERT(link != NULL); /* comm_prepare */
    FlightEntry *entry = record(request, &label);
    watch_label(&label);
    transport_in_use()->queue(link, &request->run);
    watch_label(NULL);
    queued_add(request->comm, request->queue, &label, entry);
}

static void copy_own(Stream *stream, const Collective *c) {
    const OwnPart own = collective_own(c);
    if (own.nbytes > 0)
        device_copy(stream, own.dst, own.src, own.nbytes);
}

/* Fills in what the communicator and the stream say, and queues. */
static void submit(Comm *comm, Stream *stream, Collective run, CommTag tag) {
    _Static_assert(sizeof(Request) <= 512, "stream_call copies at most 512 bytes");
    const StreamKind kind = stream_kind(stream);
    DM_ASSERT(run.n >= 0 && run.root >= 0 && run.root < comm->size && tag.what != NULL);
    run.rank = comm->rank;
    run.size = comm->size;
    run.channel = comm->channel[kind];
    count(comm, run.op, tag.payload);
    const bool dropped = comm->size > 1 && take_drop(run.op);
    const Request request = {.comm = comm,
                             .run = run,
                             .tag = tag,
                             .stream = kind,
                             .queue = stream,
                             .place = comm_advance(comm, (int)kind, &run, tag.what),
                             .step = watch_step()};
    if (comm->size == 1 || dropped)
        copy_own(stream, &run);
    else if (transport_in_use() != NULL)
        queue_request(&request);
    else
        stream_call(stream, run_request, &request, sizeof request);
}

static void check_sum(Dtype dtype) {
    DM_ASSERT(dtype == DTYPE_F32 || dtype == DTYPE_F64 || dtype == DTYPE_U64);
}

void comm_broadcast(Comm *comm, Stream *stream, void *buf, int64_t n, Dtype dtype, int root, CommTag tag) {
    DM_ASSERT(buf != NULL || n == 0);
    submit(comm, stream, (Collective){.op = COMM_BROADCAST, .dst = buf, .n = n, .dtype = dtype, .root = root}, tag);
}

void comm_reduce(Comm *comm, Stream *stream, const void *src, void *dst, int64_t n, Dtype dtype, int root,
                 CommTag tag) {
    DM_ASSERT(n == 0 || (src != NULL && (dst != NULL || comm->rank != root)));
    check_sum(dtype);
    submit(comm, stream, (Collective){.op = COMM_REDUCE, .src = src, .dst = dst, .n = n, .dtype = dtype, .root = root},
           tag);
}

void comm_all_reduce(Comm *comm, Stream *stream, const void *src, void *dst, int64_t n, Dtype dtype, CommTag tag) {
    DM_ASSERT(n == 0 || (src != NULL && dst != NULL));
    check_sum(dtype);
    submit(comm, stream, (Collective){.op = COMM_ALL_REDUCE, .src = src, .dst = dst, .n = n, .dtype = dtype}, tag);
}

void comm_reduce_scatter(Comm *comm, Stream *stream, const void *src, void *dst, int64_t n, Dtype dtype, CommTag tag) {
    DM_ASSERT(n == 0 || (src != NULL && dst != NULL));
    check_sum(dtype);
    submit(comm, stream, (Collective){.op = COMM_REDUCE_SCATTER, .src = src, .dst = dst, .n = n, .dtype = dtype}, tag);
}

void comm_all_gather(Comm *comm, Stream *stream, const void *src, void *dst, int64_t n, Dtype dtype, CommTag tag) {
    DM_ASSERT(n == 0 || (src != NULL && dst != NULL));
    submit(comm, stream, (Collective){.op = COMM_ALL_GATHER, .src = src, .dst = dst, .n = n, .dtype = dtype}, tag);
}

void comm_gather(Comm *comm, Stream *stream, const void *src, void *dst, int64_t n, Dtype dtype, int root,
                 CommTag tag) {
    DM_ASSERT(n == 0 || (src != NULL && (dst != NULL || comm->rank != root)));
    submit(comm, stream, (Collective){.op = COMM_GATHER, .src = src, .dst = dst, .n = n, .dtype = dtype, .root = root},
           tag);
}

void comm_scatter(Comm *comm, Stream *stream, const void *src, void *dst, int64_t n, Dtype dtype, int root,
                  CommTag tag) {
    DM_ASSERT(n == 0 || (dst != NULL && (src != NULL || comm->rank != root)));
    submit(comm, stream, (Collective){.op = COMM_SCATTER, .src = src, .dst = dst, .n = n, .dtype = dtype, .root = root},
           tag);
}
