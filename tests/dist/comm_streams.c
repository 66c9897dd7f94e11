/* Three streams at once, on two communicators, with shaken delays: every collective finds its own partners. Counted
 * bytes equal the formulas, and a dropped collective is missed. Axes of a mesh join the ranks that they should. */
#include "dist.h"

#include "mesh/mesh.h"

#define ROUNDS 40
#define LENGTH 3001
#define LONG 70001

static Comm *half; /* the ranks of equal parity */

/* Small integers: every order of addition gives the exact sum. */
static float value_of(int world_rank, int stream, int round, int64_t i) {
    return (float)((world_rank + 1) * (stream + 2) + round + (int)(i % 97));
}

static float sum_of(const int *ranks, int n, int stream, int round, int64_t i) {
    float sum = 0.0f;
    for (int r = 0; r < n; r++)
        sum += value_of(ranks[r], stream, round, i);
    return sum;
}

typedef struct Lane {
    StreamKind kind;
    float *src[ROUNDS], *dst[ROUNDS];
    Comm *comm[ROUNDS];
    int64_t n[ROUNDS];
} Lane;

static void lane_make(Lane *lane, int kind) {
    lane->kind = (StreamKind)kind;
    for (int round = 0; round < ROUNDS; round++) {
        lane->n[round] = round % 8 == 7 ? LONG : LENGTH;
        lane->comm[round] = (round + kind) % 3 == 0 ? half : world.comm;
        lane->src[round] = HEAP_ALLOC(float, lane->n[round]);
        lane->dst[round] = HEAP_ALLOC(float, lane->n[round]);
        for (int64_t i = 0; i < lane->n[round]; i++)
            lane->src[round][i] = value_of(world.rank, kind, round, i);
    }
}

/* Even rounds all_reduce; odd ones reduce to a root that wanders, which broadcasts. */
static void lane_queue(const Lane *lane, int round) {
    Stream *stream = device_stream(device, lane->kind);
    Comm *comm = lane->comm[round];
    const int root = round % comm_size(comm);
    const CommTag tag = {.what = "round", .unit = round};
    if (round % 2 == 0) {
        comm_all_reduce(comm, stream, lane->src[round], lane->dst[round], lane->n[round], DTYPE_F32, tag);
        return;
    }
    comm_reduce(comm, stream, lane->src[round], lane->dst[round], lane->n[round], DTYPE_F32, root, tag);
    comm_broadcast(comm, stream, lane->dst[round], lane->n[round], DTYPE_F32, root, tag);
}

static int members_of(const Comm *comm, int *ranks) {
    int n = 0;
    for (int r = 0; r < world.size; r++)
        if (comm == world.comm || r % 2 == world.rank % 2)
            ranks[n++] = r;
    return n;
}

static void lane_check(const Lane *lane) {
    int *ranks = HEAP_ALLOC(int, world.size);
    for (int round = 0; round < ROUNDS; round++) {
        const int n = members_of(lane->comm[round], ranks);
        for (int64_t i = 0; i < lane->n[round]; i++) {
            const float want = sum_of(ranks, n, (int)lane->kind, round, i);
            CHECK(lane->dst[round][i] == want, "stream %s round %d element %" PRId64 ": %g, not %g",
                  stream_name(lane->kind), round, i, (double)lane->dst[round][i], (double)want);
        }
        heap_free(lane->src[round]);
        heap_free(lane->dst[round]);
    }
    heap_free(ranks);
}

static void try_streams_at_once(void) {
    static Lane lane[STREAM_COUNT];
    Event *event = event_create(device);
    for (int kind = 0; kind < STREAM_COUNT; kind++)
        lane_make(&lane[kind], kind);
    for (int round = 0; round < ROUNDS; round++) {
        for (int kind = 1; kind < STREAM_COUNT; kind++)
            lane_queue(&lane[kind], round);
        if (round % 5 == 0) { /* publish goes on after gather's mark */
            event_record(event, device_stream(device, STREAM_GATHER));
            event_wait(device_stream(device, STREAM_PUBLISH), event);
        }
        if (round % 4 == 0) {
            uint64_t one = 1;
            host_sum_u64(world.comm, &one, 1); /* the host's own channel, while streams are busy */
            CHECK(one == (uint64_t)world.size, "host_sum_u64 gives %" PRIu64, one);
        }
        lane_queue(&lane[STREAM_COMPUTE], round);
    }
    for (int kind = 0; kind < STREAM_COUNT; kind++) {
        stream_sync(device_stream(device, (StreamKind)kind));
        lane_check(&lane[kind]);
    }
    event_destroy(event);
}

static void try_counts(void) {
    const int64_t n = world.size, p = 64 * n, count = 16;
    float *whole = HEAP_ALLOC(float, count *n), *part = HEAP_ALLOC(float, count);
    Stream *stream = device_stream(device, STREAM_COMPUTE);
    CommCount got[COMM_OP_COUNT];
    comm_take_counts(world.comm, got); /* from here on */
    for (int pass = 0; pass < 2; pass++) {
        const CommTag tag = {.what = "counted", .unit = -1, .payload = pass == 0 ? 0 : p};
        comm_broadcast(world.comm, stream, whole, count * n, DTYPE_F32, 0, tag);
        comm_reduce(world.comm, stream, whole, whole, count * n, DTYPE_F32, 0, tag);
        comm_all_reduce(world.comm, stream, whole, whole, count * n, DTYPE_F32, tag);
        comm_reduce_scatter(world.comm, stream, whole, part, count, DTYPE_F32, tag);
        comm_all_gather(world.comm, stream, part, whole, count, DTYPE_F32, tag);
        comm_gather(world.comm, stream, part, whole, count, DTYPE_F32, 0, tag);
        comm_scatter(world.comm, stream, whole, part, count, DTYPE_F32, 0, tag);
    }
    comm_take_counts(world.comm, got);
    const int64_t bus[COMM_OP_COUNT] = {(n - 1) * p, (n - 1) * p,     2 * (n - 1) * p, (n - 1) * p,
                                        (n - 1) * p, (n - 1) * p / n, (n - 1) * p / n};
    for (int op = 0; op < COMM_OP_COUNT; op++) {
        const bool counts = world.rank == 0 && n > 1;
        CHECK(got[op].calls == (counts ? 1 : 0), "%s: %" PRId64 " calls", comm_op_name((CommOp)op), got[op].calls);
        CHECK(got[op].payload_bytes == (counts ? p : 0), "%s: payload %" PRId64, comm_op_name((CommOp)op),
              got[op].payload_bytes);
        CHECK(got[op].bus_bytes == (counts ? bus[op] : 0), "%s: bus %" PRId64, comm_op_name((CommOp)op),
              got[op].bus_bytes);
    }
    comm_take_counts(world.comm, got);
    CHECK(got[COMM_REDUCE].calls == 0, "taking the counts did not clear them");
    heap_free(whole);
    heap_free(part);
}

static void try_drop(void) {
    if (world.size == 1)
        return;
    float x[3] = {1, 1, 1};
    Stream *stream = device_stream(device, STREAM_REDUCE);
    comm_debug_drop(COMM_ALL_REDUCE, 1);
    for (int i = 0; i < 3; i++) {
        comm_broadcast(world.comm, stream, &x[i], 1, DTYPE_F32, 0, tag_of("another operation"));
        comm_all_reduce(world.comm, stream, &x[i], &x[i], 1, DTYPE_F32, tag_of("dropped or not"));
    }
    stream_sync(stream);
    const float sum = (float)world.size;
    CHECK(x[0] == sum && x[1] == 1.0f && x[2] == sum, "the second all_reduce was to be dropped: %g %g %g", (double)x[0],
          (double)x[1], (double)x[2]);
}

static void try_axes(MeshShape shape) {
    Mesh mesh;
    const bool made = mesh_create(&mesh, shape, &world) == STATUS_OK;
    CHECK(made, "%s", status_trail());
    const int length[AXIS_COUNT] = {shape.replicate, shape.shard, shape.tp, shape.replicate * shape.shard};
    const int at[AXIS_COUNT] = {mesh.coord.replicate, mesh.coord.shard, mesh.coord.tp,
                                mesh.coord.replicate * shape.shard + mesh.coord.shard};
    for (int axis = 0; axis < AXIS_COUNT; axis++) {
        Comm *comm = mesh.axis[axis];
        CHECK(comm_size(comm) == length[axis] && comm_rank(comm) == at[axis], "axis %s: rank %d of %d, not %d of %d",
              comm_name(comm), comm_rank(comm), comm_size(comm), at[axis], length[axis]);
        int *ranks = HEAP_ALLOC(int, comm_size(comm));
        comm_all_gather(comm, device_stream(device, STREAM_GATHER), &world.rank, ranks, 1, DTYPE_I32, tag_of("ranks"));
        stream_sync(device_stream(device, STREAM_GATHER));
        for (int i = 0; i < comm_size(comm); i++) {
            MeshCoord c = mesh.coord;
            c.replicate = axis == AXIS_REPLICATE ? i : axis == AXIS_DATA ? i / shape.shard : c.replicate;
            c.shard = axis == AXIS_SHARD ? i : axis == AXIS_DATA ? i % shape.shard : c.shard;
            c.tp = axis == AXIS_TP ? i : c.tp;
            CHECK(ranks[i] == mesh_rank(shape, c), "axis %s, member %d is rank %d", comm_name(comm), i, ranks[i]);
        }
        heap_free(ranks);
    }
    mesh_destroy(&mesh);
}

int main(int argc, char **argv) {
    dist_begin(&argc, &argv, 60.0, argc > 1 ? strtoull(argv[1], NULL, 10) : 0);
    const bool split = comm_split(world.comm, "half", world.rank % 2, world.rank, &half) == STATUS_OK;
    CHECK(split, "%s", status_trail());
    try_streams_at_once();
    try_counts();
    try_drop();
    comm_destroy(half);
    try_axes((MeshShape){.replicate = 1, .shard = world.size, .tp = 1});
    if (world.size == 8) {
        try_axes((MeshShape){.replicate = 2, .shard = 2, .tp = 2});
        try_axes((MeshShape){.replicate = 1, .shard = 4, .tp = 2});
        try_axes((MeshShape){.replicate = 4, .shard = 1, .tp = 2});
    }
    return dist_end();
}
