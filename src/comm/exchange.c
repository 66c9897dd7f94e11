/* Broadcast, gather, scatter, all_gather over flows. */
#include "comm/exchange.h"

#define CHUNK (256 << 10)
/* Up to here a broadcast is one hop from the root; beyond, pieces go down a binomial tree, so that the root sends log2
 * N times. */
#define DIRECT_RANKS 8
#define MAX_CHILDREN 64

typedef struct Links {
    int parent; /* -1 at the root */
    int child[MAX_CHILDREN], nchildren;
} Links;

static Links broadcast_links(int rank, int size, int root) {
    Links links = {.parent = -1};
    const int relative = (rank - root + size) % size;
    if (size <= DIRECT_RANKS) {
        if (relative > 0)
            links.parent = root;
        for (int i = 1; relative == 0 && i < size; i++)
            links.child[links.nchildren++] = (root + i) % size;
        return links;
    }
    int bit = 1; /* becomes the lowest set bit of `relative`, or the first power of two not below size */
    while (bit < size && (relative & bit) == 0)
        bit *= 2;
    if (relative > 0)
        links.parent = (relative - bit + root) % size;
    for (bit /= 2; bit > 0; bit /= 2)
        if (relative + bit < size)
            links.child[links.nchildren++] = (relative + bit + root) % size;
    return links;
}

void exchange_broadcast(const Collective *c) {
    const int64_t nbytes = c->n * (int64_t)dtype_nbytes(c->dtype);
    const Links links = broadcast_links(c->rank, c->size, c->root);
    const int received = links.parent >= 0 ? 1 : 0;
    Flow *flow = channel_begin(c->channel, COMM_BROADCAST, received + links.nchildren);
    if (received)
        flow[0] = flow_recv(links.parent, c->dst, nbytes, CHUNK);
    for (int i = 0; i < links.nchildren; i++) {
        flow[received + i] = flow_send(links.child[i], c->dst, nbytes, CHUNK);
        if (received)
            flow[received + i].limit = 0;
    }
    while (received && links.nchildren > 0 && flow[0].done < nbytes) {
        channel_step(c->channel);
        for (int i = 1; i <= links.nchildren; i++)
            flow[i].limit = flow[0].done;
    }
    channel_finish(c->channel);
}

void exchange_gather(const Collective *c) {
    const int64_t nbytes = c->n * (int64_t)dtype_nbytes(c->dtype);
    if (c->rank != c->root) {
        *channel_begin(c->channel, (int)c->op, 1) = flow_send(c->root, c->src, nbytes, CHUNK);
        channel_finish(c->channel);
        return;
    }
    Flow *flow = channel_begin(c->channel, (int)c->op, c->size - 1);
    for (int i = 1; i < c->size; i++) {
        const int peer = (c->rank + i) % c->size;
        flow[i - 1] = flow_recv(peer, (char *)c->dst + peer * nbytes, nbytes, CHUNK);
    }
    channel_finish(c->channel);
}

void exchange_scatter(const Collective *c) {
    const int64_t nbytes = c->n * (int64_t)dtype_nbytes(c->dtype);
    if (c->rank != c->root) {
        *channel_begin(c->channel, (int)c->op, 1) = flow_recv(c->root, c->dst, nbytes, CHUNK);
        channel_finish(c->channel);
        return;
    }
    Flow *flow = channel_begin(c->channel, (int)c->op, c->size - 1);
    for (int i = 1; i < c->size; i++) {
        const int peer = (c->rank + i) % c->size;
        flow[i - 1] = flow_send(peer, (const char *)c->src + peer * nbytes, nbytes, CHUNK);
    }
    channel_finish(c->channel);
}

void exchange_all_gather_runs(const Collective *c, int64_t total, int64_t run) {
    const int64_t esize = (int64_t)dtype_nbytes(c->dtype);
    char *dst = c->dst;
    Flow *flow = channel_begin(c->channel, COMM_ALL_GATHER, 2 * (c->size - 1));
    for (int i = 1; i < c->size; i++) {
        const int peer = (c->rank + i) % c->size;
        const int64_t theirs = total - peer * run, ours = total - c->rank * run;
        const int64_t in = theirs < 0 ? 0 : theirs < run ? theirs : run;
        const int64_t out = ours < 0 ? 0 : ours < run ? ours : run;
        flow[2 * i - 2] = flow_recv(peer, dst + peer * run * esize, in * esize, CHUNK);
        flow[2 * i - 1] = flow_send(peer, dst + c->rank * run * esize, out * esize, CHUNK);
    }
    channel_finish(c->channel);
}
