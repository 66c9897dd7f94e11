/* Every collective between the memories of GPUs, with every root, in place and not, from one element to several chunks:
 * bits equal to the tree over ranks. Arguments: transport, then lengths. DM_CUDA_ONLY: runs one operation, unchecked.
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/fatal.h"
#include "base/hash.h"
#include "comm/world.h"
#include "device/device.h"

#define CHECK(cond, ...) ((cond) ? (void)0 : fatal(__VA_ARGS__))
#define SENTINEL 64 /* elements behind each buffer that must stay */

#define FLOOD 100 /* operations under way: more than are kept account of */
#define LATE_US 100000

static World world;
static Device *device;
static Comm *comm;
static Stream *compute, *stream;
static int rank, size;

static CommTag tag_of(const char *what) {
    return (CommTag){.what = what, .unit = -1};
}

static float value_of(int of_rank, int64_t i) {
    const uint64_t bits = hash_mix64(((uint64_t)of_rank << 40) ^ (uint64_t)i);
    return ldexpf((float)(int32_t)(bits >> 32) * 0x1p-31f, (int)(bits % 41) - 20);
}

static float tree_of(int first, int count, int64_t i) {
    if (count == 1)
        return value_of(first, i);
    int left = 1;
    while (2 * left < count)
        left *= 2;
    return tree_of(first, left, i) + tree_of(first + left, count - left, i);
}

/* One case: host copies and device buffers of size*n elements. */
typedef struct Case {
    int64_t n, total;
    float *mine, *sum, *back; /* host   */
    float *src, *dst;         /* device */
} Case;

static void upload(float *at, const float *from, int64_t n) {
    device_copy_from_host(compute, at, from, (size_t)n * sizeof(float));
    stream_sync(compute);
}

/* dst holds a pattern with a sentinel behind it. */
static void clear(const Case *c) {
    for (int64_t i = 0; i < c->total + SENTINEL; i++)
        c->back[i] = -1234.5f;
    upload(c->dst, c->back, c->total + SENTINEL);
}

static void expect(const Case *c, const char *what, int root, int64_t at, const float *want, int64_t n) {
    stream_sync(stream);
    device_copy_to_host(compute, c->back, c->dst, (size_t)(c->total + SENTINEL) * sizeof(float));
    for (int64_t i = 0; i < n; i++)
        CHECK(memcmp(&c->back[at + i], &want[i], sizeof(float)) == 0,
              "%s of %" PRId64 ", root %d: element %" PRId64 " is %a, not %a", what, c->n, root, i,
              (double)c->back[at + i], (double)want[i]);
    for (int64_t i = c->total; i < c->total + SENTINEL; i++)
        CHECK(c->back[i] == -1234.5f, "%s of %" PRId64 ", root %d: wrote behind its buffer", what, c->n, root);
}

/* Elements [0, n) of every rank's data, rank after rank. */
static float *gathered(const Case *c) {
    float *all = HEAP_ALLOC(float, c->total);
    for (int r = 0; r < size; r++)
        for (int64_t i = 0; i < c->n; i++)
            all[r * c->n + i] = value_of(r, i);
    return all;
}

static void try_rooted(const Case *c, int root) {
    float *all = gathered(c), *scattered = HEAP_ALLOC(float, c->n);
    const bool here = rank == root;
    clear(c);
    comm_reduce(comm, stream, c->src, here ? c->dst : NULL, c->n, DTYPE_F32, root, tag_of("sum"));
    expect(c, "reduce", root, 0, c->sum, here ? c->n : 0);
    clear(c);
    upload(c->dst, c->mine, c->n);
    comm_reduce(comm, stream, c->dst, c->dst, c->n, DTYPE_F32, root, tag_of("sum"));
    expect(c, "reduce in place", root, 0, here ? c->sum : c->mine, c->n);
    clear(c);
    upload(c->dst, c->mine, c->n);
    comm_broadcast(comm, stream, c->dst, c->n, DTYPE_F32, root, tag_of("copy"));
    expect(c, "broadcast", root, 0, all + root * c->n, c->n);
    clear(c);
    comm_gather(comm, stream, c->src, here ? c->dst : NULL, c->n, DTYPE_F32, root, tag_of("copy"));
    expect(c, "gather", root, 0, all, here ? c->total : 0);
    clear(c);
    comm_scatter(comm, stream, here ? c->src : NULL, c->dst, c->n, DTYPE_F32, root, tag_of("copy"));
    for (int64_t i = 0; i < c->n; i++)
        scattered[i] = value_of(root, rank * c->n + i);
    expect(c, "scatter", root, 0, scattered, c->n);
    heap_free(all);
    heap_free(scattered);
}

static void try_unrooted(const Case *c) {
    float *all = gathered(c);
    clear(c);
    comm_all_reduce(comm, stream, c->src, c->dst, c->n, DTYPE_F32, tag_of("sum"));
    expect(c, "all_reduce", 0, 0, c->sum, c->n);
    clear(c);
    upload(c->dst, c->mine, c->n);
    comm_all_reduce(comm, stream, c->dst, c->dst, c->n, DTYPE_F32, tag_of("sum"));
    expect(c, "all_reduce in place", 0, 0, c->sum, c->n);
    clear(c);
    comm_reduce_scatter(comm, stream, c->src, c->dst, c->n, DTYPE_F32, tag_of("sum"));
    expect(c, "reduce_scatter", 0, 0, c->sum + rank * c->n, c->n);
    clear(c);
    upload(c->dst, c->mine, c->total);
    comm_reduce_scatter(comm, stream, c->dst, c->dst + rank * c->n, c->n, DTYPE_F32, tag_of("sum"));
    expect(c, "reduce_scatter in place", 0, rank * c->n, c->sum + rank * c->n, c->n);
    clear(c);
    comm_all_gather(comm, stream, c->src, c->dst, c->n, DTYPE_F32, tag_of("copy"));
    expect(c, "all_gather", 0, 0, all, c->total);
    clear(c);
    upload(c->dst + rank * c->n, c->mine, c->n);
    comm_all_gather(comm, stream, c->dst + rank * c->n, c->dst, c->n, DTYPE_F32, tag_of("copy"));
    expect(c, "all_gather in place", 0, 0, all, c->total);
    heap_free(all);
}

/* A row of bits that one rank holds, the others zero: an integer sum. */
static void try_integers(const Case *c) {
    const int64_t words = c->n / 2;
    float *want = gathered(c);
    for (int64_t i = 0; i < c->n; i++)
        c->back[i] = i / 2 % size == rank ? value_of(rank, i) : 0.0f;
    upload(c->src, c->back, c->n);
    for (int64_t i = 0; i < c->n; i++)
        want[i] = value_of((int)(i / 2 % size), i);
    clear(c);
    comm_all_reduce(comm, stream, c->src, c->dst, words, DTYPE_U64, tag_of("bits"));
    expect(c, "all_reduce of u64", 0, 0, want, 2 * words);
    heap_free(want);
}

/* Many small operations, queued long before the last rank comes. */
static void try_flood(const Case *c) {
    const int64_t n = c->n < FLOOD ? c->n : FLOOD;
    clear(c);
    if (rank == size - 1)
        clock_sleep_us(LATE_US);
    for (int64_t i = 0; i < n; i++)
        comm_all_reduce(comm, stream, c->src + i, c->dst + i, 1, DTYPE_F32, tag_of("sum"));
    expect(c, "all_reduce of many", 0, 0, c->sum, n);
}

static void try_length(int64_t n) {
    Case c = {.n = n, .total = n * size};
    const size_t nbytes = (size_t)(c.total + SENTINEL) * sizeof(float);
    c.mine = heap_alloc(nbytes);
    c.sum = heap_alloc(nbytes);
    c.back = heap_alloc(nbytes);
    c.src = device_alloc(compute, nbytes);
    c.dst = device_alloc(compute, nbytes);
    for (int64_t i = 0; i < c.total; i++) {
        c.mine[i] = value_of(rank, i);
        c.sum[i] = tree_of(0, size, i);
    }
    upload(c.src, c.mine, c.total);
    const int roots = n > 1 << 20 ? 1 : size; /* the longest with one root, that is not rank 0 */
    for (int root = 0; root < roots; root++)
        try_rooted(&c, roots == 1 ? size - 1 : root);
    try_unrooted(&c);
    try_flood(&c);
    try_integers(&c);
    device_free(compute, c.src);
    device_free(compute, c.dst);
    heap_free(c.mine);
    heap_free(c.sum);
    heap_free(c.back);
}

/* One operation of `n` elements, whose traffic is looked at from outside. */
static void run_only(const char *operation, int64_t n) {
    float *src = device_alloc(compute, (size_t)(n * size) * sizeof(float));
    float *dst = device_alloc(compute, (size_t)n * sizeof(float));
    if (strcmp(operation, "reduce") == 0)
        comm_reduce(comm, stream, src, dst, n, DTYPE_F32, 0, tag_of("sum"));
    else if (strcmp(operation, "all_reduce") == 0)
        comm_all_reduce(comm, stream, src, dst, n, DTYPE_F32, tag_of("sum"));
    else
        comm_reduce_scatter(comm, stream, src, dst, n, DTYPE_F32, tag_of("sum"));
    stream_sync(stream);
    device_free(compute, src);
    device_free(compute, dst);
}

static Status open_device(const char *transport) {
    DeviceChoice choice;
    TRY(device_choose(&choice, "cuda", world.local_rank));
    TRY(device_create(&device, &(DeviceOptions){.name = choice.backend,
                                                .gpu = choice.gpu,
                                                .host_calls = strcmp(transport, "mpi") == 0,
                                                .threads = 1}));
    transport_use(transport, device);
    return STATUS_OK;
}

int main(int argc, char **argv) {
    const char *only = getenv("DM_CUDA_ONLY");
    const bool ready = world_init(&world, &argc, &argv) == STATUS_OK;
    CHECK(ready, "%s", status_trail());
    world_set_options(&world, &(CommOptions){.timeout_s = 60.0});
    const bool opened = open_device(argv[1]) == STATUS_OK;
    CHECK(opened, "%s", status_trail());
    comm = world.comm;
    rank = world.rank;
    size = world.size;
    compute = device_stream(device, STREAM_COMPUTE);
    comm_prepare(comm, compute);
    comm_prepare(comm, device_stream(device, STREAM_REDUCE));
    for (int i = 2; i < argc; i++) {
        stream = device_stream(device, i % 2 == 0 ? STREAM_REDUCE : STREAM_COMPUTE);
        if (only != NULL)
            run_only(only, strtoll(argv[i], NULL, 10));
        else
            try_length(strtoll(argv[i], NULL, 10));
    }
    transport_end(device);
    device_destroy(device);
    world_finalize(&world);
    return 0;
}
