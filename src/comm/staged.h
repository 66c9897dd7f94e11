/* A collective over memory of the host, for buffers that the host cannot read: parts go to a page-locked copy before
 * and come back after. */
#ifndef DMUON_COMM_STAGED_H
#define DMUON_COMM_STAGED_H

#include "comm/collective.h"

typedef struct Staged {
    void *device_dst; /* NULL: nothing comes back */
    const void *host_dst;
    size_t nbytes; /* that come back */
} Staged;

/* From inside a stream_call on `stream`. Where the host cannot read the stream's memory, src and dst of `c` become
 * page-locked copies; elsewhere nothing happens. */
Staged staged_begin(Collective *c, Stream *stream);
void staged_end(const Staged *staged, Stream *stream);

#endif
