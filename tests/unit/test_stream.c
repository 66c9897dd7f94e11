/* Streams of the CPU device: order, copies of arguments, kernels, delays, and how a device is chosen. */
#include "device/device.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "tests/unit/death.h"

static Device *open_device(DeviceOptions options) {
    Device *device = NULL;
    options.name = "cpu";
    if (options.threads == 0)
        options.threads = 1;
    assert_int_equal(device_create(&device, &options), STATUS_OK);
    return device;
}

typedef struct Log {
    int entry[1000];
    int n;
    pthread_t thread;
    useconds_t sleep_us;
} Log;

typedef struct LogCall {
    Log *log;
    int value;
} LogCall;

static void log_value(void *arg) {
    const LogCall *call = arg;
    if (call->log->sleep_us > 0)
        clock_sleep_us(call->log->sleep_us);
    call->log->entry[call->log->n++] = call->value;
    call->log->thread = pthread_self();
}

static void queue_value(Stream *stream, Log *log, int value) {
    LogCall call = {.log = log, .value = value};
    stream_call(stream, log_value, &call, sizeof call);
    memset(&call, 0xff, sizeof call); /* the stream has its own copy */
}

static void test_calls_of_a_stream_run_in_the_order_in_which_they_were_queued(void **state) {
    (void)state;
    Device *device = open_device((DeviceOptions){0});
    for (int kind = 0; kind < STREAM_COUNT; kind++) {
        Stream *stream = device_stream(device, (StreamKind)kind);
        Log log = {.n = 0};
        for (int i = 0; i < 1000; i++) /* more than the ring's first size: it grows while it is read */
            queue_value(stream, &log, i);
        stream_sync(stream);
        assert_int_equal(log.n, 1000);
        for (int i = 0; i < 1000; i++)
            assert_int_equal(log.entry[i], i);
    }
    device_destroy(device);
}

static void test_the_compute_stream_is_the_calling_thread(void **state) {
    (void)state;
    Device *device = open_device((DeviceOptions){0});
    Log log = {.n = 0};
    queue_value(device_stream(device, STREAM_COMPUTE), &log, 7);
    assert_int_equal(log.n, 1);
    assert_true(pthread_equal(log.thread, pthread_self()));
    device_destroy(device);
}

static void test_a_communication_stream_does_not_hold_up_the_caller(void **state) {
    (void)state;
    Device *device = open_device((DeviceOptions){0});
    Stream *stream = device_stream(device, STREAM_REDUCE);
    Log log = {.n = 0, .sleep_us = 50000};
    const int64_t begin = clock_ns();
    queue_value(stream, &log, 1);
    queue_value(stream, &log, 2);
    assert_true(clock_ms_since(begin) < 40.0);
    stream_sync(stream);
    assert_true(clock_ms_since(begin) >= 100.0);
    assert_int_equal(log.n, 2);
    assert_false(pthread_equal(log.thread, pthread_self()));
    device_destroy(device);
}

static void test_streams_run_beside_each_other(void **state) {
    (void)state;
    Device *device = open_device((DeviceOptions){0});
    Log log[STREAM_COUNT] = {{.n = 0}};
    const int64_t begin = clock_ns();
    for (int kind = STREAM_GATHER; kind < STREAM_COUNT; kind++) {
        log[kind].sleep_us = 100000;
        queue_value(device_stream(device, (StreamKind)kind), &log[kind], 1);
    }
    for (int kind = STREAM_GATHER; kind < STREAM_COUNT; kind++)
        stream_sync(device_stream(device, (StreamKind)kind));
    assert_true(clock_ms_since(begin) < 200.0);
    device_destroy(device);
}

static void test_destroying_a_device_runs_what_is_queued(void **state) {
    (void)state;
    Device *device = open_device((DeviceOptions){0});
    Log log = {.n = 0, .sleep_us = 1000};
    for (int i = 0; i < 20; i++)
        queue_value(device_stream(device, STREAM_PUBLISH), &log, i);
    device_destroy(device);
    assert_int_equal(log.n, 20);
}

static void test_kernels_run_on_every_stream(void **state) {
    (void)state;
    Device *device = open_device((DeviceOptions){.threads = 2});
    static float x[5000];
    for (int kind = 0; kind < STREAM_COUNT; kind++) {
        Stream *stream = device_stream(device, (StreamKind)kind);
        Fill fill = {.x = x, .n = 5000, .value = (float)(kind + 1)};
        stream_launch(stream, KERNEL_FILL, &fill, sizeof fill);
        memset(&fill, 0xff, sizeof fill);
        stream_sync(stream);
        for (int i = 0; i < 5000; i++)
            assert_true(x[i] == (float)(kind + 1));
    }
    device_destroy(device);
}

static void test_copies_move_the_bytes_in_stream_order(void **state) {
    (void)state;
    Device *device = open_device((DeviceOptions){0});
    Arena arena = {0};
    assert_int_equal(device_arena_init(device, &arena, 4096, "a test"), STATUS_OK);
    int *there = ARENA_PUSH(&arena, int, 1000);
    static int from[1000], back[1000];
    for (int i = 0; i < 1000; i++)
        from[i] = i * i;
    device_copy_from_host(device_stream(device, STREAM_GATHER), there, from, sizeof from);
    stream_sync(device_stream(device, STREAM_GATHER));
    device_copy_to_host(device_stream(device, STREAM_COMPUTE), back, there, sizeof back);
    assert_memory_equal(back, from, sizeof from);
    device_arena_deinit(device, &arena);
    device_destroy(device);
}

static void test_seeded_delays_slow_a_queue_down_and_keep_its_order(void **state) {
    (void)state;
    Device *device = open_device((DeviceOptions){.delay_seed = 5, .delay_max_us = 2000});
    Stream *stream = device_stream(device, STREAM_GATHER);
    Log log = {.n = 0};
    const int64_t begin = clock_ns();
    for (int i = 0; i < 100; i++)
        queue_value(stream, &log, i);
    stream_sync(stream);
    assert_true(clock_ms_since(begin) > 50.0); /* 100 of 1 ms on average */
    for (int i = 0; i < 100; i++)
        assert_int_equal(log.entry[i], i);
    device_destroy(device);
}

static void test_names(void **state) {
    (void)state;
    static const char *const name[STREAM_COUNT] = {"compute", "gather", "reduce", "publish"};
    Device *device = open_device((DeviceOptions){0});
    for (int kind = 0; kind < STREAM_COUNT; kind++) {
        Stream *stream = device_stream(device, (StreamKind)kind);
        assert_string_equal(stream_name(stream_kind(stream)), name[kind]);
        assert_ptr_equal(stream_device(stream), device);
    }
    assert_int_equal(strncmp(device_name(device), "cpu ", 4), 0);
    device_destroy(device);
}

static void test_an_unknown_device_is_refused_by_name(void **state) {
    (void)state;
    Device *device = NULL;
    assert_int_equal(device_create(&device, &(DeviceOptions){.name = "abacus", .threads = 1}), STATUS_DEVICE);
    assert_non_null(strstr(status_trail(), "abacus"));
    assert_non_null(strstr(status_trail(), "cpu"));
}

static void test_an_unknown_vector_unit_is_refused_with_the_legal_ones(void **state) {
    (void)state;
    Device *device = NULL;
    assert_int_equal(setenv("DMUON_ISA", "sse9", 1), 0);
    assert_int_equal(device_create(&device, &(DeviceOptions){.name = "cpu", .threads = 1}), STATUS_CONFIG);
    assert_int_equal(unsetenv("DMUON_ISA"), 0);
    assert_non_null(strstr(status_trail(), "DMUON_ISA=sse9"));
    assert_non_null(strstr(status_trail(), "avx512, avx2 or generic"));
}

static void queue_on_own_stream(void *arg) {
    Stream *stream;
    memcpy(&stream, arg, sizeof stream);
    Log log = {.n = 0};
    queue_value(stream, &log, 1);
}

static void queue_from_within(void *arg) {
    (void)arg;
    Device *device = NULL;
    if (device_create(&device, &(DeviceOptions){.name = "cpu", .threads = 1}) != STATUS_OK)
        return;
    Stream *stream = device_stream(device, STREAM_GATHER);
    stream_call(stream, queue_on_own_stream, &stream, sizeof stream);
    stream_sync(stream);
}

static void test_a_call_that_queues_on_its_own_stream_is_a_bug(void **state) {
    (void)state;
    char text[512];
    assert_int_equal(death_run(queue_from_within, NULL, text, sizeof text), 6);
    assert_non_null(strstr(text, "pthread_self"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calls_of_a_stream_run_in_the_order_in_which_they_were_queued),
        cmocka_unit_test(test_the_compute_stream_is_the_calling_thread),
        cmocka_unit_test(test_a_communication_stream_does_not_hold_up_the_caller),
        cmocka_unit_test(test_streams_run_beside_each_other),
        cmocka_unit_test(test_destroying_a_device_runs_what_is_queued),
        cmocka_unit_test(test_kernels_run_on_every_stream),
        cmocka_unit_test(test_copies_move_the_bytes_in_stream_order),
        cmocka_unit_test(test_seeded_delays_slow_a_queue_down_and_keep_its_order),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_an_unknown_device_is_refused_by_name),
        cmocka_unit_test(test_an_unknown_vector_unit_is_refused_with_the_legal_ones),
        cmocka_unit_test(test_a_call_that_queues_on_its_own_stream_is_a_bug),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
