/* One duplicate of a communicator and its moving messages. A channel is used by one thread at a time and runs one
 * operation at a time, in the same sequence on every rank; that is what keeps message streams apart. mpi.c implements
 * it. */
#ifndef DMUON_COMM_CHANNEL_H
#define DMUON_COMM_CHANNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FLOW_WINDOW 4 /* pieces of a flow under way at once */

typedef struct Channel Channel;

/* A run of bytes to or from one peer, moved in pieces of `chunk` bytes (both ends agree on it). */
typedef struct Flow {
    char *buf; /* borrowed: [nbytes], or a ring of FLOW_WINDOW chunks */
    int64_t nbytes, chunk;
    int64_t limit;        /* bytes that may be under way: what is ready to send, or has room to arrive */
    int64_t posted, done; /* bytes, in order                                                           */
    int peer;
    bool send, ring;
} Flow;

/* Collective over the parent. */
Channel *channel_world(const char *name);
Channel *channel_split(Channel *parent, const char *name, int color, int key);
Channel *channel_duplicate(Channel *parent, const char *name);
void channel_destroy(Channel *channel);
int channel_rank(const Channel *channel);
int channel_size(const Channel *channel);
int channel_world_rank(const Channel *channel, int rank);

/* Starts an operation with `nflows` flows, to be filled with flow_send and flow_recv; kind in [0, 8) is checked against
 * the peers. */
Flow *channel_begin(Channel *channel, int kind, int nflows);
Flow *channel_begin_tagged(Channel *channel, int tag, int nflows);        /* 0 <= tag < 30000 */
Flow flow_send(int peer, const void *buf, int64_t nbytes, int64_t chunk); /* all ready at once */
Flow flow_recv(int peer, void *buf, int64_t nbytes, int64_t chunk);
Flow flow_recv_ring(int peer, void *ring, int64_t nbytes, int64_t chunk); /* room for the first FLOW_WINDOW chunks */

/* Posts and tests what can be; sleeps a little when nothing moved (watchdog.h). */
void channel_step(Channel *channel);
/* Steps until every flow is done. */
void channel_finish(Channel *channel);
/* 64-byte-aligned memory of the channel, undefined contents, valid until the next call. */
void *channel_scratch(Channel *channel, size_t nbytes);

#endif
