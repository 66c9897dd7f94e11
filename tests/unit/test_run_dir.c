/* The run directory: one live process, one run, a log that ends where the checkpoint does. */
#include "checkpoint/run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "tests/unit/run_fixture.h"
#include "tests/unit/scratch_dir.h"

#define START(id) "{\"event\":\"start\",\"run_id\":\"" id "\"}\n"

static void write_log(const char *text) {
    scratch_write(scratch_path(dir, "log.jsonl"), text);
}

static const char *read_log(void) {
    return scratch_read(scratch_path(dir, "log.jsonl"));
}

static void expect_refusal(Status status, const char *first, const char *second) {
    assert_int_equal(status, STATUS_CHECKPOINT);
    if (strstr(status_trail(), first) == NULL || strstr(status_trail(), second) == NULL)
        fail_msg("message %s\nlacks %s or %s", status_trail(), first, second);
}

static void test_a_second_process_is_refused_with_the_holder_named(void **state) {
    (void)state;
    RunDir first, second;
    assert_int_equal(run_lock(&first, dir, "node-a"), STATUS_OK);
    /* flock belongs to the open file, so a second one in this process stands for another process. */
    expect_refusal(run_lock(&second, dir, "node-b"), dir, "on host node-a");
    char pid[32];
    str_format(pid, sizeof pid, "pid %ld ", (long)getpid());
    assert_non_null(strstr(status_trail(), pid));
    assert_int_equal(second.fd, -1);
    run_unlock(&first);
    assert_int_equal(run_lock(&second, dir, "node-b"), STATUS_OK);
    assert_non_null(strstr(scratch_read(scratch_path(dir, "lock")), "node-b"));
    run_unlock(&second);
}

static void test_a_dead_process_does_not_block(void **state) {
    (void)state;
    const pid_t child = fork();
    if (child == 0) {
        RunDir lock;
        _exit(run_lock(&lock, dir, "node-a") == STATUS_OK ? 0 : 1); /* without unlocking */
    }
    int outcome;
    assert_int_equal(waitpid(child, &outcome, 0), child);
    assert_int_equal(outcome, 0);
    RunDir lock;
    assert_int_equal(run_lock(&lock, dir, "node-b"), STATUS_OK);
    run_unlock(&lock);
}

static void test_a_refused_start_leaves_nothing_behind(void **state) {
    (void)state;
    RunDir lock;
    assert_int_equal(run_lock(&lock, scratch_path(dir, "runs/a/b"), "h"), STATUS_OK);
    assert_true(file_exists(scratch_path(dir, "runs/a/b/lock")));
    run_lock_abandon(&lock);
    assert_false(file_exists(scratch_path(dir, "runs")));
    assert_true(file_exists(dir));
    /* What was there before stays. */
    assert_int_equal(run_lock(&lock, dir, "h"), STATUS_OK);
    run_unlock(&lock);
    write_log("x");
    assert_int_equal(run_lock(&lock, dir, "h"), STATUS_OK);
    run_lock_abandon(&lock);
    assert_true(file_exists(scratch_path(dir, "lock")));
    assert_true(file_exists(scratch_path(dir, "log.jsonl")));
}

static void test_a_directory_that_cannot_be_made_is_a_clear_error(void **state) {
    (void)state;
    write_log("a file, not a directory");
    RunDir lock;
    assert_int_equal(run_lock(&lock, scratch_path(dir, "log.jsonl/run"), "h"), STATUS_CONFIG);
    assert_non_null(strstr(status_trail(), "log.jsonl"));
    assert_non_null(strstr(status_trail(), "run.dir="));
    assert_int_equal(run_lock(&lock, scratch_path(dir, "log.jsonl"), "h"), STATUS_CONFIG);
    assert_string_equal(read_log(), "a file, not a directory");
}

static void test_ids_are_32_hex_digits_and_differ(void **state) {
    (void)state;
    char a[RUN_ID], b[RUN_ID];
    assert_int_equal(run_draw_id(a), STATUS_OK);
    assert_int_equal(run_draw_id(b), STATUS_OK);
    assert_int_equal(strspn(a, "0123456789abcdef"), 32);
    assert_int_equal(strlen(a), 32);
    assert_string_not_equal(a, b);
}

static void test_an_empty_directory_begins_a_run(void **state) {
    (void)state;
    RunStart start;
    const char *kinds[] = {"auto", "none"};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(run_decide(&start, dir, kinds[i], NULL), STATUS_OK);
        assert_false(start.resume);
        assert_int_equal(strlen(start.run_id), 32);
    }
    assert_int_equal(run_decide(&start, scratch_path(dir, "absent"), "auto", NULL), STATUS_OK);
    assert_false(start.resume);
}

static void test_auto_takes_the_newest_valid_set_of_the_logs_run(void **state) {
    (void)state;
    fixture_set(dir, 100, RUN_A);
    fixture_set(dir, 200, RUN_A);
    fixture_set(dir, 300, RUN_B);
    write_log(START(RUN_A));
    RunStart start;
    Str warnings = {0};
    assert_int_equal(run_decide(&start, dir, "auto", &warnings), STATUS_OK);
    assert_true(start.resume && start.step == 200 && start.keep_log);
    assert_string_equal(start.run_id, RUN_A);
    assert_true(str_ends_with(start.set, "/checkpoints/step-00000200"));
    assert_non_null(strstr(warnings.text, "step-00000300"));
    str_deinit(&warnings);
    fixture_damage(dir, 200);
    assert_int_equal(run_decide(&start, dir, "auto", NULL), STATUS_OK);
    assert_int_equal(start.step, 100);
    assert_int_equal(unlink(scratch_path(dir, "log.jsonl")), 0);
    assert_int_equal(run_decide(&start, dir, "auto", NULL), STATUS_OK);
    assert_true(start.step == 300 && !start.keep_log);
    assert_string_equal(start.run_id, RUN_B);
}

static void test_a_log_without_a_usable_set_is_refused(void **state) {
    (void)state;
    RunStart start;
    write_log(START(RUN_A));
    expect_refusal(run_decide(&start, dir, "auto", NULL), "run.dir=", "checkpoint.resume=none");
    fixture_set(dir, 100, RUN_A);
    fixture_damage(dir, 100);
    expect_refusal(run_decide(&start, dir, "auto", NULL), "1 set passed over", "checkpoint.resume=none");
    fixture_set(dir, 200, RUN_B);
    expect_refusal(run_decide(&start, dir, "auto", NULL), "2 sets passed over", dir);
    assert_int_equal(run_decide(&start, dir, "none", NULL), STATUS_OK);
    assert_false(start.resume || start.keep_log);
}

static void test_damaged_sets_alone_are_refused(void **state) {
    (void)state;
    RunStart start;
    fixture_set(dir, 100, RUN_A);
    fixture_damage(dir, 100);
    expect_refusal(run_decide(&start, dir, "auto", NULL), "checkpoints", "run.dir=");
}

static void test_an_empty_log_is_no_log(void **state) {
    (void)state;
    RunStart start;
    write_log("");
    assert_int_equal(run_decide(&start, dir, "auto", NULL), STATUS_OK);
    assert_false(start.resume);
}

static void test_a_path_resumes_its_own_run_only(void **state) {
    (void)state;
    char other[SCRATCH_PATH], set[SET_PATH];
    scratch_create(other);
    fixture_set(other, 100, RUN_B);
    set_path(set, other, 100);
    RunStart start;
    assert_int_equal(run_decide(&start, dir, set, NULL), STATUS_OK);
    assert_true(start.resume && start.step == 100 && !start.keep_log);
    assert_string_equal(start.set, set);
    write_log(START(RUN_A));
    expect_refusal(run_decide(&start, dir, set, NULL), "another run", "run.dir=");
    write_log(START(RUN_B));
    assert_int_equal(run_decide(&start, dir, set, NULL), STATUS_OK);
    assert_true(start.keep_log);
    scratch_destroy(other);
    expect_refusal(run_decide(&start, dir, set, NULL), set, "does not exist");
}

static void test_a_log_is_moved_to_the_first_free_number(void **state) {
    (void)state;
    assert_int_equal(run_move_log(dir), STATUS_OK);
    for (int i = 1; i <= 3; i++) {
        char text[16], name[32];
        str_format(text, sizeof text, "log %d\n", i);
        write_log(text);
        assert_int_equal(run_move_log(dir), STATUS_OK);
        str_format(name, sizeof name, "log.jsonl.%d", i);
        assert_string_equal(scratch_read(scratch_path(dir, name)), text);
    }
    assert_false(file_exists(scratch_path(dir, "log.jsonl")));
}

static void test_the_log_is_cut_at_the_sets_step(void **state) {
    (void)state;
    const char *early = START(RUN_A) "{\"event\":\"step\",\"step\":1}\n{\"event\":\"step\",\"step\":2}\n"
                                     "{\"event\":\"checkpoint\",\"step\":2}\n{\"event\":\"warning\"}\n";
    Str text = {0};
    str_append(&text, early);
    str_append(&text, "{\"event\":\"step\",\"step\":3}\n{\"event\":\"warning\"}\n{\"event\":\"end\",\"step\":3}\n");
    write_log(text.text);
    assert_int_equal(run_cut_log(dir, 3), STATUS_OK);
    assert_string_equal(read_log(), text.text);
    assert_int_equal(run_cut_log(dir, 2), STATUS_OK);
    assert_string_equal(read_log(), early);
    assert_int_equal(run_cut_log(dir, 0), STATUS_OK);
    assert_string_equal(read_log(), START(RUN_A));
    str_deinit(&text);
}

static void test_half_lines_are_dropped(void **state) {
    (void)state;
    write_log(START(RUN_A) "{\"event\":\"st\n{\"step\":1}\n[1]\n\n{\"event\":\"step\",\"step\":2");
    assert_int_equal(run_cut_log(dir, 5), STATUS_OK);
    assert_string_equal(read_log(), START(RUN_A) "{\"step\":1}\n");
    assert_int_equal(unlink(scratch_path(dir, "log.jsonl")), 0);
    assert_int_equal(run_cut_log(dir, 5), STATUS_OK);
    assert_false(file_exists(scratch_path(dir, "log.jsonl")));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_second_process_is_refused_with_the_holder_named, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_a_dead_process_does_not_block, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_a_refused_start_leaves_nothing_behind, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_a_directory_that_cannot_be_made_is_a_clear_error, make_dir, remove_dir),
        cmocka_unit_test(test_ids_are_32_hex_digits_and_differ),
        cmocka_unit_test_setup_teardown(test_an_empty_directory_begins_a_run, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_auto_takes_the_newest_valid_set_of_the_logs_run, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_a_log_without_a_usable_set_is_refused, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_damaged_sets_alone_are_refused, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_an_empty_log_is_no_log, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_a_path_resumes_its_own_run_only, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_a_log_is_moved_to_the_first_free_number, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_the_log_is_cut_at_the_sets_step, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_half_lines_are_dropped, make_dir, remove_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
