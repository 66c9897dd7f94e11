/* The list of collectives is static: every member of a communicator queues the same ones, in the same order, on each of
 * its streams. Each keeps a hash of what it queued; here they are compared. */
#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>

#include "base/arena.h"
#include "base/fatal.h"
#include "base/hash.h"
#include "comm/collective.h"
#include "comm/watchdog.h"

#define MAX_COMMS 16

static Comm *first;

/* What a rank says of one communicator. */
typedef struct Tracks {
    int64_t leader;
    uint64_t sequence[STREAM_COUNT], hash[STREAM_COUNT];
} Tracks;

void comm_register(Comm *comm) {
    Comm **at = &first;
    while (*at != NULL)
        at = &(*at)->next;
    *at = comm;
}

void comm_forget(Comm *comm) {
    for (Comm **at = &first; *at != NULL; at = &(*at)->next)
        if (*at == comm) {
            *at = comm->next;
            return;
        }
}

Comm *comm_first(void) {
    return first;
}

CommPlace comm_advance(Comm *comm, int channel, const Collective *c, const char *label) {
    CommTrack *track = &comm->track[channel];
    if (comm->size == 1)
        return (CommPlace){0};
    const uint64_t sequence = atomic_load_explicit(&track->sequence, memory_order_relaxed) + 1;
    const uint64_t before = atomic_load_explicit(&track->hash, memory_order_relaxed);
    const uint64_t words[4] = {sequence, (uint64_t)c->op, (uint64_t)c->n, (uint64_t)c->root};
    const uint64_t hash = hash_bytes(label, strlen(label), hash_bytes(words, sizeof words, before));
    atomic_store_explicit(&track->sequence, sequence, memory_order_relaxed);
    atomic_store_explicit(&track->hash, hash, memory_order_relaxed);
    return (CommPlace){.sequence = sequence, .hash = hash};
}

/* The host's channels are left out: background saves use them at moments of their own. */
static int list_tracks(Tracks tracks[MAX_COMMS]) {
    int n = 0;
    for (const Comm *comm = first; comm != NULL && n < MAX_COMMS; comm = comm->next, n++) {
        tracks[n].leader = comm->leader;
        for (int kind = 0; kind < STREAM_COUNT; kind++) {
            tracks[n].sequence[kind] = atomic_load_explicit(&comm->track[kind].sequence, memory_order_relaxed);
            tracks[n].hash[kind] = atomic_load_explicit(&comm->track[kind].hash, memory_order_relaxed);
        }
    }
    return n;
}

static const char *name_of(int index) {
    const Comm *comm = first;
    while (index-- > 0)
        comm = comm->next;
    return comm->name;
}

static void compare(const Tracks *all, int n, int rank, int index) {
    const Tracks *theirs = &all[rank * n + index], *leads = &all[theirs->leader * n + index];
    for (int kind = 0; kind < STREAM_COUNT; kind++)
        if (theirs->hash[kind] != leads->hash[kind] || theirs->sequence[kind] != leads->sequence[kind]) {
            watch_take_turns();
            fatal("step %" PRId64 " stream %s, axis %s: rank %d (%s) and rank %d (%s) have not queued the same "
                  "collectives: operation %" PRIu64 ", hash %016" PRIx64 " and operation %" PRIu64 ", hash %016" PRIx64
                  "; scripts/flight.py shows the first that differs",
                  watch_step(), stream_name((StreamKind)kind), name_of(index), (int)theirs->leader,
                  comm_host((int)theirs->leader), rank, comm_host(rank), leads->sequence[kind], leads->hash[kind],
                  theirs->sequence[kind], theirs->hash[kind]);
        }
}

void comm_compare_sequences(Comm *world) {
    Tracks mine[MAX_COMMS];
    if (world->size == 1)
        return;
    const int n = list_tracks(mine);
    Tracks *all = HEAP_ALLOC(Tracks, (int64_t)n * world->size);
    host_all_gather(world, mine, all, n * (int64_t)sizeof *all);
    for (int rank = 0; rank < world->size; rank++)
        for (int index = 0; index < n; index++)
            compare(all, n, rank, index);
    heap_free(all);
}
