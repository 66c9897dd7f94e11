/* The order of samples is a permutation, differs from epoch to epoch, and needs no memory. */
#include "data/order.h"

#include "tests/unit/bits.h"

#define MAX_N 5000

static void check_bijection(uint64_t seed, int64_t epoch, int64_t n) {
    static bool seen[MAX_N];
    memset(seen, 0, sizeof seen);
    for (int64_t i = 0; i < n; i++) {
        const int64_t at = order_permute(seed, epoch, n, i, true);
        if (at < 0 || at >= n || seen[at])
            fail_msg("seed %d epoch %d n %d: position %d goes to %d, outside or twice", (int)seed, (int)epoch, (int)n,
                     (int)i, (int)at);
        seen[at] = true;
    }
}

static void test_order_is_a_bijection_for_every_n(void **state) {
    (void)state;
    for (int64_t n = 1; n <= 130; n++)
        for (int64_t epoch = 0; epoch < 3; epoch++)
            check_bijection(1234, epoch, n);
    const int64_t sizes[] = {255, 256, 257, 1000, 1023, 1024, 1025, 4095, 4096, 4097, 5000};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        check_bijection(7, 5, sizes[i]);
}

static int count_equal(uint64_t seed_a, int64_t epoch_a, uint64_t seed_b, int64_t epoch_b, int64_t n) {
    int equal = 0;
    for (int64_t i = 0; i < n; i++)
        equal += order_permute(seed_a, epoch_a, n, i, true) == order_permute(seed_b, epoch_b, n, i, true);
    return equal;
}

/* Two random permutations agree in one place on average; 12 has a probability below 1e-8. */
static void test_epochs_and_seeds_differ(void **state) {
    (void)state;
    for (int64_t epoch = 0; epoch < 5; epoch++) {
        assert_true(count_equal(1234, epoch, 1234, epoch + 1, 1000) < 12);
        assert_true(count_equal(1234, epoch, 1235, epoch, 1000) < 12);
    }
    assert_int_equal(count_equal(1234, 3, 1234, 3, 1000), 1000);
}

/* Neighbours of the data set must not stay together, and a quarter of an epoch must see all of the data set. */
static void test_order_mixes(void **state) {
    (void)state;
    const int64_t n = 3000;
    int close = 0, in_quarter[4] = {0};
    for (int64_t i = 0; i + 1 < n; i++) {
        const int64_t gap = order_permute(9, 0, n, i, true) - order_permute(9, 0, n, i + 1, true);
        close += gap >= -1 && gap <= 1;
    }
    for (int64_t i = 0; i < n / 4; i++)
        in_quarter[order_permute(9, 0, n, i, true) * 4 / n]++;
    assert_true(close < 12);
    for (int i = 0; i < 4; i++)
        assert_in_range(in_quarter[i], 130, 245); /* 187.5 expected, standard deviation 10 */
}

static void test_unshuffled_order_is_the_file_order(void **state) {
    (void)state;
    for (int64_t i = 0; i < 50; i++)
        assert_int_equal(order_permute(3, 2, 50, i, false), i);
    assert_int_equal(order_window(3, 50, 123, false), 23);
}

static void test_samples_run_on_into_the_next_epoch(void **state) {
    (void)state;
    for (int64_t sample = 0; sample < 100; sample++)
        assert_int_equal(order_window(3, 37, sample, true), order_permute(3, sample / 37, 37, sample % 37, true));
}

static void test_large_ranges_stay_inside(void **state) {
    (void)state;
    const int64_t sizes[] = {(int64_t)1 << 40, ((int64_t)1 << 40) + 1, (int64_t)1 << 62};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int64_t k = 0; k < 20; k++) {
            const int64_t at = order_permute(1, 0, sizes[i], sizes[i] - 1 - k, true);
            assert_true(at >= 0 && at < sizes[i]);
        }
}

static void test_order_is_pinned(void **state) {
    (void)state;
    const int64_t want[] = {447, 377, 954, 192, 866, 507, 523, 791};
    for (int64_t i = 0; i < 8; i++)
        assert_int_equal(order_permute(1234, 1, 1000, i, true), want[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order_is_a_bijection_for_every_n),
        cmocka_unit_test(test_epochs_and_seeds_differ),
        cmocka_unit_test(test_order_mixes),
        cmocka_unit_test(test_unshuffled_order_is_the_file_order),
        cmocka_unit_test(test_samples_run_on_into_the_next_epoch),
        cmocka_unit_test(test_large_ranges_stay_inside),
        cmocka_unit_test(test_order_is_pinned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
