/* One ring of operations for each stream. */
#include "comm/queued.h"

#include <pthread.h>

#include "base/clock.h"
#include "base/fatal.h"
#include "base/trace.h"

/* More than a step queues ahead of the device; fewer than the flight record keeps. */
#define QUEUED_MAX (FLIGHT_SLOTS - 16)
#define SLEEP_US 20
#define LOOKS_BEFORE_SLEEP 4
#define LOOKS_BEFORE_REAP 16 /* a short wait asks for nothing but what it waits for */

typedef struct Operation {
    Event *event; /* owned; behind the operation */
    FlightEntry *entry;
    WatchLabel label;
    Comm *comm;
    int64_t begin_ns;
} Operation;

typedef struct Ring {
    Operation operation[QUEUED_MAX];
    uint64_t added, passed;
} Ring;

static Ring rings[STREAM_COUNT];
static Watch watch;
static bool any; /* the thread below has queued */
static pthread_t queueing_thread;

static Operation *oldest(Ring *ring) {
    return ring->passed < ring->added ? &ring->operation[ring->passed % QUEUED_MAX] : NULL;
}

/* Ends the entries of what has passed. Gives whether there was any. */
static bool reap_ring(int kind) {
    Ring *ring = &rings[kind];
    bool moved = false;
    for (Operation *o = oldest(ring); o != NULL && event_passed(o->event); o = oldest(ring)) {
        flight_end(o->entry);
        trace_add(o->label.what, kind, o->label.unit, o->begin_ns, clock_ns());
        ring->passed++;
        moved = true;
    }
    return moved;
}

static bool reap(void) {
    bool moved = false;
    for (int kind = 0; kind < STREAM_COUNT; kind++)
        moved |= reap_ring(kind);
    return moved;
}

void queued_add(Comm *comm, Stream *stream, const WatchLabel *label, FlightEntry *entry) {
    const StreamKind kind = stream_kind(stream);
    Ring *ring = &rings[kind];
    queueing_thread = pthread_self();
    any = true;
    (void)reap_ring(kind);
    if (ring->added - ring->passed == QUEUED_MAX) {
        (void)event_sync(oldest(ring)->event);
        (void)reap_ring(kind);
        DM_ASSERT(ring->added - ring->passed < QUEUED_MAX);
    }
    Operation *o = &ring->operation[ring->added++ % QUEUED_MAX];
    if (o->event == NULL)
        o->event = event_create(stream_device(stream));
    o->entry = entry;
    o->label = *label;
    o->comm = comm;
    o->begin_ns = clock_ns();
    event_record(o->event, stream);
}

static void list_members(const void *arg, WatchPeers *peers) {
    const Comm *comm = arg;
    peers->count = 0;
    for (int rank = 0; rank < comm->size && peers->count < WATCH_PEERS; rank++) {
        if (rank == comm->rank)
            continue;
        peers->on_axis[peers->count] = rank;
        peers->in_world[peers->count++] = channel_world_rank(comm->channel[COMM_HOST], rank);
    }
}

static void check_links(const Operation *o) {
    for (int kind = 0; kind < STREAM_COUNT; kind++) {
        Link *link = o->comm->link[kind];
        const char *what = link != NULL ? transport_in_use()->broken(link) : NULL;
        if (what == NULL)
            continue;
        char operation[512];
        watch_label(&o->label);
        watch_describe(operation, sizeof operation);
        watch_take_turns();
        fatal("%s: %s", operation, what);
    }
}

/* The one that was queued first of those that have not passed. */
static const Operation *stuck(void) {
    const Operation *first = NULL;
    for (int kind = 0; kind < STREAM_COUNT; kind++) {
        const Operation *o = oldest(&rings[kind]);
        if (o != NULL && (first == NULL || o->begin_ns < first->begin_ns))
            first = o;
    }
    return first;
}

void queued_pause(void *arg, int tries) {
    (void)arg;
    if (tries == 0 || (tries >= LOOKS_BEFORE_REAP && reap()))
        watch_begin(&watch);
    const Operation *o = tries >= LOOKS_BEFORE_REAP ? stuck() : NULL;
    if (o == NULL) { /* it computes, for all that is known */
        if (tries >= LOOKS_BEFORE_SLEEP)
            clock_sleep_us(SLEEP_US);
        return;
    }
    check_links(o);
    watch_label(&o->label);
    (void)watch_pause(&watch, list_members, o->comm);
    watch_label(NULL);
}

void queued_end(void) {
    (void)reap();
    for (int kind = 0; kind < STREAM_COUNT; kind++) {
        DM_ASSERT(oldest(&rings[kind]) == NULL);
        for (int i = 0; i < QUEUED_MAX; i++)
            event_destroy(rings[kind].operation[i].event);
        rings[kind] = (Ring){0};
    }
    watch_begin(&watch); /* leaves the list of long waits */
    any = false;
}

void queued_abort(void) {
    if (!any || !pthread_equal(pthread_self(), queueing_thread))
        return;
    any = false;
    for (Comm *comm = comm_first(); comm != NULL; comm = comm->next)
        for (int kind = 0; kind < STREAM_COUNT; kind++)
            if (comm->link[kind] != NULL)
                transport_in_use()->abort(comm->link[kind]);
}
