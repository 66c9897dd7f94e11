/* When a run stops to keep within its wall time. */
#include "train/budget.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void test_without_a_limit_time_is_never_spent(void **state) {
    (void)state;
    Budget budget;
    budget_init(&budget, 1000, 0);
    budget_saw_step(&budget, 1e9);
    assert_false(budget_spent_at(&budget, 1e12));
}

static void test_before_any_save_two_minutes_and_the_longest_step_are_kept(void **state) {
    (void)state;
    Budget budget;
    budget_init(&budget, 1000, 600);
    assert_false(budget_spent_at(&budget, 1600 - 120));
    assert_true(budget_spent_at(&budget, 1600 - 119));
    budget_saw_step(&budget, 30);
    budget_saw_step(&budget, 5);
    assert_false(budget_spent_at(&budget, 1600 - 150));
    assert_true(budget_spent_at(&budget, 1600 - 149));
}

static void test_the_longest_save_seen_counts_twice_in_place_of_the_guess(void **state) {
    (void)state;
    Budget budget;
    budget_init(&budget, 1000, 600);
    budget_saw_step(&budget, 2);
    budget_saw_save(&budget, 4);
    budget_saw_save(&budget, 3);
    assert_false(budget_spent_at(&budget, 1600 - 10));
    assert_true(budget_spent_at(&budget, 1600 - 9));
    budget_saw_save(&budget, 100);
    assert_true(budget_spent_at(&budget, 1600 - 201));
    assert_false(budget_spent_at(&budget, 1600 - 202));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_without_a_limit_time_is_never_spent),
        cmocka_unit_test(test_before_any_save_two_minutes_and_the_longest_step_are_kept),
        cmocka_unit_test(test_the_longest_save_seen_counts_twice_in_place_of_the_guess),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
