/* Sets of a run: names, numeric order, the newest valid one, one rename, retention. */
#include "checkpoint/set.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "tests/unit/run_fixture.h"
#include "tests/unit/scratch_dir.h"

static void test_names_are_exact(void **state) {
    (void)state;
    const char *good[] = {"step-00000000", "step-00000100", "step-99999999", "step-100000000"};
    const int64_t steps[] = {0, 100, 99999999, 100000000};
    int64_t step = -1;
    for (int i = 0; i < 4; i++) {
        assert_true(set_parse_name(good[i], &step));
        assert_int_equal(step, steps[i]);
        char path[SET_PATH];
        set_path(path, "r", step);
        assert_string_equal(path + strlen("r/checkpoints/"), good[i]);
    }
    const char *bad[] = {"step-0000100",  "step-000000100",    "step-0000010x", ".tmp-step-00000100",      "step-",
                         "Step-00000100", "step-00000100.bak", "step--0000100", "step-9999999999999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (set_parse_name(bad[i], &step))
            fail_msg("accepted %s", bad[i]);
}

static void test_sets_are_listed_in_numeric_order(void **state) {
    (void)state;
    assert_string_equal(fixture_steps(dir), "");
    fixture_set(dir, 100000000, RUN_A);
    fixture_set(dir, 99999999, RUN_A);
    fixture_set(dir, 20, RUN_A);
    fixture_fill_set(dir, 30, RUN_A); /* still temporary */
    assert_string_equal(fixture_steps(dir), "20 99999999 100000000 ");
}

static void test_the_newest_valid_set_passes_over_damage_and_says_so(void **state) {
    (void)state;
    int64_t step = 0;
    assert_int_equal(set_newest_valid(dir, RUN_A, &step, NULL), STATUS_OK);
    assert_int_equal(step, -1);
    for (int64_t s = 100; s <= 400; s += 100)
        fixture_set(dir, s, s == 400 ? RUN_B : RUN_A);
    fixture_damage(dir, 300);
    Str warnings = {0};
    assert_int_equal(set_newest_valid(dir, RUN_A, &step, &warnings), STATUS_OK);
    assert_int_equal(step, 200);
    assert_non_null(strstr(warnings.text, "step-00000300: data.bin is damaged"));
    assert_non_null(strstr(warnings.text, "step-00000400: belongs to run " RUN_B));
    assert_null(strstr(warnings.text, "step-00000200"));
    assert_string_equal(status_trail(), "");
    str_deinit(&warnings);
    assert_int_equal(set_newest_valid(dir, NULL, &step, NULL), STATUS_OK);
    assert_int_equal(step, 400);
    assert_int_equal(set_newest_valid(dir, RUN_B, &step, NULL), STATUS_OK);
    assert_int_equal(step, 400);
}

static void test_a_commit_replaces_an_older_set_of_the_same_step(void **state) {
    (void)state;
    fixture_set(dir, 100, RUN_A);
    fixture_damage(dir, 100);
    fixture_set(dir, 100, RUN_A);
    int64_t step;
    assert_int_equal(set_newest_valid(dir, RUN_A, &step, NULL), STATUS_OK);
    assert_int_equal(step, 100);
    char **names;
    int count;
    char root[SET_PATH];
    set_root(root, dir);
    assert_int_equal(file_list(root, STATUS_CHECKPOINT, &names, &count), STATUS_OK);
    assert_int_equal(count, 1);
    file_list_free(names, count);
}

static void test_stale_temporaries_go_and_nothing_else(void **state) {
    (void)state;
    assert_int_equal(set_remove_stale(dir), STATUS_OK);
    fixture_set(dir, 100, RUN_A);
    fixture_fill_set(dir, 200, RUN_A);
    scratch_write(scratch_path(dir, "checkpoints/note.txt"), "mine");
    assert_int_equal(set_remove_stale(dir), STATUS_OK);
    assert_true(file_exists(scratch_path(dir, "checkpoints/note.txt")));
    assert_true(file_exists(scratch_path(dir, "checkpoints/step-00000100/trainer.json")));
    assert_false(file_exists(scratch_path(dir, "checkpoints/.tmp-step-00000200")));
}

static void test_a_new_temporary_set_starts_empty(void **state) {
    (void)state;
    fixture_fill_set(dir, 200, RUN_A);
    assert_int_equal(set_begin(dir, 200), STATUS_OK);
    char path[SET_PATH];
    set_temporary_path(path, dir, 200);
    char **names;
    int count;
    assert_int_equal(file_list(path, STATUS_CHECKPOINT, &names, &count), STATUS_OK);
    assert_int_equal(count, 0);
    file_list_free(names, count);
}

static void test_pruning_keeps_the_newest(void **state) {
    (void)state;
    for (int64_t s = 100; s <= 500; s += 100)
        fixture_set(dir, s, RUN_A);
    assert_int_equal(set_prune(dir, RUN_A, 0, 500), STATUS_OK);
    assert_string_equal(fixture_steps(dir), "100 200 300 400 500 ");
    assert_int_equal(set_prune(dir, RUN_A, 7, 500), STATUS_OK);
    assert_string_equal(fixture_steps(dir), "100 200 300 400 500 ");
    assert_int_equal(set_prune(dir, RUN_A, 2, 500), STATUS_OK);
    assert_string_equal(fixture_steps(dir), "400 500 ");
    assert_int_equal(set_prune(dir, RUN_A, 1, -1), STATUS_OK);
    assert_string_equal(fixture_steps(dir), "500 ");
}

static void test_pruning_never_removes_the_newest_valid_set(void **state) {
    (void)state;
    for (int64_t s = 100; s <= 500; s += 100)
        fixture_set(dir, s, RUN_A);
    fixture_damage(dir, 300);
    fixture_damage(dir, 400);
    fixture_damage(dir, 500);
    assert_int_equal(set_prune(dir, RUN_A, 1, -1), STATUS_OK);
    assert_string_equal(fixture_steps(dir), "200 500 ");
}

static void test_pruning_never_removes_the_set_just_committed(void **state) {
    (void)state;
    for (int64_t s = 100; s <= 400; s += 100)
        fixture_set(dir, s, RUN_A);
    assert_int_equal(set_prune(dir, RUN_A, 1, 200),
                     STATUS_OK); /* resumed from 100; 300 and 400 are of the first attempt */
    assert_string_equal(fixture_steps(dir), "200 400 ");
}

static void test_pruning_leaves_other_runs_and_unreadable_sets_alone(void **state) {
    (void)state;
    fixture_set(dir, 100, RUN_B);
    fixture_set(dir, 200, RUN_A);
    fixture_set(dir, 300, RUN_A);
    fixture_set(dir, 400, RUN_A);
    scratch_write(scratch_path(dir, "checkpoints/step-00000200/trainer.json"), "{}");
    assert_int_equal(set_prune(dir, RUN_A, 1, 400), STATUS_OK);
    assert_string_equal(fixture_steps(dir), "100 200 400 ");
}

static void test_space_is_judged_with_both_numbers(void **state) {
    (void)state;
    const char *deep = scratch_path(dir, "not/yet/there");
    assert_int_equal(set_check_space(deep, 1), STATUS_OK);
    assert_int_equal(set_check_space("relative-and-absent", 0), STATUS_OK);
    assert_int_equal(set_check_space("/absent-at-the-root", 0), STATUS_OK);
    assert_int_equal(set_check_space(deep, INT64_MAX), STATUS_CHECKPOINT);
    assert_non_null(strstr(status_trail(), "9223372036854775807"));
    assert_non_null(strstr(status_trail(), "free"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_are_exact),
        cmocka_unit_test_setup_teardown(test_sets_are_listed_in_numeric_order, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_the_newest_valid_set_passes_over_damage_and_says_so, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_a_commit_replaces_an_older_set_of_the_same_step, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_stale_temporaries_go_and_nothing_else, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_a_new_temporary_set_starts_empty, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_pruning_keeps_the_newest, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_pruning_never_removes_the_newest_valid_set, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_pruning_never_removes_the_set_just_committed, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_pruning_leaves_other_runs_and_unreadable_sets_alone, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_space_is_judged_with_both_numbers, make_dir, remove_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
