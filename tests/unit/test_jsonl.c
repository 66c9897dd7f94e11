/* log.jsonl: every record is one strict line with the documented fields. */
#include "metrics/jsonl.h"

#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/json.h"
#include "tests/unit/scratch.h"

static char dir[SCRATCH_PATH];
static Jsonl log_file;

static int set_up(void **state) {
    (void)state;
    scratch_create(dir);
    return jsonl_open(&log_file, dir) == STATUS_OK ? 0 : 1;
}

static int tear_down(void **state) {
    (void)state;
    jsonl_close(&log_file);
    scratch_destroy(dir);
    return 0;
}

/* Line `index` of the log; the log ends in a newline. */
static JsonValue *read_line(int index) {
    const char *line = scratch_read(scratch_path(dir, "log.jsonl"));
    assert_true(str_ends_with(line, "\n"));
    for (; index > 0; index--)
        line = strchr(line, '\n') + 1;
    JsonValue *root;
    const Status status = json_parse(line, strcspn(line, "\n"), "log.jsonl", STATUS_CHECKPOINT, &root);
    if (status != STATUS_OK)
        fail_msg("%s", status_trail());
    assert_string_equal(json_key(json_at(root, 0)), "event");
    return root;
}

static void need_string(const JsonValue *object, const char *key, const char *value) {
    const char *text = json_as_string(json_get(object, key));
    if (text == NULL || strcmp(text, value) != 0)
        fail_msg("%s is %s, not %s", key, text != NULL ? text : "(no string)", value);
}

static void need_number(const JsonValue *object, const char *key, double value) {
    double number = -12345;
    if (!json_as_double(json_get(object, key), &number) || number < value || number > value)
        fail_msg("%s is %.17g, not %.17g", key, number, value);
}

static StepMetrics sample_step(void) {
    StepMetrics m = {.step = 7,
                     .steps_total = 10,
                     .loss = 5.5f,
                     .grad_norm = 1.25,
                     .lr_muon = 0.02,
                     .lr_adamw = 1e-3,
                     .tokens = 4096,
                     .tokens_total = 28672,
                     .tokens_per_s = 1000.5,
                     .step_ms = 12.5,
                     .mfu = 0.25,
                     .ns_calls = 14,
                     .nonfinite = 1,
                     .phase_ms = {1, 2, 3, 4, 5},
                     .publish_wait_us = {10, 20, 30}};
    m.comm[AXIS_SHARD][COMM_BROADCAST] = (CommCount){3, 300, 900};
    m.comm[AXIS_DATA][COMM_ALL_REDUCE] = (CommCount){1, 8, 16};
    return m;
}

static void test_a_step_record_has_every_field(void **state) {
    (void)state;
    const StepMetrics m = sample_step();
    assert_int_equal(jsonl_step(&log_file, &m), STATUS_OK);
    JsonValue *r = read_line(0);
    need_string(r, "event", "step");
    need_number(r, "step", 7);
    need_number(r, "loss", 5.5);
    need_string(r, "loss_bits", "40b00000");
    need_number(r, "grad_norm", 1.25);
    need_number(r, "lr_muon", 0.02);
    need_number(r, "lr_adamw", 1e-3);
    need_number(r, "tokens", 4096);
    need_number(r, "tokens_total", 28672);
    need_number(r, "tokens_per_s", 1000.5);
    need_number(r, "step_ms", 12.5);
    need_number(r, "mfu", 0.25);
    need_number(r, "ns_calls", 14);
    need_number(r, "nonfinite", 1);
    const JsonValue *phases = json_get(r, "phase_ms");
    const char *names[] = {"forward", "backward", "reduce_wait", "optimizer", "publish_wait"};
    assert_int_equal(json_count(phases), 5);
    for (int p = 0; p < 5; p++)
        need_number(phases, names[p], p + 1);
    const JsonValue *waits = json_get(r, "publish_wait_us");
    need_number(waits, "p50", 10);
    need_number(waits, "p90", 20);
    need_number(waits, "p99", 30);
    assert_null(json_get(r, "params_hash"));
    json_free(r);
}

static void test_comm_is_nested_by_axis_and_operation(void **state) {
    (void)state;
    const StepMetrics m = sample_step();
    assert_int_equal(jsonl_step(&log_file, &m), STATUS_OK);
    JsonValue *r = read_line(0);
    const JsonValue *comm = json_get(r, "comm");
    assert_int_equal(json_count(comm), 2);
    const JsonValue *broadcast = json_get(json_get(comm, "shard"), "broadcast");
    need_number(broadcast, "calls", 3);
    need_number(broadcast, "payload_bytes", 300);
    need_number(broadcast, "bus_bytes", 900);
    assert_int_equal(json_count(json_get(comm, "shard")), 1);
    need_number(json_get(json_get(comm, "data"), "all_reduce"), "bus_bytes", 16);
    json_free(r);
}

static void test_non_finite_numbers_are_null_and_keep_their_bits(void **state) {
    (void)state;
    StepMetrics m = sample_step();
    m.loss = -INFINITY;
    m.grad_norm = (double)NAN;
    m.mfu = (double)NAN;
    m.publish_wait_us.p50 = (double)NAN;
    assert_int_equal(jsonl_step(&log_file, &m), STATUS_OK);
    const char *text = scratch_read(scratch_path(dir, "log.jsonl"));
    assert_non_null(strstr(text, "\"loss\":null"));
    assert_non_null(strstr(text, "\"grad_norm\":null"));
    assert_non_null(strstr(text, "\"mfu\":null"));
    assert_non_null(strstr(text, "\"p50\":null"));
    JsonValue *r = read_line(0);
    need_string(r, "loss_bits", "ff800000");
    json_free(r);
}

static void test_a_params_hash_is_16_digits_with_leading_zeros(void **state) {
    (void)state;
    StepMetrics m = sample_step();
    m.has_params_hash = true;
    m.params_hash = UINT64_C(0x00ab00000000cdef);
    assert_int_equal(jsonl_step(&log_file, &m), STATUS_OK);
    JsonValue *r = read_line(0);
    need_string(r, "params_hash", "00ab00000000cdef");
    json_free(r);
}

static void test_the_other_records_are_lines_too(void **state) {
    (void)state;
    assert_int_equal(jsonl_eval(&log_file, &(EvalMetrics){.step = 3, .loss = 2.0f, .tokens = 512, .eval_ms = 9}),
                     STATUS_OK);
    assert_int_equal(jsonl_sample(&log_file, 4, "a \"quoted\"\nprompt", "text \x01 \xff"), STATUS_OK);
    const CheckpointMetrics c = {.step = 5,
                                 .dir = "runs/a/checkpoints/step-00000005",
                                 .nbytes = 77,
                                 .copy_ms = 1,
                                 .write_ms = 2,
                                 .save_wait_ms = 3};
    assert_int_equal(jsonl_checkpoint(&log_file, &c), STATUS_OK);
    assert_int_equal(jsonl_resume(&log_file, 6, "set", (MeshShape){1, 2, 4}), STATUS_OK);
    assert_int_equal(jsonl_warning(&log_file, 7, "a key without effect"), STATUS_OK);
    assert_int_equal(jsonl_end(&log_file, 8, "done", 0), STATUS_OK);
    const char *events[] = {"eval", "sample", "checkpoint", "resume", "warning", "end"};
    for (int i = 0; i < 6; i++) {
        JsonValue *r = read_line(i);
        need_string(r, "event", events[i]);
        need_number(r, "step", i + 3);
        json_free(r);
    }
    JsonValue *eval = read_line(0), *sample = read_line(1), *checkpoint = read_line(2), *resume = read_line(3),
              *end = read_line(5);
    need_number(eval, "tokens", 512);
    need_string(eval, "loss_bits", "40000000");
    need_string(sample, "prompt", "a \"quoted\"\nprompt");
    need_string(sample, "text", "text \x01 \xef\xbf\xbd");
    need_number(checkpoint, "bytes", 77);
    need_number(checkpoint, "save_wait_ms", 3);
    need_number(json_get(resume, "mesh"), "tp", 4);
    need_number(end, "exit_code", 0);
    need_string(end, "reason", "done");
    double rss;
    assert_true(json_as_double(json_get(end, "peak_rss_bytes"), &rss) && rss > 100000);
    json_free(eval), json_free(sample), json_free(checkpoint), json_free(resume), json_free(end);
}

static void test_opening_again_appends(void **state) {
    (void)state;
    assert_int_equal(jsonl_warning(&log_file, 1, "first"), STATUS_OK);
    jsonl_close(&log_file);
    assert_int_equal(jsonl_open(&log_file, dir), STATUS_OK);
    assert_int_equal(jsonl_warning(&log_file, 2, "second"), STATUS_OK);
    JsonValue *first = read_line(0), *second = read_line(1);
    need_string(first, "text", "first");
    need_string(second, "text", "second");
    json_free(first), json_free(second);
}

static void test_a_line_is_one_write(void **state) {
    (void)state;
    /* A packet pipe hands out one write at a time. */
    int ends[2];
    assert_int_equal(pipe2(ends, O_DIRECT), 0);
    Jsonl piped = {.fd = ends[1], .path = "pipe"};
    const StepMetrics m = sample_step();
    assert_int_equal(jsonl_step(&piped, &m), STATUS_OK);
    char text[4096];
    const ssize_t n = read(ends[0], text, sizeof text);
    assert_true(n > 100 && text[n - 1] == '\n' && memchr(text, '\n', (size_t)n) == text + n - 1);
    jsonl_close(&piped);
    close(ends[0]);
}

static void test_a_full_disk_is_an_error(void **state) {
    (void)state;
    Jsonl full = {.fd = open("/dev/full", O_WRONLY | O_CLOEXEC), .path = "/dev/full"};
    assert_int_equal(jsonl_warning(&full, 1, "x"), STATUS_CONFIG);
    assert_non_null(strstr(status_trail(), "No space left"));
    jsonl_close(&full);
    assert_int_equal(jsonl_open(&full, scratch_path(dir, "absent")), STATUS_CONFIG);
    assert_non_null(strstr(status_trail(), "absent/log.jsonl"));
}

static void test_half_a_line_is_an_error(void **state) {
    (void)state;
    struct rlimit saved;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &saved), 0);
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &(struct rlimit){20, saved.rlim_max}), 0);
    const Status status = jsonl_warning(&log_file, 1, "longer than twenty bytes");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &saved), 0);
    (void)signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(status, STATUS_CONFIG);
    assert_non_null(strstr(status_trail(), "only 20 of"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_step_record_has_every_field, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_comm_is_nested_by_axis_and_operation, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_non_finite_numbers_are_null_and_keep_their_bits, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_params_hash_is_16_digits_with_leading_zeros, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_the_other_records_are_lines_too, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_opening_again_appends, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_line_is_one_write, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_half_a_line_is_an_error, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_full_disk_is_an_error, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
