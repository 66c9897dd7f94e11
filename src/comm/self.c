/* The local part of every collective. */
#include <string.h>

#include "comm/collective.h"

static OwnPart part(void *dst, int64_t dst_at, const void *src, int64_t src_at, int64_t nbytes) {
    return (OwnPart){.dst = (char *)dst + dst_at, .src = (const char *)src + src_at, .nbytes = (size_t)nbytes};
}

OwnPart collective_own(const Collective *c) {
    const int64_t nbytes = c->n * (int64_t)dtype_nbytes(c->dtype);
    const int64_t own = c->rank * nbytes;
    const bool root = c->rank == c->root;
    if (nbytes == 0)
        return (OwnPart){0};
    switch (c->op) {
    case COMM_REDUCE:
        return root ? part(c->dst, 0, c->src, 0, nbytes) : (OwnPart){0};
    case COMM_ALL_REDUCE:
        return part(c->dst, 0, c->src, 0, nbytes);
    case COMM_REDUCE_SCATTER:
        return part(c->dst, 0, c->src, own, nbytes);
    case COMM_ALL_GATHER:
        return part(c->dst, own, c->src, 0, nbytes);
    case COMM_GATHER:
        return root ? part(c->dst, own, c->src, 0, nbytes) : (OwnPart){0};
    case COMM_SCATTER:
        return root ? part(c->dst, 0, c->src, own, nbytes) : (OwnPart){0};
    case COMM_BROADCAST:
    case COMM_OP_COUNT:
        break;
    }
    return (OwnPart){0};
}

void collective_copy_own(const Collective *c) {
    const OwnPart own = collective_own(c);
    if (own.nbytes > 0 && own.dst != own.src)
        memmove(own.dst, own.src, own.nbytes);
}
