/* Schedule factors against values worked out by hand. */
#include "optim/schedule.h"

#include "tests/unit/bits.h"

#define assert_close(value, want)                                                                                      \
    do {                                                                                                               \
        const double value_ = (value), want_ = (want);                                                                 \
        if (!(fabs(value_ - want_) <= 1e-15))                                                                          \
            fail_msg("%s is %.17g, not %.17g", #value, value_, want_);                                                 \
    } while (0)

static Config make(ScheduleKind kind, int64_t warmup, double min_ratio, double decay_fraction) {
    Config config = {0};
    config.optimizer.schedule.kind = kind;
    config.optimizer.schedule.warmup_steps = warmup;
    config.optimizer.schedule.min_ratio = min_ratio;
    config.optimizer.schedule.decay_fraction = decay_fraction;
    return config;
}

static void test_constant_is_one(void **state) {
    (void)state;
    const Config config = make(SCHEDULE_CONSTANT, 0, 0.1, 0.2);
    for (int64_t step = 1; step <= 7; step++)
        assert_close(schedule_factor(&config, step, 7), 1.0);
}

static void test_warmup_rises_to_one_in_every_kind(void **state) {
    (void)state;
    const double want[] = {0.25, 0.5, 0.75, 1.0};
    for (int kind = SCHEDULE_CONSTANT; kind <= SCHEDULE_WSD; kind++) {
        const Config config = make((ScheduleKind)kind, 4, 0.1, 0.2);
        for (int64_t step = 1; step <= 4; step++)
            assert_close(schedule_factor(&config, step, 12), want[step - 1]);
    }
}

static void test_warmup_may_fill_the_run(void **state) {
    (void)state;
    const Config config = make(SCHEDULE_COSINE, 4, 0.1, 0.2);
    assert_close(schedule_factor(&config, 3, 4), 0.75);
    assert_close(schedule_factor(&config, 4, 4), 1.0);
    assert_close(schedule_factor(&config, 2, 2), 0.5);
}

static void test_linear_falls_to_the_ratio(void **state) {
    (void)state;
    const Config config = make(SCHEDULE_LINEAR, 2, 0.2, 0.2);
    const double want[] = {0.5, 1.0, 0.8, 0.6, 0.4, 0.2}; /* p = 1/4, 2/4, 3/4, 1 */
    for (int64_t step = 1; step <= 6; step++)
        assert_close(schedule_factor(&config, step, 6), want[step - 1]);
}

static void test_cosine_passes_its_known_points(void **state) {
    (void)state;
    const Config config = make(SCHEDULE_COSINE, 2, 0.1, 0.2);
    const double root2 = 1.41421356237309504880, root3 = 1.73205080756887729353;
    assert_close(schedule_factor(&config, 3, 14), 0.1 + 0.9 * (1 + (root2 + root2 * root3) / 4) / 2); /* cos(pi/12) */
    assert_close(schedule_factor(&config, 4, 14), 0.1 + 0.9 * (1 + root3 / 2) / 2);                   /* cos(pi/6)  */
    assert_close(schedule_factor(&config, 6, 14), 0.1 + 0.9 * 0.75);                                  /* cos(pi/3)  */
    assert_close(schedule_factor(&config, 8, 14), 0.1 + 0.9 * 0.5);
    assert_close(schedule_factor(&config, 10, 14), 0.1 + 0.9 * 0.25);
    assert_close(schedule_factor(&config, 14, 14), 0.1);
}

static void test_wsd_is_flat_and_then_falls(void **state) {
    (void)state;
    const Config config = make(SCHEDULE_WSD, 2, 0.0, 0.4);
    const double want[] = {0.5, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25, 0}; /* n = 4 */
    for (int64_t step = 1; step <= 10; step++)
        assert_close(schedule_factor(&config, step, 10), want[step - 1]);
}

static void test_wsd_rounds_half_to_even(void **state) {
    (void)state;
    const Config two = make(SCHEDULE_WSD, 0, 0.0, 0.25);  /* 2.5 -> 2 of 10 */
    const Config none = make(SCHEDULE_WSD, 0, 0.0, 0.05); /* 0.5 -> 0 of 10 */
    const Config four = make(SCHEDULE_WSD, 0, 0.0, 0.35); /* 3.5 -> 4 of 10 */
    assert_close(schedule_factor(&two, 8, 10), 1.0);
    assert_close(schedule_factor(&two, 9, 10), 0.5);
    assert_close(schedule_factor(&none, 10, 10), 1.0);
    assert_close(schedule_factor(&four, 7, 10), 0.75);
}

static void test_total_is_the_smaller_of_steps_and_epochs(void **state) {
    (void)state;
    Config config = {0};
    config.train.steps = 100;
    config.batch.global = 16;
    assert_int_equal(schedule_total_steps(&config, 40), 100); /* epochs 0: no limit */
    config.train.epochs = 3;
    assert_int_equal(schedule_total_steps(&config, 40), 7); /* floor(120/16) */
    assert_int_equal(schedule_total_steps(&config, 4000), 100);
    config.train.epochs = INT64_MAX;
    assert_int_equal(schedule_total_steps(&config, 4000), 100); /* more samples than 63 bits count */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_constant_is_one),
        cmocka_unit_test(test_warmup_rises_to_one_in_every_kind),
        cmocka_unit_test(test_warmup_may_fill_the_run),
        cmocka_unit_test(test_linear_falls_to_the_ratio),
        cmocka_unit_test(test_cosine_passes_its_known_points),
        cmocka_unit_test(test_wsd_is_flat_and_then_falls),
        cmocka_unit_test(test_wsd_rounds_half_to_even),
        cmocka_unit_test(test_total_is_the_smaller_of_steps_and_epochs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
