/* Collectives over NCCL, queued on the stream itself. What only moves bytes is NCCL's own; sums are made in the
 * canonical order: a message is cut into ranges, each rank that sums receives its range from all others in one group of
 * sends and receives, adds the tree, and sends the sum to whom it belongs in another. With the ranges dealt evenly no
 * rank moves more than it would in a ring, to within one chunk. Integers are summed by NCCL: no order changes them. */
#include <string.h>

#include <nccl.h>

#include "base/arena.h"
#include "base/fatal.h"
#include "base/str.h"
#include "comm/transport.h"
#include "comm/watchdog.h"
#include "tensor/ops.h"

#define CHUNK_BYTES (4 << 20) /* that a rank sums at a time */
/* Up to here (times the other ranks) a sum takes one hop: who needs it receives all parts and adds them. */
#define SMALL_BYTES (64 << 10)
#define RANGE_ALIGN 64 /* elements; divides a chunk */

struct Link {
    ncclComm_t nccl;
    Comm *comm;
    Stream *stream;
    float *scratch; /* [size][chunk] device, owned */
    int64_t chunk;  /* elements */
    char text[256]; /* of `broken` */
};

static void check(Link *link, ncclResult_t result, const char *call) {
    char what[512];
    if (result == ncclSuccess)
        return;
    watch_describe(what, sizeof what);
    fatal("%s: %.*s failed on axis %s: %s", what, (int)strcspn(call, "("), call, link->comm->name,
          ncclGetErrorString(result));
}
#define NCCL_OK(link, call) check((link), (call), #call)

/* ---- links ---- */

static Link *nccl_open(Comm *comm, Stream *stream) {
    Link *link = HEAP_ALLOC(Link, 1);
    ncclUniqueId id = {{0}};
    link->comm = comm;
    link->stream = stream;
    link->chunk = CHUNK_BYTES / (int64_t)sizeof(float);
    link->scratch = device_alloc(stream, (size_t)(comm->size * link->chunk) * sizeof(float));
    if (comm->rank == 0)
        NCCL_OK(link, ncclGetUniqueId(&id));
    host_broadcast(comm, &id, (int64_t)sizeof id, 0);
    NCCL_OK(link, ncclCommInitRank(&link->nccl, comm->size, id, comm->rank));
    return link;
}

static const char *nccl_broken(Link *link) {
    ncclResult_t state = ncclSuccess;
    ncclResult_t result = ncclCommGetAsyncError(link->nccl, &state);
    if (result == ncclSuccess && (state == ncclSuccess || state == ncclInProgress))
        return NULL;
    str_format(link->text, sizeof link->text, "NCCL reports on axis %s: %s", link->comm->name,
               ncclGetErrorString(result != ncclSuccess ? result : state));
    return link->text;
}

static void nccl_abort(Link *link) {
    if (link->nccl != NULL)
        (void)ncclCommAbort(link->nccl);
    link->nccl = NULL;
}

static void nccl_close(Link *link) {
    NCCL_OK(link, ncclCommDestroy(link->nccl));
    device_free(link->stream, link->scratch);
    heap_free(link);
}

/* ---- moving ---- */

typedef struct Run {
    Link *link;
    const Collective *c;
    cudaStream_t on;
    size_t esize;
} Run;

static void group_begin(const Run *run) {
    NCCL_OK(run->link, ncclGroupStart());
}

static void group_end(const Run *run) {
    NCCL_OK(run->link, ncclGroupEnd());
}

static void send_to(const Run *run, int peer, const void *buf, int64_t n) {
    if (n > 0)
        NCCL_OK(run->link, ncclSend(buf, (size_t)n * run->esize, ncclUint8, peer, run->link->nccl, run->on));
}

static void receive_from(const Run *run, int peer, void *buf, int64_t n) {
    if (n > 0)
        NCCL_OK(run->link, ncclRecv(buf, (size_t)n * run->esize, ncclUint8, peer, run->link->nccl, run->on));
}

static char *at(const Run *run, const void *base, int64_t element) {
    return (char *)(uintptr_t)base + element * (int64_t)run->esize;
}

static void broadcast(const Run *run) {
    const Collective *c = run->c;
    NCCL_OK(run->link,
            ncclBroadcast(c->dst, c->dst, (size_t)c->n * run->esize, ncclUint8, c->root, run->link->nccl, run->on));
}

static void all_gather(const Run *run) {
    const Collective *c = run->c;
    NCCL_OK(run->link, ncclAllGather(c->src, c->dst, (size_t)c->n * run->esize, ncclUint8, run->link->nccl, run->on));
}

static void gather(const Run *run) {
    const Collective *c = run->c;
    const OwnPart own = collective_own(c);
    group_begin(run);
    if (c->rank != c->root)
        send_to(run, c->root, c->src, c->n);
    for (int peer = 0; c->rank == c->root && peer < c->size; peer++)
        if (peer != c->rank)
            receive_from(run, peer, at(run, c->dst, peer * c->n), c->n);
    group_end(run);
    device_copy(run->link->stream, own.dst, own.src, own.nbytes);
}

static void scatter(const Run *run) {
    const Collective *c = run->c;
    const OwnPart own = collective_own(c);
    group_begin(run);
    if (c->rank != c->root)
        receive_from(run, c->root, c->dst, c->n);
    for (int peer = 0; c->rank == c->root && peer < c->size; peer++)
        if (peer != c->rank)
            send_to(run, peer, at(run, c->src, peer * c->n), c->n);
    group_end(run);
    device_copy(run->link->stream, own.dst, own.src, own.nbytes);
}

/* ---- sums ---- */

/* How a sum is dealt: in each round every rank that sums takes one range of at most `chunk` elements. */
typedef struct Deal {
    int64_t total;  /* elements of src                                  */
    int64_t chunk;  /* of one range                                     */
    int64_t rounds; /* ranges of one rank                               */
    int64_t first;  /* between the first ranges of neighbours           */
    int64_t stride; /* between the ranges of one rank                   */
    bool alone;     /* the root sums everything                         */
    bool spared;    /* the root sums nothing                            */
} Deal;

typedef struct Range {
    int64_t at, n; /* elements of src; n 0: none */
} Range;

static int64_t min64(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t ceil64(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

/* An even share each, in as many even rounds as it takes; so all ranks take part in every one. */
static Deal deal_evenly(const Run *run, int64_t total, int ranks) {
    const int64_t share = ceil64(total, ranks);
    Deal deal = {.total = total, .rounds = ceil64(share, run->link->chunk)};
    deal.chunk = ceil64(ceil64(share, deal.rounds), RANGE_ALIGN) * RANGE_ALIGN;
    deal.first = deal.chunk;
    deal.stride = deal.chunk * ranks;
    return deal;
}

static Deal deal_of(const Run *run) {
    const Collective *c = run->c;
    if (c->op == COMM_ALL_REDUCE)
        return deal_evenly(run, c->n, c->size);
    Deal deal = deal_evenly(run, c->n, 1);
    if (c->op == COMM_REDUCE_SCATTER) { /* rank r's ranges lie in its own part */
        deal.first = c->n;
        deal.total = c->n * c->size;
        return deal;
    }
    if (c->size == 2 || c->n * (int64_t)run->esize <= SMALL_BYTES) {
        deal.alone = true;
        return deal;
    }
    /* The root receives every sum: if it summed as well it would receive more than the message. */
    deal = deal_evenly(run, c->n, c->size - 1);
    deal.spared = true;
    return deal;
}

static Range range_of(const Run *run, const Deal *deal, int64_t round, int rank) {
    const Collective *c = run->c;
    int place = rank;
    if ((deal->alone && rank != c->root) || (deal->spared && rank == c->root))
        return (Range){0};
    if (deal->alone)
        place = 0;
    else if (deal->spared && rank > c->root)
        place--;
    Range range = {.at = place * deal->first + round * deal->stride};
    const int64_t end = c->op == COMM_REDUCE_SCATTER ? (rank + 1) * c->n : deal->total;
    range.n = range.at < end ? min64(deal->chunk, end - range.at) : 0;
    return range;
}

static float *slot(const Run *run, int rank) {
    return run->link->scratch + rank * run->link->chunk;
}

/* Every range's parts go to the rank that sums it; this rank's arrive in its slots, its own among them. */
static void bring_parts(const Run *run, const Deal *deal, int64_t round) {
    const Collective *c = run->c;
    const Range mine = range_of(run, deal, round, c->rank);
    group_begin(run);
    for (int i = 1; i < c->size; i++) {
        const int peer = (c->rank + i) % c->size;
        const Range theirs = range_of(run, deal, round, peer);
        send_to(run, peer, at(run, c->src, theirs.at), theirs.n);
        receive_from(run, peer, slot(run, peer), mine.n);
    }
    group_end(run);
    device_copy(run->link->stream, slot(run, c->rank), at(run, c->src, mine.at), (size_t)mine.n * run->esize);
}

/* Where this rank's sum of a round is written: to its place if it belongs here, else to a slot. */
static float *sum_place(const Run *run, const Deal *deal, int64_t round, Range mine) {
    const Collective *c = run->c;
    if (c->op == COMM_REDUCE_SCATTER)
        return (float *)c->dst + round * deal->chunk;
    if (c->op == COMM_ALL_REDUCE || c->rank == c->root)
        return (float *)c->dst + mine.at;
    return slot(run, 0);
}

static void return_sums(const Run *run, const Deal *deal, int64_t round, const float *sum, Range mine) {
    const Collective *c = run->c;
    if (deal->alone || c->op == COMM_REDUCE_SCATTER)
        return;
    group_begin(run);
    for (int i = 1; i < c->size; i++) {
        const int peer = (c->rank + i) % c->size;
        const Range theirs = range_of(run, deal, round, peer);
        if (c->op == COMM_ALL_REDUCE || peer == c->root)
            send_to(run, peer, sum, mine.n);
        if (c->op == COMM_ALL_REDUCE || c->rank == c->root)
            receive_from(run, peer, at(run, c->dst, theirs.at), theirs.n);
    }
    group_end(run);
}

static void sum_slots(const Run *run, float *dst, int64_t n, int64_t stride) {
    if (n > 0)
        ops_sum_tree(run->link->stream,
                     (SumTree){.dst = dst, .src = run->link->scratch, .n = n, .stride = stride, .count = run->c->size});
}

static void sum_in_rounds(const Run *run) {
    const Deal deal = deal_of(run);
    for (int64_t round = 0; round < deal.rounds; round++) {
        const Range mine = range_of(run, &deal, round, run->c->rank);
        float *place = sum_place(run, &deal, round, mine);
        bring_parts(run, &deal, round);
        sum_slots(run, place, mine.n, run->link->chunk);
        return_sums(run, &deal, round, place, mine);
    }
}

/* Everybody receives all parts and adds them. */
static void all_reduce_small(const Run *run) {
    const Collective *c = run->c;
    NCCL_OK(run->link,
            ncclAllGather(c->src, run->link->scratch, (size_t)c->n * run->esize, ncclUint8, run->link->nccl, run->on));
    sum_slots(run, c->dst, c->n, c->n);
}

static void sum(const Run *run) {
    const Collective *c = run->c;
    if (c->dtype == DTYPE_U64 && c->op == COMM_ALL_REDUCE)
        NCCL_OK(run->link, ncclAllReduce(c->src, c->dst, (size_t)c->n, ncclUint64, ncclSum, run->link->nccl, run->on));
    else if (c->dtype != DTYPE_F32)
        fatal("%s of %s is not built on the nccl transport", comm_op_name(c->op), dtype_name(c->dtype));
    else if (c->op == COMM_ALL_REDUCE && c->n * (int64_t)run->esize * (c->size - 1) <= SMALL_BYTES)
        all_reduce_small(run);
    else
        sum_in_rounds(run);
}

static void nccl_queue(Link *link, const Collective *c) {
    const Run run = {.link = link, .c = c, .on = stream_native(link->stream), .esize = dtype_nbytes(c->dtype)};
    if (c->n == 0)
        return;
    switch (c->op) {
    case COMM_BROADCAST:
        broadcast(&run);
        break;
    case COMM_ALL_GATHER:
        all_gather(&run);
        break;
    case COMM_GATHER:
        gather(&run);
        break;
    case COMM_SCATTER:
        scatter(&run);
        break;
    case COMM_REDUCE:
    case COMM_ALL_REDUCE:
    case COMM_REDUCE_SCATTER:
        sum(&run);
        break;
    case COMM_OP_COUNT:
        break;
    }
}

const Transport transport_nccl = {
    .name = "nccl",
    .open = nccl_open,
    .queue = nccl_queue,
    .broken = nccl_broken,
    .abort = nccl_abort,
    .close = nccl_close,
};
