/* Synchronous calls on the host's own channel. They run the same collectives, in the calling thread. */
#include "comm/comm.h"

#include <pthread.h>
#include <string.h>

#include "base/arena.h"
#include "base/fatal.h"
#include "comm/collective.h"
#include "comm/flight.h"
#include "comm/watchdog.h"

#define CHUNK (1 << 20)

static WatchLabel label_of(const Comm *comm, const char *op, int64_t nbytes) {
    return (WatchLabel){.what = "host", .op = op, .axis = comm->name, .stream = "host", .unit = -1, .nbytes = nbytes};
}

/* A thread that saves in the background has calls of its own. */
static pthread_mutex_t ring_lock = PTHREAD_MUTEX_INITIALIZER;

static FlightEntry *record(const Comm *comm, const WatchLabel *label, int64_t count, int root) {
    pthread_mutex_lock(&ring_lock);
    FlightEntry *entry = flight_begin(COMM_HOST, &(FlightOperation){.op = label->op,
                                                                    .axis = label->axis,
                                                                    .what = label->what,
                                                                    .sequence = label->place.sequence,
                                                                    .hash = label->place.hash,
                                                                    .step = watch_step(),
                                                                    .count = count,
                                                                    .nbytes = label->nbytes,
                                                                    .unit = -1,
                                                                    .root = root,
                                                                    .leader = comm->leader});
    pthread_mutex_unlock(&ring_lock);
    return entry;
}

static void run(Comm *comm, Collective c) {
    WatchLabel label = label_of(comm, comm_op_name(c.op), c.n * (int64_t)dtype_nbytes(c.dtype));
    DM_ASSERT(c.n >= 0 && c.root >= 0 && c.root < comm->size);
    c.rank = comm->rank;
    c.size = comm->size;
    c.channel = comm->channel[COMM_HOST];
    if (c.size == 1) {
        collective_run(&c);
        return;
    }
    label.place = comm_advance(comm, COMM_HOST, &c, label.what);
    FlightEntry *entry = record(comm, &label, c.n, c.root);
    watch_label(&label);
    collective_run(&c);
    watch_label(NULL);
    flight_end(entry);
}

void host_broadcast(Comm *comm, void *buf, int64_t nbytes, int root) {
    run(comm, (Collective){.op = COMM_BROADCAST, .dst = buf, .n = nbytes, .dtype = DTYPE_U8, .root = root});
}

void host_all_gather(Comm *comm, const void *src, void *dst, int64_t nbytes) {
    run(comm, (Collective){.op = COMM_ALL_GATHER, .src = src, .dst = dst, .n = nbytes, .dtype = DTYPE_U8});
}

void host_sum_u64(Comm *comm, uint64_t *values, int n) {
    run(comm, (Collective){.op = COMM_ALL_REDUCE, .src = values, .dst = values, .n = n, .dtype = DTYPE_U64});
}

void host_sum_f64(Comm *comm, double *values, int n) {
    run(comm, (Collective){.op = COMM_ALL_REDUCE, .src = values, .dst = values, .n = n, .dtype = DTYPE_F64});
}

void host_max_f64(Comm *comm, double *values, int n) {
    double *all = HEAP_ALLOC(double, (int64_t)comm->size *n + 1);
    host_all_gather(comm, values, all, (int64_t)n * (int64_t)sizeof *values);
    for (int i = 0; i < n; i++) {
        values[i] = all[i];
        for (int r = 1; r < comm->size; r++)
            if (all[(int64_t)r * n + i] > values[i])
                values[i] = all[(int64_t)r * n + i];
    }
    heap_free(all);
}

static void run_message(Comm *comm, const char *op, int tag, Flow message) {
    const WatchLabel label = label_of(comm, op, message.nbytes);
    DM_ASSERT(message.nbytes >= 0 && message.peer >= 0 && message.peer < comm->size && message.peer != comm->rank);
    DM_ASSERT(tag >= 0 && tag < 30000);
    FlightEntry *entry = record(comm, &label, message.nbytes, message.peer);
    watch_label(&label);
    *channel_begin_tagged(comm->channel[COMM_HOST], tag, 1) = message;
    channel_finish(comm->channel[COMM_HOST]);
    watch_label(NULL);
    flight_end(entry);
}

void host_send(Comm *comm, const void *buf, int64_t nbytes, int to, int tag) {
    run_message(comm, "send", tag, flow_send(to, buf, nbytes, CHUNK));
}

void host_recv(Comm *comm, void *buf, int64_t nbytes, int from, int tag) {
    run_message(comm, "recv", tag, flow_recv(from, buf, nbytes, CHUNK));
}

void host_barrier(Comm *comm) {
    uint64_t nothing = 0;
    host_sum_u64(comm, &nothing, 1);
}
