/* Events between streams: a wait sees the mark of the time of the call. */
#include "device/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"

typedef struct Fixture {
    Device *device;
    Stream *compute, *gather, *reduce, *publish;
    Event *event;
    atomic_int value, seen;
    atomic_bool gate;
} Fixture;

static Fixture fix;

static int open_fixture(void **state) {
    (void)state;
    memset(&fix, 0, sizeof fix);
    if (device_create(&fix.device, &(DeviceOptions){.name = "cpu", .threads = 1}) != STATUS_OK)
        return -1;
    fix.compute = device_stream(fix.device, STREAM_COMPUTE);
    fix.gather = device_stream(fix.device, STREAM_GATHER);
    fix.reduce = device_stream(fix.device, STREAM_REDUCE);
    fix.publish = device_stream(fix.device, STREAM_PUBLISH);
    fix.event = event_create(fix.device);
    return 0;
}

static int close_fixture(void **state) {
    (void)state;
    fix.gate = true;
    device_destroy(fix.device);
    event_destroy(fix.event);
    return 0;
}

static void wait_for_gate(void *arg) {
    (void)arg;
    while (!fix.gate)
        clock_sleep_us(200);
}

static void sleep_then_set(void *arg) {
    int value;
    memcpy(&value, arg, sizeof value);
    clock_sleep_us(30000);
    fix.value = value;
}

static void see(void *arg) {
    (void)arg;
    fix.seen = fix.value;
}

static void queue_set(Stream *stream, int value) {
    stream_call(stream, sleep_then_set, &value, sizeof value);
}

static void test_a_wait_on_a_stream_runs_later_work_after_the_mark(void **state) {
    (void)state;
    queue_set(fix.gather, 1);
    event_record(fix.event, fix.gather);
    event_wait(fix.reduce, fix.event);
    stream_call(fix.reduce, see, NULL, 0);
    stream_sync(fix.reduce);
    assert_int_equal(fix.seen, 1);
}

static void test_without_the_wait_the_work_would_run_before(void **state) {
    (void)state;
    queue_set(fix.gather, 1);
    event_record(fix.event, fix.gather);
    stream_call(fix.reduce, see, NULL, 0);
    stream_sync(fix.reduce);
    assert_int_equal(fix.seen, 0);
}

static void test_a_wait_on_compute_blocks_the_caller_and_is_timed(void **state) {
    (void)state;
    (void)device_take_wait_us(fix.device);
    queue_set(fix.publish, 4);
    event_record(fix.event, fix.publish);
    event_wait(fix.compute, fix.event);
    assert_int_equal(fix.value, 4);
    const double waited = device_take_wait_us(fix.device);
    assert_true(waited > 20000.0 && waited < 5e6);
    assert_true(device_take_wait_us(fix.device) == 0.0);
    event_wait(fix.compute, fix.event);
    assert_true(device_take_wait_us(fix.device) == 0.0);
}

static void test_a_wait_before_any_record_is_satisfied(void **state) {
    (void)state;
    event_wait(fix.compute, fix.event);
    event_wait(fix.gather, fix.event);
    stream_sync(fix.gather);
    assert_true(event_sync(fix.event) == 0.0);
}

static void test_an_event_on_compute_is_satisfied_at_once(void **state) {
    (void)state;
    event_record(fix.event, fix.compute);
    event_wait(fix.gather, fix.event);
    stream_sync(fix.gather);
}

static void test_recording_again_leaves_earlier_waits_at_the_old_mark(void **state) {
    (void)state;
    queue_set(fix.gather, 1);
    event_record(fix.event, fix.gather);
    event_wait(fix.reduce, fix.event);
    stream_call(fix.gather, wait_for_gate, NULL, 0);
    event_record(fix.event, fix.gather);
    stream_sync(fix.reduce); /* would hang if the wait had moved to the second mark: the gate is shut */
    assert_int_equal(fix.value, 1);
    assert_false(fix.gate);
}

static void test_a_mark_covers_only_the_work_queued_before_it(void **state) {
    (void)state;
    event_record(fix.event, fix.gather);
    stream_call(fix.gather, wait_for_gate, NULL, 0);
    event_wait(fix.compute, fix.event); /* would hang if it waited for the gate */
    assert_false(fix.gate);
}

static void test_event_sync_gives_the_time_waited(void **state) {
    (void)state;
    queue_set(fix.reduce, 9);
    event_record(fix.event, fix.reduce);
    const double waited = event_sync(fix.event);
    assert_int_equal(fix.value, 9);
    assert_true(waited > 20000.0 && waited < 5e6);
    assert_true(event_sync(fix.event) == 0.0);
}

static void test_a_chain_of_streams_runs_in_order(void **state) {
    (void)state;
    Event *second = event_create(fix.device);
    for (int i = 1; i <= 3; i++) {
        queue_set(fix.gather, 10 * i);
        event_record(fix.event, fix.gather);
        event_wait(fix.reduce, fix.event);
        queue_set(fix.reduce, 10 * i + 1);
        event_record(second, fix.reduce);
        event_wait(fix.publish, second);
        stream_call(fix.publish, see, NULL, 0);
        event_record(second, fix.publish);
        event_wait(fix.compute, second);
        assert_int_equal(fix.seen, 10 * i + 1);
    }
    event_destroy(second);
}

int main(void) {
#define CASE(test) cmocka_unit_test_setup_teardown(test, open_fixture, close_fixture)
    const struct CMUnitTest tests[] = {
        CASE(test_a_wait_on_a_stream_runs_later_work_after_the_mark),
        CASE(test_without_the_wait_the_work_would_run_before),
        CASE(test_a_wait_on_compute_blocks_the_caller_and_is_timed),
        CASE(test_a_wait_before_any_record_is_satisfied),
        CASE(test_an_event_on_compute_is_satisfied_at_once),
        CASE(test_recording_again_leaves_earlier_waits_at_the_old_mark),
        CASE(test_a_mark_covers_only_the_work_queued_before_it),
        CASE(test_event_sync_gives_the_time_waited),
        CASE(test_a_chain_of_streams_runs_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
