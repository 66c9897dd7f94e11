/* Lines for people: what they say, and that a progress line never stays between them. */
#include "metrics/console.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/unit/scratch_dir.h"

static void test_durations_have_two_units_at_most(void **state) {
    (void)state;
    const struct {
        double seconds;
        const char *text;
    } cases[] = {{0, "0s"},          {59.4, "59s"},     {59.6, "1m00s"}, {185, "3m05s"},     {3720, "1h02m"},
                 {86399.9, "1d00h"}, {273600, "3d04h"}, {-1, "?"},       {(double)NAN, "?"}, {(double)INFINITY, "?"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Str text = {0};
        console_duration(cases[i].seconds, &text);
        assert_string_equal(text.text, cases[i].text);
        str_deinit(&text);
    }
}

static void test_a_step_line_says_where_the_run_stands(void **state) {
    (void)state;
    StepMetrics m = {.step = 100,
                     .steps_total = 1000,
                     .loss = 5.25f,
                     .grad_norm = 1.5,
                     .lr_muon = 0.02,
                     .lr_adamw = 1e-3,
                     .tokens_per_s = 12345.6,
                     .step_ms = 200,
                     .mfu = 0.1234};
    Str text = {0};
    console_step_text(&m, &text);
    assert_string_equal(
        text.text, "step 100/1000  loss 5.250000  norm 1.5000  lr 0.02/0.001  12346 tokens/s  MFU 12.3%  ETA 3m00s");
    str_clear(&text);
    m.mfu = (double)NAN;
    m.nonfinite = 2;
    console_step_text(&m, &text);
    assert_null(strstr(text.text, "MFU"));
    assert_non_null(strstr(text.text, "skipped 2"));
    str_deinit(&text);
}

static void test_a_progress_line_is_full_at_the_end_only(void **state) {
    (void)state;
    Str text = {0};
    console_live_text(999, 1000, 1.0f, 10, &text);
    assert_non_null(strstr(text.text, ".] 999/1000"));
    str_clear(&text);
    console_live_text(1000, 1000, 1.0f, 10, &text);
    assert_null(memchr(text.text, '.', strcspn(text.text, "]")));
    assert_non_null(strstr(text.text, "ETA 0s"));
    str_deinit(&text);
}

/* What fn writes to stderr. */
static const char *capture(void (*fn)(Console *console), Console *console) {
    const char *path = scratch_path(dir, "stderr.txt");
    fflush(stderr);
    const int saved = dup(2);
    FILE *file = fopen(path, "w");
    dup2(fileno(file), 2);
    fn(console);
    fflush(stderr);
    dup2(saved, 2);
    close(saved);
    fclose(file);
    return scratch_read(path);
}

static void write_all(Console *console) {
    console_live(console, 1, 10, 2.0f, 5);
    console_live(console, 2, 10, 2.0f, 5);
    console_line(console, "a line %d", 7);
    console_live(console, 3, 10, 2.0f, 5);
    console_clear(console);
}

static void test_lines_replace_the_progress_line(void **state) {
    (void)state;
    Console console = {.live = true};
    const char *text = capture(write_all, &console);
    assert_non_null(strstr(text, "\r\x1b[Ka line 7\n"));
    assert_true(str_ends_with(text, "\r\x1b[K"));
    int newlines = 0;
    for (const char *c = text; *c != '\0'; c++)
        newlines += *c == '\n';
    assert_int_equal(newlines, 1);
}

static void test_without_a_terminal_there_are_plain_lines_only(void **state) {
    (void)state;
    Console console = {.live = false};
    assert_string_equal(capture(write_all, &console), "a line 7\n");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_durations_have_two_units_at_most),
        cmocka_unit_test(test_a_step_line_says_where_the_run_stands),
        cmocka_unit_test(test_a_progress_line_is_full_at_the_end_only),
        cmocka_unit_test_setup_teardown(test_lines_replace_the_progress_line, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_without_a_terminal_there_are_plain_lines_only, make_dir, remove_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
