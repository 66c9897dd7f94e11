/* From steps to a record: sums, means, percentiles, rates. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "metrics/memory.h"
#include "metrics/metrics.h"

static void test_percentiles_are_nearest_ranks(void **state) {
    (void)state;
    double values[200];
    for (int n = 1; n <= 200; n++) {
        for (int i = 0; i < n; i++)
            values[i] = (double)((i * 7919) % n + 1); /* a permutation of 1..n: 7919 is prime */
        const Percentiles p = metrics_percentiles(values, n);
        assert_true(p.p50 == ceil(n * 50 / 100.0) && p.p90 == ceil(n * 90 / 100.0) && p.p99 == ceil(n * 99 / 100.0));
    }
    const Percentiles none = metrics_percentiles(values, 0);
    assert_true(isnan(none.p50) && isnan(none.p90) && isnan(none.p99));
}

static void test_a_record_covers_the_steps_since_the_last(void **state) {
    (void)state;
    Comm *self = comm_self_create("world");
    Mesh mesh = {.shape = {1, 1, 1}, .world = self, .axis = {self, self, self, self}};
    const double waits[] = {30, 10, 20};
    const WindowInputs inputs = {
        .ns_calls = 6, .publish_wait_us = waits, .publish_waits = 3, .flops_per_step = 1e6, .peak_flops = 1e9};
    StepWindow window = {0};
    window_add(&window, 100, 10, (const double[PHASE_COUNT]){1, 2, 3, 4, 5});
    window_add(&window, 100, 30, (const double[PHASE_COUNT]){3, 4, 5, 6, 7});
    StepMetrics m = {0};
    window_reduce(&window, &inputs, &mesh, &m);
    assert_true(m.tokens == 200 && m.step_ms == 20 && m.ns_calls == 6);
    for (int p = 0; p < PHASE_COUNT; p++)
        assert_true(m.phase_ms[p] == p + 2);
    assert_true(fabs(m.tokens_per_s - 5000) < 1e-9);
    assert_true(fabs(m.mfu - 0.05) < 1e-12);
    assert_true(m.publish_wait_us.p50 == 20 && m.publish_wait_us.p99 == 30);
    assert_int_equal(window.steps, 0);
    assert_int_equal(window.tokens, 0);
    comm_destroy(self);
}

static void test_an_unknown_peak_or_an_empty_window_gives_no_rate(void **state) {
    (void)state;
    Comm *self = comm_self_create("world");
    Mesh mesh = {.shape = {1, 1, 1}, .world = self, .axis = {self, self, self, self}};
    StepWindow window = {0};
    StepMetrics m = {0};
    window_reduce(&window, &(WindowInputs){.peak_flops = 1e9}, &mesh, &m);
    assert_true(isnan(m.mfu) && isnan(m.tokens_per_s) && isnan(m.publish_wait_us.p50));
    window_add(&window, 100, 10, (const double[PHASE_COUNT]){0});
    window_reduce(&window, &(WindowInputs){.flops_per_step = 1e6}, &mesh, &m);
    assert_true(isnan(m.mfu) && m.tokens_per_s > 0);
    comm_destroy(self);
}

static void test_resident_memory_is_known_and_below_its_peak(void **state) {
    (void)state;
    const size_t now = memory_rss_nbytes(), peak = memory_peak_rss_nbytes();
    assert_true(now > 100000 && peak >= now);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_percentiles_are_nearest_ranks),
        cmocka_unit_test(test_a_record_covers_the_steps_since_the_last),
        cmocka_unit_test(test_an_unknown_peak_or_an_empty_window_gives_no_rate),
        cmocka_unit_test(test_resident_memory_is_known_and_below_its_peak),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
