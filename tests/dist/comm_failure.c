/* One way to fail, named by the argument; the job must end within seconds with one line that says what happened. */
#include "dist.h"

#include <signal.h>
#include <unistd.h>

#include "base/clock.h"

static float x[300000];

static void all_gather(int64_t n) {
    static float all[8 * 300000];
    Stream *stream = device_stream(device, STREAM_GATHER);
    comm_all_gather(world.comm, stream, x, all, n, DTYPE_F32, (CommTag){.what = "layers.3 owner 2", .unit = 4});
    stream_sync(stream);
}

/* Rank 1 stays away. */
static void fail_absent(void) {
    if (world.rank == 1)
        clock_sleep_us(60 * INT64_C(1000000));
    all_gather(1000);
}

static void fail_absent_large(void) {
    if (world.rank == 1)
        clock_sleep_us(60 * INT64_C(1000000));
    Stream *stream = device_stream(device, STREAM_REDUCE);
    comm_reduce(world.comm, stream, x, x, 300000, DTYPE_F32, 0, (CommTag){.what = "layers.0 grads", .unit = 1});
    stream_sync(stream);
}

/* Rank 1 brings another length. */
static void fail_length(void) {
    all_gather(world.rank == 1 ? 900 : 1000);
}

/* Rank 1 runs another operation. */
static void fail_operation(void) {
    if (world.rank != 1)
        all_gather(1000);
    Stream *stream = device_stream(device, STREAM_GATHER);
    comm_broadcast(world.comm, stream, x, 1000, DTYPE_F32, 0, tag_of("something else"));
    stream_sync(stream);
}

/* Rank 0 waits for rank 1, which waits for rank 2, which stays away. */
static void fail_chain(void) {
    Comm *pair[2];
    for (int i = 0; i < 2; i++) {
        const bool made = comm_split(world.comm, i == 0 ? "left" : "right", world.rank == i || world.rank == i + 1,
                                     world.rank, &pair[i]) == STATUS_OK;
        CHECK(made, "%s", status_trail());
    }
    static float all[2 * 1000];
    if (world.rank == 2)
        clock_sleep_us(60 * INT64_C(1000000));
    Stream *stream = device_stream(device, STREAM_GATHER);
    for (int i = 1; i >= 0; i--)
        if (world.rank == i || world.rank == i + 1)
            comm_all_gather(pair[i], stream, x, all, 1000, DTYPE_F32, tag_of("pair"));
    stream_sync(stream);
}

/* Rank 1 leaves out an operation in which nobody waits for it. */
static void fail_left_out(void) {
    Stream *stream = device_stream(device, STREAM_GATHER);
    all_gather(1000);
    if (world.rank != 1)
        comm_broadcast(world.comm, stream, x, 0, DTYPE_F32, 0, tag_of("nothing"));
    stream_sync(stream);
    comm_compare_sequences(world.comm);
}

/* Rank 1 has the same messages for another purpose. */
static void fail_label(void) {
    Stream *stream = device_stream(device, STREAM_REDUCE);
    comm_all_reduce(world.comm, stream, x, x, 1000, DTYPE_F32, tag_of(world.rank == 1 ? "unit 2" : "unit 1"));
    stream_sync(stream);
    comm_compare_sequences(world.comm);
}

static void fail_killed(void) {
    if (world.rank == 1)
        raise(SIGKILL);
    all_gather(1000);
}

static void fail_assertion(void) {
    if (world.rank == 1)
        DM_ASSERT(world.rank == 0);
    all_gather(1000);
}

/* As in a training, where the launcher's SIGTERM is a wish to stop. */
static void stay(int number) {
    (void)number;
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } way[] = {{"absent", fail_absent}, {"absent-large", fail_absent_large},
               {"length", fail_length}, {"operation", fail_operation},
               {"killed", fail_killed}, {"assertion", fail_assertion},
               {"chain", fail_chain},   {"left-out", fail_left_out},
               {"label", fail_label}};
    signal(SIGTERM, stay);
    dist_begin(&argc, &argv, 2.0, 0);
    comm_set_step(17);
    for (size_t i = 0; argc > 1 && i < sizeof way / sizeof way[0]; i++)
        if (strcmp(argv[1], way[i].name) == 0)
            way[i].run();
    return dist_end();
}
