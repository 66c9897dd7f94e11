/* The record of the last operations: what a ring keeps, and that a file has it when the process is gone. */
#include "comm/flight.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/unit/scratch.h"

static FlightFile file;

static void load(const char *dir, int rank) {
    char path[SCRATCH_PATH];
    flight_path(path, sizeof path, dir, rank);
    FILE *stream = fopen(path, "rb");
    assert_non_null(stream);
    assert_int_equal(fread(&file, 1, sizeof file, stream), sizeof file);
    assert_int_equal(fgetc(stream), EOF);
    (void)fclose(stream);
}

static FlightEntry *add(int ring, uint64_t sequence) {
    return flight_begin(ring, &(FlightOperation){.op = "broadcast",
                                                 .axis = "shard",
                                                 .what = "unit 3 owner (shard 1, replicate 0)",
                                                 .sequence = sequence,
                                                 .hash = sequence * 7,
                                                 .step = 9,
                                                 .count = 100,
                                                 .nbytes = 400,
                                                 .unit = 3,
                                                 .root = 1,
                                                 .leader = 2});
}

/* A process that records `n` operations, the last one under way, and is killed with SIGKILL. */
static void record_and_die(const char *dir, int n) {
    const pid_t child = fork();
    if (child == 0) {
        add(STREAM_REDUCE, 1000); /* before the file is there */
        if (flight_open(dir, 5, 8, "node-b") != STATUS_OK)
            _exit(1);
        for (int i = 1; i < n; i++)
            flight_end(add(STREAM_GATHER, (uint64_t)i));
        add(STREAM_GATHER, (uint64_t)n);
        (void)raise(SIGKILL);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void test_the_last_64_operations_survive_sigkill(void **state) {
    (void)state;
    char dir[SCRATCH_PATH];
    scratch_create(dir);
    record_and_die(dir, 200);
    load(dir, 5);
    assert_memory_equal(file.header.magic, "DMFLIGHT", 8);
    assert_int_equal(file.header.rank, 5);
    assert_int_equal(file.header.size, 8);
    assert_string_equal(file.header.host, "node-b");
    assert_int_equal(file.header.state, FLIGHT_RUNNING);
    uint64_t lowest = UINT64_MAX, highest = 0;
    for (int i = 0; i < FLIGHT_SLOTS; i++) {
        const FlightEntry *e = &file.entry[STREAM_GATHER][i];
        lowest = e->sequence < lowest ? e->sequence : lowest;
        highest = e->sequence > highest ? e->sequence : highest;
        assert_int_equal(e->number, e->sequence + 1); /* one came before */
        assert_int_equal(e->hash, e->sequence * 7);
        assert_int_equal(e->end_ns == 0, e->sequence == 200);
    }
    assert_int_equal(lowest, 137);
    assert_int_equal(highest, 200);
    scratch_destroy(dir);
}

static void test_operations_from_before_the_file_are_in_it(void **state) {
    (void)state;
    char dir[SCRATCH_PATH];
    scratch_create(dir);
    record_and_die(dir, 1);
    load(dir, 5);
    const FlightEntry *e = &file.entry[STREAM_REDUCE][0];
    assert_int_equal(e->sequence, 1000);
    assert_int_equal(e->step, 9);
    assert_int_equal(e->count, 100);
    assert_int_equal(e->nbytes, 400);
    assert_int_equal(e->unit, 3);
    assert_int_equal(e->root, 1);
    assert_int_equal(e->leader, 2);
    assert_true(e->begin_ns > INT64_C(1600000000) * 1000000000);
    assert_string_equal(e->op, "broadcast");
    assert_string_equal(e->axis, "shard");
    assert_string_equal(e->what, "unit 3 owner (shard 1, replicate 0)");
    scratch_destroy(dir);
}

static void test_the_last_operation_is_told_in_words(void **state) {
    (void)state;
    char dir[SCRATCH_PATH], path[SCRATCH_PATH + 32], text[400];
    scratch_create(dir);
    record_and_die(dir, 10);
    flight_path(path, sizeof path, dir, 5);
    assert_int_equal(flight_last(path, text, sizeof text), FLIGHT_RUNNING);
    assert_string_equal(
        text, "step 9 unit 3 stream gather: broadcast 'unit 3 owner (shard 1, replicate 0)' on axis shard, 400 "
              "bytes (under way)");
    flight_path(path, sizeof path, dir, 6);
    assert_int_equal(flight_last(path, text, sizeof text), -1);
    assert_string_equal(text, "no operation");
    scratch_destroy(dir);
}

static void test_the_end_of_a_process_is_marked(void **state) {
    (void)state;
    char dir[SCRATCH_PATH];
    scratch_create(dir);
    assert_int_equal(flight_open(dir, 0, 2, "a"), STATUS_OK);
    flight_end(add(STREAM_PUBLISH, 1));
    flight_failed();
    load(dir, 0);
    assert_int_equal(file.header.state, FLIGHT_FAILED);
    flight_close();
    load(dir, 0);
    assert_int_equal(file.header.state, FLIGHT_CLOSED);
    assert_true(file.entry[STREAM_PUBLISH][0].end_ns >= file.entry[STREAM_PUBLISH][0].begin_ns);
    flight_end(add(STREAM_PUBLISH, 2)); /* memory is still good */
    scratch_destroy(dir);
}

static void test_a_directory_that_cannot_be_made_is_an_error_with_its_name(void **state) {
    (void)state;
    char dir[SCRATCH_PATH];
    scratch_create(dir);
    scratch_write(scratch_path(dir, "flight"), "a file");
    assert_int_equal(flight_open(scratch_path(dir, "flight"), 0, 2, "a"), STATUS_CONFIG);
    assert_non_null(strstr(status_trail(), "/flight"));
    scratch_destroy(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_last_64_operations_survive_sigkill),
        cmocka_unit_test(test_operations_from_before_the_file_are_in_it),
        cmocka_unit_test(test_the_last_operation_is_told_in_words),
        cmocka_unit_test(test_the_end_of_a_process_is_marked),
        cmocka_unit_test(test_a_directory_that_cannot_be_made_is_an_error_with_its_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
