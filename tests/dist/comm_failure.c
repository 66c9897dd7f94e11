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

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } way[] = {{"absent", fail_absent}, {"absent-large", fail_absent_large},
               {"length", fail_length}, {"operation", fail_operation},
               {"killed", fail_killed}, {"assertion", fail_assertion}};
    dist_begin(&argc, &argv, 2.0, 0);
    comm_set_step(17);
    for (size_t i = 0; argc > 1 && i < sizeof way / sizeof way[0]; i++)
        if (strcmp(argv[1], way[i].name) == 0)
            way[i].run();
    return dist_end();
}
