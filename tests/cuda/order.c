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

/* out = the sum of squares of x's first `rows` rows of 4, as a run that comes again. */
static void sum_again(Repeat *repeat, double *out, const float *x, int64_t rows) {
    const SumSquaresRows sum = {.out = out, .x = x, .rows = rows, .cols = 4, .nsegments = 1};
    if (repeat_begin(repeat, &sum, sizeof sum))
        return;
    ops_sum_squares_rows(compute, sum);
    ops_sum_squares_rows(compute, sum);
    repeat_end(repeat);
}

static void expect_sum(const char *what, const double *sum, double value) {
    double host;
    device_copy_to_host(compute, &host, sum, sizeof host);
    if (host != value)
        fatal("%s: %g, not %g", what, host, value);
}

/* Replayed or not, a run reads what is there in its turn; one with other arguments is another, and so is one whose
 * kernels' scratch has moved since. */
static void repeats_are_as_if_queued(float *x, double *sums, int64_t largest) {
    Repeat *repeat = repeat_create(device);
    for (int round = 1; round <= 5; round++) {
        fill(compute, x, (float)round);
        sum_again(repeat, sums, x, 2);
        fill(compute, x, 0.0f);
        expect_sum("repeat", sums, 8.0 * round * round);
    }
    fill(compute, x, 1.0f);
    for (int round = 0; round < 4; round++) {
        sum_again(repeat, sums, x, 2);
        sum_again(repeat, sums + 1, x, 3);
        sum_again(repeat, sums + 1, x, 3);
        sum_again(repeat, sums + 1, x, 3);
        expect_sum("one run", sums, 8.0);
        expect_sum("another run", sums + 1, 12.0);
    }
    sum_again(repeat, sums + 1, x, 3);
    ops_sum_squares_rows(compute, (SumSquaresRows){.out = sums, .x = x, .rows = largest, .cols = 4, .nsegments = 1});
    fill(compute, x, 2.0f);
    for (int round = 0; round < 3; round++)
        sum_again(repeat, sums + 1, x, 3);
    expect_sum("beside it", sums, 4.0 * (double)largest);
    expect_sum("after the scratch has moved", sums + 1, 48.0);
    repeat_destroy(repeat);
}

int main(int argc, char **argv) {
    const bool calls = argc > 1 && strcmp(argv[1], "calls") == 0;
    Arena arena;
    CHECK(device_create(&device, &(DeviceOptions){.name = "cuda", .threads = 1, .host_calls = calls}));
    compute = device_stream(device, STREAM_COMPUTE);
    CHECK(device_arena_init(device, &arena, N * sizeof(float) + 1024, "numbers"));
    float *x = ARENA_PUSH(&arena, float, N);
    double *sums = ARENA_PUSH(&arena, double, 2);
    for (int round = 1; round <= 3; round++)
        repeats_are_as_if_queued(x, sums, round * N / 12);
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
