/* What each operation reads and writes. */
#include "comm/staged.h"

#include <stdint.h>

#define PINNED_ALIGN 64

/* Bytes that this rank brings and takes. */
typedef struct Traffic {
    size_t in, out;
} Traffic;

static Traffic traffic_of(const Collective *c) {
    const size_t part = (size_t)c->n * dtype_nbytes(c->dtype), whole = part * (size_t)c->size;
    const bool root = c->rank == c->root;
    switch (c->op) {
    case COMM_BROADCAST:
        return (Traffic){.in = root ? part : 0, .out = root ? 0 : part};
    case COMM_REDUCE:
        return (Traffic){.in = part, .out = root ? part : 0};
    case COMM_ALL_REDUCE:
        return (Traffic){.in = part, .out = part};
    case COMM_REDUCE_SCATTER:
        return (Traffic){.in = whole, .out = part};
    case COMM_ALL_GATHER:
        return (Traffic){.in = part, .out = whole};
    case COMM_GATHER:
        return (Traffic){.in = part, .out = root ? whole : 0};
    case COMM_SCATTER:
        return (Traffic){.in = root ? whole : 0, .out = part};
    case COMM_OP_COUNT:
        break;
    }
    return (Traffic){0};
}

Staged staged_begin(Collective *c, Stream *stream) {
    Staged staged = {0};
    if (device_host_reads_memory(stream_device(stream)))
        return staged;
    const Traffic traffic = traffic_of(c);
    const size_t in_room = (traffic.in + PINNED_ALIGN - 1) / PINNED_ALIGN * PINNED_ALIGN;
    char *pinned = stream_pinned(stream, in_room + traffic.out);
    const bool broadcast = c->op == COMM_BROADCAST; /* which has one buffer, dst */
    stream_read(stream, pinned, broadcast ? c->dst : c->src, traffic.in);
    if (traffic.out > 0)
        staged = (Staged){.device_dst = c->dst, .host_dst = pinned + in_room, .nbytes = traffic.out};
    c->src = pinned;
    c->dst = broadcast && c->rank == c->root ? pinned : pinned + in_room;
    return staged;
}

void staged_end(const Staged *staged, Stream *stream) {
    if (staged->device_dst != NULL)
        stream_write(stream, staged->device_dst, staged->host_dst, staged->nbytes);
}
