/* Chrome traces: an array of events that Perfetto opens. */
#include "metrics/trace_export.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"
#include "device/device.h"
#include "tests/unit/scratch.h"

static char dir[SCRATCH_PATH];

static int set_up(void **state) {
    (void)state;
    scratch_create(dir);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    trace_enable(false);
    scratch_destroy(dir);
    return 0;
}

static JsonValue *parse(const char *text) {
    JsonValue *root;
    assert_int_equal(json_parse(text, strlen(text), "trace", STATUS_CONFIG, &root), STATUS_OK);
    assert_true(json_is_array(root));
    return root;
}

static void need_number(const JsonValue *object, const char *key, double value) {
    double number = -12345;
    if (!json_as_double(json_get(object, key), &number) || number < value || number > value)
        fail_msg("%s is %.17g, not %.17g", key, number, value);
}

static void test_spans_become_complete_events_in_microseconds(void **state) {
    (void)state;
    const TraceSpan spans[] = {{1500, 4000, "forward", 0, 2}, {2000, 2250, "broadcast \"x\"", 1, -1}};
    Str text = {0};
    trace_export_text(spans, 2, 5, "node-a", 7, &text);
    JsonValue *root = parse(text.text);
    const int names = 1 + STREAM_COUNT;
    assert_int_equal(json_count(root), names + 2);
    const JsonValue *first = json_at(root, names), *second = json_at(root, names + 1);
    assert_string_equal(json_as_string(json_get(first, "name")), "forward");
    assert_string_equal(json_as_string(json_get(first, "ph")), "X");
    need_number(first, "ts", 1.5);
    need_number(first, "dur", 2.5);
    need_number(first, "pid", 5);
    need_number(first, "tid", 0);
    need_number(json_get(first, "args"), "unit", 2);
    need_number(json_get(first, "args"), "step", 7);
    assert_string_equal(json_as_string(json_get(second, "name")), "broadcast \"x\"");
    need_number(second, "tid", 1);
    assert_null(json_get(json_get(second, "args"), "unit"));
    json_free(root);
    str_deinit(&text);
}

static void test_rank_and_streams_have_names(void **state) {
    (void)state;
    Str text = {0};
    trace_export_text(NULL, 0, 3, "node-b", 1, &text);
    JsonValue *root = parse(text.text);
    const JsonValue *process = json_at(root, 0);
    assert_string_equal(json_as_string(json_get(process, "name")), "process_name");
    assert_string_equal(json_as_string(json_get(process, "ph")), "M");
    assert_string_equal(json_as_string(json_get(json_get(process, "args"), "name")), "rank 3 (node-b)");
    for (int track = 0; track < STREAM_COUNT; track++) {
        const JsonValue *thread = json_at(root, 1 + track);
        need_number(thread, "tid", track);
        assert_string_equal(json_as_string(json_get(json_get(thread, "args"), "name")), stream_name((StreamKind)track));
    }
    json_free(root);
    str_deinit(&text);
}

static void test_the_ring_is_written_once_per_rank_and_emptied(void **state) {
    (void)state;
    trace_enable(true);
    trace_add("step", 0, -1, 1000, 2000);
    assert_int_equal(trace_export_write(dir, 3, "node-a", 100), STATUS_OK);
    JsonValue *root = parse(scratch_read(scratch_path(dir, "trace-step-00000100-rank-00003.json")));
    assert_int_equal(json_count(root), 1 + STREAM_COUNT + 1);
    json_free(root);
    assert_int_equal(trace_export_write(dir, 3, "node-a", 101), STATUS_OK);
    root = parse(scratch_read(scratch_path(dir, "trace-step-00000101-rank-00003.json")));
    assert_int_equal(json_count(root), 1 + STREAM_COUNT);
    json_free(root);
    assert_int_equal(trace_export_write(scratch_path(dir, "absent"), 0, "h", 1), STATUS_CONFIG);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spans_become_complete_events_in_microseconds),
        cmocka_unit_test(test_rank_and_streams_have_names),
        cmocka_unit_test_setup_teardown(test_the_ring_is_written_once_per_rank_and_emptied, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
