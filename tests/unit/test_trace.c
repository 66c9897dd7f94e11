/* The ring of spans: order, overflow, threads. */
#include "base/trace.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"

enum { RING = 65536 };
static TraceSpan spans[RING + 10];

static int set_up(void **state) {
    (void)state;
    (void)trace_drain(spans, RING);
    trace_enable(true);
    return 0;
}

static void test_a_disabled_trace_keeps_nothing(void **state) {
    (void)state;
    trace_enable(false);
    assert_false(trace_enabled());
    trace_add("x", 0, -1, 1, 2);
    assert_int_equal(trace_drain(spans, RING), 0);
}

static void test_spans_come_out_once_in_the_order_they_went_in(void **state) {
    (void)state;
    trace_add("first", 0, -1, 10, 20);
    trace_add("second", 2, 5, 5, 30);
    assert_int_equal(trace_drain(spans, RING), 2);
    assert_string_equal(spans[0].name, "first");
    assert_int_equal(spans[0].begin_ns, 10);
    assert_int_equal(spans[0].end_ns, 20);
    assert_int_equal(spans[0].unit, -1);
    assert_string_equal(spans[1].name, "second");
    assert_int_equal(spans[1].track, 2);
    assert_int_equal(spans[1].unit, 5);
    assert_int_equal(trace_drain(spans, RING), 0);
}

static void test_a_full_ring_keeps_the_last_spans(void **state) {
    (void)state;
    for (int i = 0; i < RING + 100; i++)
        trace_add("x", 0, i, i, i + 1);
    assert_int_equal(trace_drain(spans, RING + 10), RING);
    for (int i = 0; i < RING; i++)
        assert_int_equal(spans[i].unit, i + 100);
    for (int i = 0; i < 5; i++)
        trace_add("x", 0, i, i, i + 1);
    assert_int_equal(trace_drain(spans, 3), 3);
    assert_int_equal(spans[0].unit, 2);
    assert_int_equal(trace_drain(spans, RING), 0);
}

static pthread_barrier_t start_line;

static void *add_many(void *arg) {
    const int track = *(const int *)arg;
    (void)pthread_barrier_wait(&start_line);
    for (int i = 0; i < 16000; i++)
        trace_add("t", track, i, 0, 1);
    return NULL;
}

static void add_from_four_threads(void) {
    pthread_t threads[4];
    static const int tracks[4] = {0, 1, 2, 3};
    assert_int_equal(pthread_barrier_init(&start_line, NULL, 4), 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, add_many, (void *)(uintptr_t)&tracks[i]), 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    (void)pthread_barrier_destroy(&start_line);
}

static void test_threads_lose_no_span_and_keep_their_own_order(void **state) {
    (void)state;
    /* A round is short, so that only some rounds have threads that truly meet. */
    for (int round = 0; round < 50; round++) {
        add_from_four_threads();
        assert_int_equal(trace_drain(spans, RING), 64000);
        int next[4] = {0};
        int wrong = 0;
        for (int i = 0; i < 64000; i++)
            wrong += spans[i].unit != next[spans[i].track]++;
        assert_int_equal(wrong, 0);
    }
}

static void test_the_clock_runs_forward_and_a_sleep_lasts(void **state) {
    (void)state;
    const int64_t start = clock_ns();
    clock_sleep_us(2000);
    assert_true(clock_ns() - start >= 2000000);
    assert_true(clock_ms_since(start) >= 2.0);
    clock_sleep_us(0);
    clock_sleep_us(-5);
    assert_true(clock_wall_s() > 1.7e9);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_a_disabled_trace_keeps_nothing, set_up),
        cmocka_unit_test_setup(test_spans_come_out_once_in_the_order_they_went_in, set_up),
        cmocka_unit_test_setup(test_a_full_ring_keeps_the_last_spans, set_up),
        cmocka_unit_test_setup(test_threads_lose_no_span_and_keep_their_own_order, set_up),
        cmocka_unit_test(test_the_clock_runs_forward_and_a_sleep_lasts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
