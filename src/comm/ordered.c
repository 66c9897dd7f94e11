/* The collectives with sums. The order of additions is tree(rank 0 .. rank N-1) on every path; paths differ in who adds
 * and in how many hops a message takes:
 *
 * - small: one hop, who needs the sum receives all parts and adds them
 * - large reduce: pieces climb the tree of ranks; a node is added at the root if the root is among its ranks, else at
 *   its lowest rank, so that a piece crosses between ranks N-1 times and no more
 * - large reduce_scatter: one hop, each rank receives its own part from all
 * - large all_reduce: that, then an all_gather of the parts */
#include "comm/collective.h"

#include "base/arena.h"
#include "comm/exchange.h"

#define SMALL_BYTES (64 << 10)
#define REDUCE_CHUNK (256 << 10)
#define SCATTER_CHUNK (128 << 10)
#define SCATTER_CHUNK_MIN (8 << 10)
#define SCATTER_ROOM (16 << 20) /* bytes of pieces under way at one rank */
#define MAX_LEVELS 32

static int64_t bytes_of(const Collective *c, int64_t n) {
    return n * (int64_t)dtype_nbytes(c->dtype);
}

static int64_t min64(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* The piece size of a sum that one rank makes of all parts: what sender and receiver both know. */
static int64_t gathered_chunk(int size, int64_t nbytes) {
    int64_t chunk = SCATTER_CHUNK;
    while (chunk > SCATTER_CHUNK_MIN && chunk * FLOW_WINDOW * size > SCATTER_ROOM)
        chunk /= 2;
    return nbytes <= SMALL_BYTES && nbytes <= chunk ? (nbytes + 63) / 64 * 64 : chunk;
}

/* Receives a part of n elements from every other rank and adds the tree into dst. Flows: the size-1 receives (peers in
 * rank order without the own), which this fills, then any sends, filled by the caller. */
typedef struct Gathered {
    const void *own; /* [n] */
    void *dst;       /* [n], may be own */
    int64_t n;
} Gathered;

static void add_gathered(const Collective *c, const Gathered *g, const char *ring, Flow *flow, int64_t chunk) {
    const int64_t nbytes = bytes_of(c, g->n), esize = bytes_of(c, 1);
    const void **part = HEAP_ALLOC(const void *, c->size);
    for (int64_t at = 0; at < nbytes; at += chunk) {
        const int64_t end = min64(at + chunk, nbytes);
        const int64_t slot = at / chunk % FLOW_WINDOW;
        for (int i = 0; i < c->size - 1; i++)
            while (flow[i].done < end)
                channel_step(c->channel);
        for (int r = 0, i = 0; r < c->size; r++)
            part[r] = r == c->rank ? (const char *)g->own + at : ring + (i++ * FLOW_WINDOW + slot) * chunk;
        tree_sum(c->dtype, (char *)g->dst + at, part, c->size, (end - at) / esize);
        for (int i = 0; i < c->size - 1; i++)
            flow[i].limit = min64(flow[i].limit + chunk, nbytes);
    }
    heap_free(part);
}

static char *receive_gathered(const Collective *c, int64_t n, Flow *flow, int64_t chunk) {
    const int64_t nbytes = bytes_of(c, n);
    char *ring = channel_scratch(c->channel, (size_t)((c->size - 1) * FLOW_WINDOW * chunk));
    for (int r = 0, i = 0; r < c->size; r++)
        if (r != c->rank) {
            flow[i] = flow_recv_ring(r, ring + i * FLOW_WINDOW * chunk, nbytes, chunk);
            i++;
        }
    return ring;
}

static void reduce_small(const Collective *c) {
    const int64_t nbytes = bytes_of(c, c->n), chunk = gathered_chunk(c->size, nbytes);
    if (c->rank != c->root) {
        *channel_begin(c->channel, (int)c->op, 1) = flow_send(c->root, c->src, nbytes, chunk);
        channel_finish(c->channel);
        return;
    }
    Flow *flow = channel_begin(c->channel, (int)c->op, c->size - 1);
    const char *ring = receive_gathered(c, c->n, flow, chunk);
    add_gathered(c, &(Gathered){.own = c->src, .dst = c->dst, .n = c->n}, ring, flow, chunk);
}

/* Who adds the node of ranks [lo, hi). */
static int executor(int lo, int hi, int root) {
    return lo <= root && root < hi ? root : lo;
}

typedef struct Climb {
    int peer[MAX_LEVELS]; /* whose sub-trees this rank adds to its own, in this order */
    int npeers;
    int parent; /* where its sum goes; -1 at the root */
} Climb;

static Climb climb_of(int rank, int size, int root) {
    Climb climb = {.parent = -1};
    int down[MAX_LEVELS], n = 0;
    for (int lo = 0, hi = size; hi - lo > 1;) {
        int left = 1;
        while (left * 2 < hi - lo)
            left *= 2;
        const int mid = lo + left, node = executor(lo, hi, root);
        const int first = executor(lo, mid, root), second = executor(mid, hi, root);
        const int mine = rank < mid ? first : second, other = rank < mid ? second : first;
        if (mine == rank && node == rank)
            down[n++] = other;
        else if (mine == rank)
            climb.parent = node;
        if (rank < mid)
            hi = mid;
        else
            lo = mid;
    }
    while (n > 0)
        climb.peer[climb.npeers++] = down[--n];
    return climb;
}

/* One piece: dst = (src + peer 0) + peer 1 ... Levels of the tree, lowest first; an addition's operands may stand
 * either way. */
static void add_levels(const Collective *c, char *dst, const char *src, const Climb *climb, const char *ring,
                       int64_t nbytes) {
    for (int i = 0; i < climb->npeers; i++) {
        const char *theirs = ring + (int64_t)i * FLOW_WINDOW * REDUCE_CHUNK;
        tree_add(c->dtype, dst, i == 0 ? src : dst, theirs, nbytes / bytes_of(c, 1));
    }
}

static void reduce_large(const Collective *c) {
    const Climb climb = climb_of(c->rank, c->size, c->root);
    const int64_t nbytes = bytes_of(c, c->n);
    Flow *flow = channel_begin(c->channel, (int)c->op, climb.npeers + (climb.parent >= 0));
    Flow *up = climb.parent >= 0 ? &flow[climb.npeers] : NULL;
    if (climb.npeers == 0) {
        *up = flow_send(climb.parent, c->src, nbytes, REDUCE_CHUNK);
        channel_finish(c->channel);
        return;
    }
    /* One ring per peer, and one more for sums on their way to the parent. */
    char *ring = channel_scratch(c->channel, (size_t)(climb.npeers + 1) * FLOW_WINDOW * REDUCE_CHUNK);
    char *sums = ring + (int64_t)climb.npeers * FLOW_WINDOW * REDUCE_CHUNK;
    for (int i = 0; i < climb.npeers; i++)
        flow[i] = flow_recv_ring(climb.peer[i], ring + (int64_t)i * FLOW_WINDOW * REDUCE_CHUNK, nbytes, REDUCE_CHUNK);
    if (up != NULL) {
        *up = flow_send(climb.parent, sums, nbytes, REDUCE_CHUNK);
        up->ring = true;
        up->limit = 0;
    }
    for (int64_t at = 0; at < nbytes; at += REDUCE_CHUNK) {
        const int64_t end = min64(at + REDUCE_CHUNK, nbytes);
        const int64_t slot = at / REDUCE_CHUNK % FLOW_WINDOW * REDUCE_CHUNK;
        for (int i = 0; i < climb.npeers; i++)
            while (flow[i].done < end)
                channel_step(c->channel);
        while (up != NULL && at - up->done >= FLOW_WINDOW * REDUCE_CHUNK)
            channel_step(c->channel);
        char *dst = up != NULL ? sums + slot : (char *)c->dst + at;
        add_levels(c, dst, (const char *)c->src + at, &climb, ring + slot, end - at);
        for (int i = 0; i < climb.npeers; i++)
            flow[i].limit = min64(flow[i].limit + REDUCE_CHUNK, nbytes);
        if (up != NULL)
            up->limit = end;
    }
    channel_finish(c->channel);
}

/* Rank r's part of a vector cut into runs of `run` elements, the last ones short or empty. */
static int64_t part_count(int64_t total, int64_t run, int r) {
    const int64_t left = total - r * run;
    return left < 0 ? 0 : min64(left, run);
}

/* dst = tree over ranks of elements [rank*run, ...) of src [total]. dst may be that part of src. */
static void reduce_scatter(const Collective *c, int64_t total, int64_t run, void *dst) {
    Flow *flow = channel_begin(c->channel, (int)c->op, 2 * (c->size - 1));
    const int64_t own = part_count(total, run, c->rank), chunk = gathered_chunk(c->size, bytes_of(c, own));
    const char *src = c->src;
    const char *ring = receive_gathered(c, own, flow, chunk);
    for (int i = 1; i < c->size; i++) { /* each rank starts with another peer */
        const int peer = (c->rank + i) % c->size;
        const int64_t nbytes = bytes_of(c, part_count(total, run, peer));
        flow[c->size - 2 + i] = flow_send(peer, src + bytes_of(c, peer * run), nbytes, gathered_chunk(c->size, nbytes));
    }
    const Gathered gathered = {.own = src + bytes_of(c, c->rank * run), .dst = dst, .n = own};
    add_gathered(c, &gathered, ring, flow, chunk);
    channel_finish(c->channel);
}

/* Everybody sends everything to everybody and adds. */
static void all_reduce_one_hop(const Collective *c) {
    const int64_t nbytes = bytes_of(c, c->n), chunk = gathered_chunk(c->size, nbytes);
    Flow *flow = channel_begin(c->channel, (int)c->op, 2 * (c->size - 1));
    const char *ring = receive_gathered(c, c->n, flow, chunk);
    for (int i = 1; i < c->size; i++)
        flow[c->size - 2 + i] = flow_send((c->rank + i) % c->size, c->src, nbytes, chunk);
    channel_finish(c->channel); /* dst may be src, which must have left; one piece, so all fits the rings */
    add_gathered(c, &(Gathered){.own = c->src, .dst = c->dst, .n = c->n}, ring, flow, chunk);
}

static void all_reduce(const Collective *c) {
    const int64_t nbytes = bytes_of(c, c->n);
    if (nbytes * (c->size - 1) <= SMALL_BYTES) {
        all_reduce_one_hop(c);
        return;
    }
    if (nbytes <= SMALL_BYTES) {
        Collective step = *c;
        step.root = 0;
        reduce_small(&step);
        exchange_broadcast(&step);
        return;
    }
    const int64_t run = (c->n + c->size - 1) / c->size;
    reduce_scatter(c, c->n, run, (char *)c->dst + bytes_of(c, c->rank * run));
    exchange_all_gather_runs(c, c->n, run);
}

void collective_run(const Collective *c) {
    if (c->size == 1) {
        collective_copy_own(c);
        return;
    }
    if (c->n == 0)
        return;
    switch (c->op) {
    case COMM_BROADCAST:
        exchange_broadcast(c);
        break;
    case COMM_REDUCE:
        if (bytes_of(c, c->n) <= SMALL_BYTES)
            reduce_small(c);
        else
            reduce_large(c);
        break;
    case COMM_ALL_REDUCE:
        all_reduce(c);
        break;
    case COMM_REDUCE_SCATTER:
        reduce_scatter(c, c->n * c->size, c->n, c->dst);
        break;
    case COMM_ALL_GATHER:
        collective_copy_own(c);
        exchange_all_gather_runs(c, c->n * c->size, c->n);
        break;
    case COMM_GATHER:
        collective_copy_own(c);
        exchange_gather(c);
        break;
    case COMM_SCATTER:
        collective_copy_own(c);
        exchange_scatter(c);
        break;
    case COMM_OP_COUNT:
        break;
    }
}
