/* The trail of a failure, exit codes, and the end of the process. */
#include "base/status.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/fatal.h"
#include "tests/unit/death.h"

static Status inner(int value) {
    if (value > 3)
        return STATUS_FAIL(STATUS_DATA, "value %d is above %d", value, 3);
    return STATUS_OK;
}

static Status outer(int value) {
    TRY(inner(value));
    return STATUS_OK;
}

static int lines_of(const char *text) {
    int lines = text[0] != '\0';
    for (; *text != '\0'; text++)
        lines += *text == '\n';
    return lines;
}

static void test_try_passes_success_on_and_leaves_no_trail(void **state) {
    (void)state;
    status_trail_clear();
    assert_int_equal(outer(3), STATUS_OK);
    assert_string_equal(status_trail(), "");
}

static void test_trail_is_the_sentence_and_one_line_per_frame(void **state) {
    (void)state;
    assert_int_equal(outer(4), STATUS_DATA);
    const char *trail = status_trail();
    assert_ptr_equal(strstr(trail, "value 4 is above 3\n    at "), trail);
    assert_int_equal(lines_of(trail), 3);
    assert_non_null(strstr(trail, "test_status.c:"));
    const char *last = strrchr(trail, '\n');
    assert_non_null(strstr(last, ": inner(value)"));
    assert_int_equal(status_sentence(), strlen("value 4 is above 3"));
    status_trail_set("two\nlines");
    assert_int_equal(status_sentence(), strlen("two\nlines"));
}

static void test_a_new_failure_starts_a_new_trail(void **state) {
    (void)state;
    assert_int_equal(outer(4), STATUS_DATA);
    assert_int_equal(outer(5), STATUS_DATA);
    assert_null(strstr(status_trail(), "value 4"));
    assert_int_equal(lines_of(status_trail()), 3);
}

static void test_a_failure_may_quote_the_trail_before_it(void **state) {
    (void)state;
    status_trail_set("first words");
    assert_int_equal(STATUS_FAIL(STATUS_COMM, "then: %s", status_trail()), STATUS_COMM);
    assert_ptr_equal(strstr(status_trail(), "then: first words\n"), status_trail());
}

static void test_a_frame_without_a_sentence_names_the_status(void **state) {
    (void)state;
    status_trail_clear();
    assert_int_equal(status_frame(STATUS_DEVICE, "f.c", 7, "open()"), STATUS_DEVICE);
    assert_string_equal(status_trail(), "device error\n    at f.c:7: open()");
}

static void test_a_long_trail_is_cut_not_overrun(void **state) {
    (void)state;
    char call[400];
    memset(call, 'x', sizeof call - 1);
    call[sizeof call - 1] = '\0';
    status_trail_set("start");
    for (int i = 0; i < 200; i++)
        assert_int_equal(status_frame(STATUS_DATA, "f.c", i, call), STATUS_DATA);
    assert_true(strlen(status_trail()) > 10000);
    assert_true(strlen(status_trail()) < 20000);
    assert_ptr_equal(strstr(status_trail(), "start\n    at f.c:0: xxx"), status_trail());
}

static void *fail_in_thread(void *arg) {
    (void)arg;
    const int status = STATUS_FAIL(STATUS_COMM, "other thread");
    return status == STATUS_COMM && strstr(status_trail(), "other thread") != NULL ? (void *)1 : NULL;
}

static void test_each_thread_has_its_own_trail(void **state) {
    (void)state;
    status_trail_set("mine");
    pthread_t thread;
    void *ok = NULL;
    assert_int_equal(pthread_create(&thread, NULL, fail_in_thread, NULL), 0);
    assert_int_equal(pthread_join(thread, &ok), 0);
    assert_non_null(ok);
    assert_string_equal(status_trail(), "mine");
}

static void test_exit_codes_are_those_of_the_table(void **state) {
    (void)state;
    static const int codes[] = {0, 2, 2, 2, 3, 4, 5, 6, 75};
    for (int i = 0; i < 9; i++)
        assert_int_equal(status_exit_code((Status)i), codes[i]);
    assert_int_equal(status_exit_code((Status)99), 6);
}

static void die_plainly(void *arg) {
    fatal_set_identity(3, "node-b");
    fatal("unit %d of %s is stuck", 5, (const char *)arg);
}

static void test_fatal_prints_one_line_and_exits_with_6(void **state) {
    (void)state;
    char text[512];
    assert_int_equal(death_run(die_plainly, "publish", text, sizeof text), 6);
    assert_string_equal(text, "dmuon-train: rank 3 (node-b): unit 5 of publish is stuck\n");
}

static void die_of_a_failure(void *arg) {
    fatal_set_identity(1, "node-a");
    fatal_status(STATUS_FAIL(STATUS_DATA, "%s: token 9 is outside the vocabulary", (const char *)arg));
}

static void test_fatal_status_prints_the_trail_and_exits_with_the_code_of_the_status(void **state) {
    (void)state;
    char text[512];
    assert_int_equal(death_run(die_of_a_failure, "shard.bin", text, sizeof text), 3);
    const char *sentence = "dmuon-train: rank 1 (node-a): shard.bin: token 9 is outside the vocabulary\n    at ";
    assert_ptr_equal(strstr(text, sentence), text);
}

static void hook(int exit_code) {
    (void)fprintf(stderr, "hook %d\n", exit_code);
    (void)fflush(stderr);
    fatal("inside the hook");
}

static void die_in_hook(void *arg) {
    (void)arg;
    fatal_set_hook(hook);
    const int two = 2;
    DM_ASSERT(two == 3);
}

static void test_assertion_calls_the_hook_once_even_when_the_hook_fails(void **state) {
    (void)state;
    char text[512];
    const int64_t start = clock_ns();
    assert_int_equal(death_run(die_in_hook, NULL, text, sizeof text), 6);
    assert_true(clock_ms_since(start) < 5000); /* it did not wait for itself */
    assert_ptr_equal(strstr(text, "dmuon-train: internal error: two == 3 does not hold at "), text);
    assert_non_null(strstr(text, "\nhook 6\n"));
    assert_null(strstr(text, "inside the hook"));
}

static void *die_in_thread(void *arg) {
    fatal("thread %s", (const char *)arg);
}

static void slow_hook(int exit_code) {
    (void)usleep(100000);
    _exit(exit_code + 1);
}

static void die_twice(void *arg) {
    (void)arg;
    fatal_set_hook(slow_hook);
    pthread_t threads[2];
    (void)pthread_create(&threads[0], NULL, die_in_thread, "A");
    (void)pthread_create(&threads[1], NULL, die_in_thread, "A");
    (void)pthread_join(threads[0], NULL);
}

static void test_of_two_threads_that_die_one_speaks_and_the_hook_finishes(void **state) {
    (void)state;
    char text[512];
    assert_int_equal(death_run(die_twice, NULL, text, sizeof text), 7);
    assert_string_equal(text, "dmuon-train: thread A\n");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_try_passes_success_on_and_leaves_no_trail),
        cmocka_unit_test(test_trail_is_the_sentence_and_one_line_per_frame),
        cmocka_unit_test(test_a_new_failure_starts_a_new_trail),
        cmocka_unit_test(test_a_failure_may_quote_the_trail_before_it),
        cmocka_unit_test(test_a_frame_without_a_sentence_names_the_status),
        cmocka_unit_test(test_a_long_trail_is_cut_not_overrun),
        cmocka_unit_test(test_each_thread_has_its_own_trail),
        cmocka_unit_test(test_exit_codes_are_those_of_the_table),
        cmocka_unit_test(test_fatal_prints_one_line_and_exits_with_6),
        cmocka_unit_test(test_fatal_status_prints_the_trail_and_exits_with_the_code_of_the_status),
        cmocka_unit_test(test_assertion_calls_the_hook_once_even_when_the_hook_fails),
        cmocka_unit_test(test_of_two_threads_that_die_one_speaks_and_the_hook_finishes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
