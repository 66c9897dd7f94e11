/* Splits: parts cover, never overlap, and short ones stand at the end. */
#include "mesh/extent.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void test_parts_cover_the_whole_in_order_without_overlap(void **state) {
    (void)state;
    for (int64_t n = 0; n <= 70; n++)
        for (int parts = 1; parts <= 20; parts++) {
            int64_t next = 0;
            for (int i = 0; i < parts; i++) {
                const Extent e = extent_of(n, parts, i);
                assert_int_equal(e.first, next);
                assert_true(e.count >= 0 && e.count <= ceil_div(n, parts));
                next += e.count;
            }
            assert_int_equal(next, n);
        }
}

static void test_all_parts_but_the_last_are_full(void **state) {
    (void)state;
    assert_int_equal(extent_of(10, 4, 0).count, 3);
    assert_int_equal(extent_of(10, 4, 2).count, 3);
    assert_int_equal(extent_of(10, 4, 3).count, 1);
    assert_int_equal(extent_of(9, 4, 3).count, 0);
    assert_int_equal(extent_of(9, 4, 3).first, 9);
    assert_int_equal(extent_of(2, 4, 3).first, 2);
}

static void test_lengths_beyond_32_bits_are_exact(void **state) {
    (void)state;
    const int64_t n = INT64_C(1) << 50;
    const Extent e = extent_of(n + 1, 8, 7);
    assert_true(e.first == 7 * ((n >> 3) + 1));
    assert_true(e.first + e.count == n + 1);
}

static void test_overlap_of_all_small_extents_equals_counting(void **state) {
    (void)state;
    for (int a = 0; a < 6; a++)
        for (int na = 0; na < 6; na++)
            for (int b = 0; b < 6; b++)
                for (int nb = 0; nb < 6; nb++) {
                    int64_t count = 0, first = -1;
                    for (int i = 0; i < 12; i++)
                        if (i >= a && i < a + na && i >= b && i < b + nb) {
                            first = count == 0 ? i : first;
                            count++;
                        }
                    const Extent e = extent_overlap((Extent){a, na}, (Extent){b, nb});
                    assert_int_equal(e.count, count);
                    if (count > 0)
                        assert_int_equal(e.first, first);
                }
}

static void test_rounding_up(void **state) {
    (void)state;
    assert_int_equal(round_up(0, 8), 0);
    assert_int_equal(round_up(1, 8), 8);
    assert_int_equal(round_up(8, 8), 8);
    assert_int_equal(ceil_div(9, 8), 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts_cover_the_whole_in_order_without_overlap),
        cmocka_unit_test(test_all_parts_but_the_last_are_full),
        cmocka_unit_test(test_lengths_beyond_32_bits_are_exact),
        cmocka_unit_test(test_overlap_of_all_small_extents_equals_counting),
        cmocka_unit_test(test_rounding_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
