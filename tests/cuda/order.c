/* What device.h promises about order between the host, streams and memory, without a transport. Argument `calls`:
 * communication streams have a worker thread, as for the MPI transport. */
#include <inttypes.h>
#include <string.h>

#include "base/arena.h"
#include "base/fatal.h"
#include "device/device.h"
#include "tensor/ops.h"

#define N 1000
#define ROUNDS 8
#define CHECK(status) ((status) == STATUS_OK ? (void)0 : fatal_status(status))

static Device *device;
static Stream *compute;

static void fill(Stream *stream, float *x, float value) {
    ops_fill(stream, (Fill){.x = x, .n = N, .value = value});
}

static void expect(const char *what, const float *x, float value) {
    float host[N];
    device_copy_to_host(compute, host, x, sizeof host);
    for (int64_t i = 0; i < N; i++)
        if (host[i] != value)
            fatal("%s: element %" PRId64 " is %g, not %g", what, i, (double)host[i], (double)value);
}

static void arena_is_zeroed_and_outlives_its_use(Stream *stream, float *x) {
    Arena arena;
    CHECK(device_arena_init(device, &arena, N * sizeof(float), "an arena"));
    float *numbers = ARENA_PUSH(&arena, float, N);
    device_copy(stream, x, numbers, N * sizeof(float));
    stream_sync(stream);
    expect("arena", x, 0.0f);
    fill(compute, numbers, 1.0f);
    device_arena_deinit(device, &arena);
}

static void sync_waits(Stream *stream, float *x, float value) {
    fill(stream, x, value - 1.0f);
    fill(stream, x, value);
    stream_sync(stream);
    expect("stream_sync", x, value);
}

/* The block that compute gives back goes to the other stream, which must not write to it before compute has read it. */
static void block_waits_for_its_last_user(Stream *stream, float *x, float value) {
    float *block = device_alloc(compute, N * sizeof(float));
    fill(compute, block, value);
    device_copy(compute, x, block, N * sizeof(float));
    device_free(compute, block);
    float *again = device_alloc(stream, N * sizeof(float));
    DM_ASSERT(again == block);
    fill(stream, again, -value);
    stream_sync(stream);
    expect("device_free", x, value);
    device_free(stream, again);
    stream_sync(stream);
}

int main(int argc, char **argv) {
    const bool calls = argc > 1 && strcmp(argv[1], "calls") == 0;
    Arena arena;
    CHECK(device_create(&device, &(DeviceOptions){.name = "cuda", .threads = 1, .host_calls = calls}));
    compute = device_stream(device, STREAM_COMPUTE);
    CHECK(device_arena_init(device, &arena, N * sizeof(float), "numbers"));
    float *x = ARENA_PUSH(&arena, float, N);
    for (int round = 1; round <= ROUNDS; round++)
        for (int kind = STREAM_COMPUTE + 1; kind < STREAM_COUNT; kind++) {
            Stream *stream = device_stream(device, (StreamKind)kind);
            arena_is_zeroed_and_outlives_its_use(stream, x);
            sync_waits(stream, x, (float)round);
            block_waits_for_its_last_user(stream, x, (float)(ROUNDS * kind + round));
        }
    device_arena_deinit(device, &arena);
    device_destroy(device);
    return 0;
}
