/* Channels over MPI: non-blocking point-to-point messages only, so that every wait sleeps between tests and has a
 * deadline, and so that the order of additions is ours. MPI errors end in the handler of world.c; return codes carry
 * nothing more. */
#include "comm/channel.h"

#include <inttypes.h>
#include <stdio.h>

#include <mpi.h>

#include "base/arena.h"
#include "base/fatal.h"
#include "base/str.h"
#include "comm/watchdog.h"

/* Tags: below, those of host_send; above, sequence and kind of the operation, within MPI's guaranteed 32767. A rank
 * that runs another operation than its peers then takes no foreign bytes, and sees in a message that it did not expect
 * what the peer runs instead. */
#define TAG_FIRST 30000
#define TAG_KINDS 8
#define TAG_SEQUENCES 256

/* ThreadSanitizer does not look into MPI: it is told which bytes a message reads or writes, when it is posted and when
 * it is over, since they belong to the library in between. */
#if defined(__SANITIZE_THREAD__)
void __tsan_read_range(void *at, unsigned long nbytes);
void __tsan_write_range(void *at, unsigned long nbytes);
#define TELL_READ(at, nbytes) __tsan_read_range(at, (unsigned long)(nbytes))
#define TELL_WRITE(at, nbytes) __tsan_write_range(at, (unsigned long)(nbytes))
#else
#define TELL_READ(at, nbytes) ((void)(at), (void)(nbytes))
#define TELL_WRITE(at, nbytes) ((void)(at), (void)(nbytes))
#endif

struct Channel {
    MPI_Comm comm; /* owned */
    int rank, size;
    uint32_t sequence; /* operations so far */
    int tag;           /* of the one that runs */
    int foreign;       /* tag of a message that came instead, -1: none */
    int nflows, capacity;
    Flow *flow;           /* [capacity], owned */
    MPI_Request *request; /* [capacity][FLOW_WINDOW], owned */
    Watch watch;
    Arena scratch; /* owned */
};

static Channel *wrap(MPI_Comm comm, const char *name) {
    Channel *channel = HEAP_ALLOC(Channel, 1);
    channel->comm = comm;
    MPI_Comm_set_name(comm, name);
    MPI_Comm_rank(comm, &channel->rank);
    MPI_Comm_size(comm, &channel->size);
    return channel;
}

Channel *channel_world(const char *name) {
    MPI_Comm comm;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    return wrap(comm, name);
}

Channel *channel_split(Channel *parent, const char *name, int color, int key) {
    MPI_Comm comm;
    MPI_Comm_split(parent->comm, color, key, &comm);
    return wrap(comm, name);
}

Channel *channel_duplicate(Channel *parent, const char *name) {
    MPI_Comm comm;
    MPI_Comm_dup(parent->comm, &comm);
    return wrap(comm, name);
}

void channel_destroy(Channel *channel) {
    if (channel == NULL)
        return;
    MPI_Comm_free(&channel->comm);
    heap_free(channel->flow);
    heap_free(channel->request);
    arena_deinit(&channel->scratch);
    heap_free(channel);
}

int channel_rank(const Channel *channel) {
    return channel->rank;
}

int channel_size(const Channel *channel) {
    return channel->size;
}

int channel_world_rank(const Channel *channel, int rank) {
    MPI_Group ours, all;
    int in_world;
    MPI_Comm_group(channel->comm, &ours);
    MPI_Comm_group(MPI_COMM_WORLD, &all);
    MPI_Group_translate_ranks(ours, 1, &rank, all, &in_world);
    MPI_Group_free(&ours);
    MPI_Group_free(&all);
    return in_world;
}

Flow *channel_begin_tagged(Channel *channel, int tag, int nflows) {
    if (nflows > channel->capacity) {
        heap_free(channel->flow);
        heap_free(channel->request);
        channel->flow = HEAP_ALLOC(Flow, nflows);
        channel->request = HEAP_ALLOC(MPI_Request, nflows * FLOW_WINDOW);
        channel->capacity = nflows;
    }
    channel->tag = tag;
    channel->foreign = -1;
    channel->nflows = nflows;
    watch_begin(&channel->watch);
    return channel->flow;
}

Flow *channel_begin(Channel *channel, int kind, int nflows) {
    DM_ASSERT(kind >= 0 && kind < TAG_KINDS);
    const int sequence = (int)(channel->sequence++ % TAG_SEQUENCES);
    return channel_begin_tagged(channel, TAG_FIRST + sequence * TAG_KINDS + kind, nflows);
}

Flow flow_send(int peer, const void *buf, int64_t nbytes, int64_t chunk) {
    /* MPI_Isend takes const; the cast only lets both directions share the field. */
    return (Flow){
        .buf = (char *)(uintptr_t)buf, .nbytes = nbytes, .chunk = chunk, .limit = nbytes, .peer = peer, .send = true};
}

Flow flow_recv(int peer, void *buf, int64_t nbytes, int64_t chunk) {
    return (Flow){.buf = buf, .nbytes = nbytes, .chunk = chunk, .limit = nbytes, .peer = peer};
}

Flow flow_recv_ring(int peer, void *ring, int64_t nbytes, int64_t chunk) {
    Flow flow = flow_recv(peer, ring, nbytes, chunk);
    flow.ring = true;
    flow.limit = nbytes < chunk * FLOW_WINDOW ? nbytes : chunk * FLOW_WINDOW;
    return flow;
}

static int64_t piece_at(const Flow *flow, int64_t offset) {
    return flow->nbytes - offset < flow->chunk ? flow->nbytes - offset : flow->chunk;
}

static char *place_at(const Flow *flow, int64_t offset) {
    return flow->buf + (flow->ring ? offset / flow->chunk % FLOW_WINDOW * flow->chunk : offset);
}

static void tell(const Flow *flow, char *at, int64_t nbytes) {
    if (flow->send)
        TELL_READ(at, nbytes);
    else
        TELL_WRITE(at, nbytes);
}

static void check_count(const Channel *channel, const Flow *flow, MPI_Status *status, int64_t due) {
    int count = 0;
    MPI_Get_count(status, MPI_BYTE, &count);
    if (count == due)
        return;
    char what[512];
    watch_describe(what, sizeof what);
    watch_take_turns();
    fatal("%s: rank %d of this axis sent %d bytes to rank %d where %" PRId64 " were due", what, flow->peer, count,
          channel->rank, due);
}

/* A receive could be cancelled because nothing had come for it, though later messages of the peer had: messages of one
 * sender do not overtake each other, so the peer is past this operation, or in another. */
static _Noreturn void mismatch(const Channel *channel, const Flow *flow) {
    const int world_rank = channel_world_rank(channel, flow->peer);
    const int theirs = channel->foreign - TAG_FIRST, ours = channel->tag - TAG_FIRST;
    char what[512];
    watch_describe(what, sizeof what);
    watch_take_turns();
    fatal("%s: rank %d of this axis (rank %d, %s) sent %s instead (message %d of %d, here %d): the ranks do not run "
          "the same collectives",
          what, flow->peer, world_rank, comm_host(world_rank), comm_op_name((CommOp)(theirs % TAG_KINDS)),
          theirs / TAG_KINDS, TAG_SEQUENCES, ours / TAG_KINDS);
}

static bool flow_post(Channel *channel, Flow *flow, MPI_Request *request) {
    bool moved = false;
    while (flow->posted < flow->nbytes && flow->posted - flow->done < flow->chunk * FLOW_WINDOW) {
        const int64_t nbytes = piece_at(flow, flow->posted);
        if (flow->posted + nbytes > flow->limit)
            break;
        const int64_t slot = flow->posted / flow->chunk % FLOW_WINDOW;
        char *at = place_at(flow, flow->posted);
        tell(flow, at, nbytes);
        if (flow->send)
            MPI_Isend(at, (int)nbytes, MPI_BYTE, flow->peer, channel->tag, channel->comm, &request[slot]);
        else
            MPI_Irecv(at, (int)nbytes, MPI_BYTE, flow->peer, channel->tag, channel->comm, &request[slot]);
        flow->posted += nbytes;
        moved = true;
    }
    return moved;
}

static bool flow_test(Channel *channel, Flow *flow, MPI_Request *request) {
    bool moved = false;
    while (flow->done < flow->posted) {
        int finished = 0;
        MPI_Status status;
        MPI_Test(&request[flow->done / flow->chunk % FLOW_WINDOW], &finished, &status);
        if (!finished)
            break;
        int cancelled = 0;
        if (channel->foreign >= 0 && !flow->send)
            MPI_Test_cancelled(&status, &cancelled);
        if (cancelled)
            mismatch(channel, flow);
        const int64_t nbytes = piece_at(flow, flow->done);
        if (!flow->send)
            check_count(channel, flow, &status, nbytes);
        tell(flow, place_at(flow, flow->done), nbytes);
        flow->done += nbytes;
        moved = true;
    }
    return moved;
}

static bool flow_waits(const Flow *flow) {
    return flow->done < flow->nbytes && flow->done < flow->posted;
}

static void list_missing(const void *arg, WatchPeers *peers) {
    const Channel *channel = arg;
    bool *listed = HEAP_ALLOC(bool, channel->size);
    peers->count = 0;
    for (int i = 0; i < channel->nflows && peers->count < WATCH_PEERS; i++) {
        const Flow *flow = &channel->flow[i];
        if (!flow_waits(flow) || listed[flow->peer])
            continue;
        listed[flow->peer] = true;
        peers->on_axis[peers->count] = flow->peer;
        peers->in_world[peers->count++] = channel_world_rank(channel, flow->peer);
    }
    heap_free(listed);
}

/* A long wait: has a peer sent a message of another operation? Cancelling a receive tells whether its own has come. */
static void look_for_foreign(Channel *channel) {
    for (int i = 0; i < channel->nflows && channel->tag >= TAG_FIRST && channel->foreign < 0; i++) {
        const Flow *flow = &channel->flow[i];
        int found = 0;
        MPI_Status status;
        if (flow->send || !flow_waits(flow))
            continue;
        MPI_Iprobe(flow->peer, MPI_ANY_TAG, channel->comm, &found, &status);
        if (!found || status.MPI_TAG < TAG_FIRST || status.MPI_TAG == channel->tag)
            continue;
        channel->foreign = status.MPI_TAG;
        MPI_Cancel(&channel->request[(size_t)i * FLOW_WINDOW + (size_t)(flow->done / flow->chunk % FLOW_WINDOW)]);
    }
}

void channel_step(Channel *channel) {
    bool moved = false;
    for (int i = 0; i < channel->nflows; i++) {
        Flow *flow = &channel->flow[i];
        if (flow->done == flow->nbytes)
            continue;
        MPI_Request *request = channel->request + (size_t)i * FLOW_WINDOW;
        moved |= flow_post(channel, flow, request);
        moved |= flow_test(channel, flow, request);
    }
    if (moved)
        watch_begin(&channel->watch);
    else if (watch_pause(&channel->watch, list_missing, channel))
        look_for_foreign(channel);
}

static bool channel_busy(const Channel *channel) {
    for (int i = 0; i < channel->nflows; i++)
        if (channel->flow[i].done < channel->flow[i].nbytes)
            return true;
    return false;
}

void channel_finish(Channel *channel) {
    while (channel_busy(channel))
        channel_step(channel);
}

void *channel_scratch(Channel *channel, size_t nbytes) {
    Arena *arena = &channel->scratch;
    if (arena->capacity < nbytes) {
        arena_deinit(arena);
        *arena = (Arena){0};
        if (arena_init(arena, (nbytes + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN, "messages under way") !=
            STATUS_OK)
            fatal("%s", status_trail());
    }
    arena_rewind(arena, 0);
    return arena_push(arena, nbytes);
}
