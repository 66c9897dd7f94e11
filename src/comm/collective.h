/* One collective as it runs, whatever queued it. */
#ifndef DMUON_COMM_COLLECTIVE_H
#define DMUON_COMM_COLLECTIVE_H

#include <stdint.h>

#include "comm/channel.h"
#include "comm/comm.h"
#include "tensor/dtype.h"

#define COMM_CHANNELS (STREAM_COUNT + 1)
#define COMM_HOST STREAM_COUNT /* the channel of host_* calls */

typedef struct Collective {
    Channel *channel; /* borrowed; NULL when size is 1 */
    CommOp op;
    Dtype dtype;
    int rank, size, root;
    const void *src; /* broadcast: unused */
    void *dst;
    int64_t n; /* elements, as in comm.h */
} Collective;

/* What one stream ran on one communicator: the same on all its members as long as they agree. Written by the thread
 * that queues. */
typedef struct CommTrack {
    _Atomic uint64_t sequence; /* operations so far                                  */
    _Atomic uint64_t hash;     /* of every (sequence, op, count, root, label) so far */
} CommTrack;

struct Comm {
    char name[32];
    int rank, size;
    int leader; /* rank in the world of rank 0     */
    Comm *next; /* of all that have channels       */
    CommTrack track[COMM_CHANNELS];
    Channel *channel[COMM_CHANNELS];         /* owned; NULL when size is 1             */
    struct Link *link[STREAM_COUNT];         /* owned; of another transport, NULL: mpi */
    _Atomic int64_t count[COMM_OP_COUNT][3]; /* calls, payload bytes, bus bytes        */
};

/* This rank's own part and where the operation wants it: all there is to do for size 1. dst NULL: nowhere. */
typedef struct OwnPart {
    void *dst;
    const void *src;
    size_t nbytes;
} OwnPart;
OwnPart collective_own(const Collective *c);
/* Copies it, in memory that the host reads. */
void collective_copy_own(const Collective *c);
/* The whole operation. Blocks; fatal() on failure. */
void collective_run(const Collective *c);

/* dst[i] = tree over r < count of part[r][i], n elements; dst may be one of the parts. */
void tree_sum(Dtype dtype, void *dst, const void *const *part, int count, int64_t n);
/* dst[i] = a[i] + b[i]; may alias. */
void tree_add(Dtype dtype, void *dst, const void *a, const void *b, int64_t n);

/* Where one operation stands on its channel's track. */
typedef struct CommPlace {
    uint64_t sequence, hash;
} CommPlace;
/* Counts and hashes an operation that is about to be queued; `root` -1: none. */
CommPlace comm_advance(Comm *comm, int channel, const Collective *c, const char *label);
/* All communicators with channels, in the order in which they were made. */
void comm_register(Comm *comm);
void comm_forget(Comm *comm);
Comm *comm_first(void);

/* A rank's host by its rank in the world. Borrowed. */
const char *comm_host(int rank);
/* This rank in the world and its host, for the words of an agreement. Set by world_init. */
void comm_identity(int *rank, const char **host);

#endif
