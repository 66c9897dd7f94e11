/* The local part of every collective. */
#include "comm/collective.h"

#include <string.h>

static void copy(void *dst, const void *src, int64_t nbytes) {
    if (nbytes > 0 && dst != src)
        memmove(dst, src, (size_t)nbytes);
}

void collective_copy_own(const Collective *c) {
    const int64_t nbytes = c->n * (int64_t)dtype_nbytes(c->dtype);
    const int64_t own = c->rank * nbytes;
    switch (c->op) {
    case COMM_BROADCAST:
        break;
    case COMM_REDUCE:
        if (c->rank == c->root)
            copy(c->dst, c->src, nbytes);
        break;
    case COMM_ALL_REDUCE:
        copy(c->dst, c->src, nbytes);
        break;
    case COMM_REDUCE_SCATTER:
        copy(c->dst, (const char *)c->src + own, nbytes);
        break;
    case COMM_ALL_GATHER:
        copy((char *)c->dst + own, c->src, nbytes);
        break;
    case COMM_GATHER:
        if (c->rank == c->root)
            copy((char *)c->dst + own, c->src, nbytes);
        break;
    case COMM_SCATTER:
        if (c->rank == c->root)
            copy(c->dst, (const char *)c->src + own, nbytes);
        break;
    case COMM_OP_COUNT:
        break;
    }
}
