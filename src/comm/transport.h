/* How the collectives of a stream travel. MPI's (mpi.c, ordered.c, exchange.c) run on the host, inside a stream_call. A
 * transport of this table queues them on the device instead: one link for each communicator and stream. */
#ifndef DMUON_COMM_TRANSPORT_H
#define DMUON_COMM_TRANSPORT_H

#include "comm/collective.h"

typedef struct Link Link; /* a transport's own */

typedef struct Transport {
    const char *name;                          /* as in comm.transport */
    Link *(*open)(Comm *comm, Stream *stream); /* collective over comm; fatal() on failure */
    void (*queue)(Link *link, const Collective *c);
    const char *(*broken)(Link *link); /* what has failed meanwhile, NULL: nothing */
    void (*abort)(Link *link);         /* ends what it has queued, without the peers */
    void (*close)(Link *link);         /* nothing is queued any more */
} Transport;

extern const Transport transport_nccl; /* where it is built in */

const Transport *transport_in_use(void); /* NULL: mpi */

#endif
