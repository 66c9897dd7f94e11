/* Every collective with every root and many sizes, in place and not: bits equal to the tree over ranks, which every
 * rank computes by itself from the formula of the data. The values span 40 binary orders of magnitude, so that another
 * order gives other bits. */
#include "dist.h"

#include <math.h>

#define PATTERN 0x5a

static Comm *comm;
static Stream *stream;
static int rank, size;

typedef union Element {
    float f32;
    double f64;
    uint64_t u64;
} Element;

static Element value_of(Dtype dtype, int of_rank, int64_t i) {
    const uint64_t bits = hash_mix64(((uint64_t)of_rank << 40) ^ (uint64_t)i);
    const int exponent = (int)(bits % 41) - 20;
    Element e = {.u64 = bits};
    if (dtype == DTYPE_F32)
        e = (Element){.f32 = ldexpf((float)(int32_t)(bits >> 32) * 0x1p-31f, exponent)};
    else if (dtype == DTYPE_F64)
        e = (Element){.f64 = ldexp((double)(int64_t)bits * 0x1p-63, exponent)};
    return e;
}

static Element add(Dtype dtype, Element a, Element b) {
    if (dtype == DTYPE_F32)
        return (Element){.f32 = a.f32 + b.f32};
    if (dtype == DTYPE_F64)
        return (Element){.f64 = a.f64 + b.f64};
    return (Element){.u64 = a.u64 + b.u64};
}

static Element tree_of(Dtype dtype, int first, int count, int64_t i) {
    if (count == 1)
        return value_of(dtype, first, i);
    int left = 1;
    while (2 * left < count)
        left *= 2;
    return add(dtype, tree_of(dtype, first, left, i), tree_of(dtype, first + left, count - left, i));
}

/* The buffers of one case. `total` elements: data of this rank, the tree over ranks, and a result. */
typedef struct Case {
    Dtype dtype;
    int64_t n, total, esize;
    char *mine, *sum, *out;
} Case;

static void put(const Case *c, char *at, int64_t i, Element e) {
    memcpy(at + i * c->esize, &e, (size_t)c->esize);
}

static Case case_make(Dtype dtype, int64_t n) {
    Case c = {.dtype = dtype, .n = n, .total = n * size, .esize = (int64_t)dtype_nbytes(dtype)};
    const size_t nbytes = (size_t)(c.total * c.esize) + 8;
    c.mine = heap_alloc(nbytes);
    c.sum = heap_alloc(nbytes);
    c.out = heap_alloc(nbytes);
    for (int64_t i = 0; i < c.total; i++) {
        put(&c, c.mine, i, value_of(dtype, rank, i));
        put(&c, c.sum, i, tree_of(dtype, 0, size, i));
    }
    return c;
}

static void case_free(Case *c) {
    heap_free(c->mine);
    heap_free(c->sum);
    heap_free(c->out);
}

static void out_clear(const Case *c) {
    memset(c->out, PATTERN, (size_t)(c->total * c->esize));
}

static void expect(const Case *c, const char *what, int root, const void *got, const void *want, int64_t n) {
    for (int64_t i = 0; i < n * c->esize; i++)
        CHECK(((const char *)got)[i] == ((const char *)want)[i],
              "%s of %" PRId64 " %s, root %d: byte %" PRId64 " is %02x, not %02x", what, c->n, dtype_name(c->dtype),
              root, i, ((const unsigned char *)got)[i], ((const unsigned char *)want)[i]);
}

static void expect_untouched(const Case *c, const char *what, int root) {
    for (int64_t i = 0; i < c->total * c->esize; i++)
        CHECK(c->out[i] == PATTERN,
              "%s of %" PRId64 ", root %d: byte %" PRId64 " was written on a rank that is not the root", what, c->n,
              root, i);
}

/* Elements [first, first+n) of rank r's data. */
static void fill_with(const Case *c, char *at, int r, int64_t first, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        put(c, at, i, value_of(c->dtype, r, first + i));
}

static void try_rooted_sum(const Case *c, int root) {
    out_clear(c);
    comm_reduce(comm, stream, c->mine, rank == root ? c->out : NULL, c->n, c->dtype, root, tag_of("sum"));
    stream_sync(stream);
    if (rank == root)
        expect(c, "reduce", root, c->out, c->sum, c->n);
    else
        expect_untouched(c, "reduce", root);
    /* In place, with other elements than before: nothing left of the first sum may pass for the second. */
    char *at = c->out + (c->total - c->n) * c->esize;
    const int64_t first = c->total - c->n;
    memcpy(c->out, c->mine, (size_t)(c->total * c->esize));
    comm_reduce(comm, stream, at, at, c->n, c->dtype, root, tag_of("sum"));
    stream_sync(stream);
    expect(c, "reduce in place", root, at, (rank == root ? c->sum : c->mine) + first * c->esize, c->n);
}

static void try_rooted_moves(const Case *c, int root) {
    char *want = heap_alloc((size_t)(c->total * c->esize) + 8);
    memcpy(c->out, c->mine, (size_t)(c->n * c->esize));
    comm_broadcast(comm, stream, c->out, c->n, c->dtype, root, tag_of("copy"));
    stream_sync(stream);
    fill_with(c, want, root, 0, c->n);
    expect(c, "broadcast", root, c->out, want, c->n);

    out_clear(c);
    comm_gather(comm, stream, c->mine, rank == root ? c->out : NULL, c->n, c->dtype, root, tag_of("copy"));
    stream_sync(stream);
    for (int r = 0; r < size; r++)
        fill_with(c, want + r * c->n * c->esize, r, 0, c->n);
    if (rank == root)
        expect(c, "gather", root, c->out, want, c->total);
    else
        expect_untouched(c, "gather", root);

    comm_scatter(comm, stream, rank == root ? c->mine : NULL, c->out, c->n, c->dtype, root, tag_of("copy"));
    stream_sync(stream);
    fill_with(c, want, root, rank * c->n, c->n);
    expect(c, "scatter", root, c->out, want, c->n);
    heap_free(want);
}

static void try_unrooted_sums(const Case *c) {
    const size_t nbytes = (size_t)(c->total * c->esize);
    const char *own_sum = c->sum + rank * c->n * c->esize;
    out_clear(c);
    comm_all_reduce(comm, stream, c->mine, c->out, c->n, c->dtype, tag_of("sum"));
    stream_sync(stream);
    expect(c, "all_reduce", 0, c->out, c->sum, c->n);
    memcpy(c->out, c->mine, nbytes);
    comm_all_reduce(comm, stream, c->out, c->out, c->n, c->dtype, tag_of("sum"));
    stream_sync(stream);
    expect(c, "all_reduce in place", 0, c->out, c->sum, c->n);

    out_clear(c);
    comm_reduce_scatter(comm, stream, c->mine, c->out, c->n, c->dtype, tag_of("sum"));
    stream_sync(stream);
    expect(c, "reduce_scatter", 0, c->out, own_sum, c->n);
    memcpy(c->out, c->mine, nbytes);
    comm_reduce_scatter(comm, stream, c->out, c->out + rank * c->n * c->esize, c->n, c->dtype, tag_of("sum"));
    stream_sync(stream);
    expect(c, "reduce_scatter in place", 0, c->out + rank * c->n * c->esize, own_sum, c->n);
}

static void try_all_gather(const Case *c) {
    char *want = heap_alloc((size_t)(c->total * c->esize) + 8);
    for (int r = 0; r < size; r++)
        fill_with(c, want + r * c->n * c->esize, r, 0, c->n);
    out_clear(c);
    comm_all_gather(comm, stream, c->mine, c->out, c->n, c->dtype, tag_of("copy"));
    stream_sync(stream);
    expect(c, "all_gather", 0, c->out, want, c->total);
    out_clear(c);
    memcpy(c->out + rank * c->n * c->esize, c->mine, (size_t)(c->n * c->esize));
    comm_all_gather(comm, stream, c->out + rank * c->n * c->esize, c->out, c->n, c->dtype, tag_of("copy"));
    stream_sync(stream);
    expect(c, "all_gather in place", 0, c->out, want, c->total);
    heap_free(want);
}

static void try_case(Dtype dtype, int64_t n) {
    Case c = case_make(dtype, n);
    for (int root = 0; root < size; root++) {
        try_rooted_sum(&c, root);
        try_rooted_moves(&c, root);
    }
    try_unrooted_sums(&c);
    try_all_gather(&c);
    case_free(&c);
}

/* The tree of the data above is no plain chain: another order must be seen. */
static void check_that_order_matters(void) {
    int64_t differ = 0;
    for (int64_t i = 0; i < 1000; i++) {
        Element chain = value_of(DTYPE_F32, size - 1, i);
        for (int r = size - 2; r >= 0; r--)
            chain = add(DTYPE_F32, chain, value_of(DTYPE_F32, r, i));
        differ += chain.f32 != tree_of(DTYPE_F32, 0, size, i).f32;
    }
    CHECK(size < 3 || differ > 50, "only %" PRId64 " of 1000 sums depend on their order", differ);
}

static void try_host_calls(void) {
    uint64_t counts[2] = {(uint64_t)rank, UINT64_MAX};
    host_sum_u64(world.comm, counts, 2);
    CHECK(counts[0] == (uint64_t)(size * (size - 1) / 2) && counts[1] == (uint64_t)-size, "host_sum_u64 gives %" PRIu64,
          counts[0]);
    double most[2] = {-1.0 - rank, rank};
    host_max_f64(world.comm, most, 2);
    CHECK(most[0] == -1.0 && most[1] == size - 1, "host_max_f64 gives %g %g", most[0], most[1]);
    double sum = value_of(DTYPE_F64, rank, 5).f64;
    host_sum_f64(world.comm, &sum, 1);
    CHECK(sum == tree_of(DTYPE_F64, 0, size, 5).f64, "host_sum_f64 gives %a", sum);
    char word[3000000];
    memset(word, rank, sizeof word);
    for (int r = 1; r < size; r++) {
        if (rank == 0)
            host_send(world.comm, word, (int64_t)sizeof word, r, r);
        else if (rank == r)
            host_recv(world.comm, word, (int64_t)sizeof word, 0, r);
    }
    CHECK(word[0] == 0 && word[sizeof word - 1] == 0, "host_recv did not fill the message");
    host_barrier(world.comm);
}

int main(int argc, char **argv) {
    static const int64_t length[] = {0, 1, 7, 1000, 100003, 600011};
    dist_begin(&argc, &argv, 60.0, 0);
    comm = world.comm;
    rank = world.rank;
    size = world.size;
    check_that_order_matters();
    const int nlengths = (int)(sizeof length / sizeof length[0]);
    for (int i = 0; i < nlengths; i++) {
        stream = device_stream(device, i % 2 == 0 ? STREAM_COMPUTE : STREAM_REDUCE);
        if (i < nlengths - 1 || size <= 5) /* the longest on many ranks would only take longer */
            try_case(DTYPE_F32, length[i]);
        if (length[i] <= 1000 && size <= 8) {
            try_case(DTYPE_F64, length[i]);
            try_case(DTYPE_U64, length[i]);
        }
    }
    stream = device_stream(device, STREAM_GATHER);
    try_case(DTYPE_F64, 20011);
    try_host_calls();
    return dist_end();
}
