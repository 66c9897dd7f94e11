/* Files: read whole, written atomically, listed in order, with a sentence for whatever goes wrong. */
#include "base/file.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/arena.h"
#include "tests/unit/scratch.h"

static char dir[SCRATCH_PATH];

static int set_up(void **state) {
    (void)state;
    scratch_create(dir);
    status_trail_clear();
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    scratch_destroy(dir);
    return 0;
}

static void test_what_is_written_reads_back_with_a_terminator(void **state) {
    (void)state;
    static const char data[] = "line\n\0with a NUL";
    const char *path = scratch_path(dir, "f");
    assert_int_equal(file_write_atomic(path, data, sizeof data, STATUS_DATA), STATUS_OK);
    char *back = NULL;
    size_t nbytes = 0;
    assert_int_equal(file_read(path, 0, STATUS_DATA, &back, &nbytes), STATUS_OK);
    assert_int_equal(nbytes, sizeof data);
    assert_memory_equal(back, data, sizeof data);
    assert_int_equal(back[nbytes], '\0');
    heap_free(back);
    assert_int_equal(file_size(path), sizeof data);
    assert_true(file_exists(path));
}

static void test_an_empty_file_and_one_without_a_size_are_read(void **state) {
    (void)state;
    char *back = NULL;
    size_t nbytes = 99;
    scratch_write(scratch_path(dir, "empty"), "");
    assert_int_equal(file_read(scratch_path(dir, "empty"), 0, STATUS_DATA, &back, &nbytes), STATUS_OK);
    assert_int_equal(nbytes, 0);
    assert_string_equal(back, "");
    heap_free(back);
    assert_int_equal(file_read("/proc/self/status", 0, STATUS_DATA, &back, &nbytes), STATUS_OK);
    assert_true(nbytes > 10);
    assert_int_equal(strlen(back), nbytes);
    heap_free(back);
}

static void test_a_missing_file_is_named_with_the_reason(void **state) {
    (void)state;
    char *back = NULL;
    size_t nbytes = 0;
    const char *path = scratch_path(dir, "absent");
    assert_int_equal(file_read(path, 0, STATUS_CHECKPOINT, &back, &nbytes), STATUS_CHECKPOINT);
    assert_null(back);
    const char *trail = status_trail();
    assert_ptr_equal(strstr(trail, path), trail);
    assert_ptr_equal(strstr(trail, ": No such file or directory"), trail + strlen(path));
    assert_int_equal(file_size(path), -1);
    assert_false(file_exists(path));
    assert_int_equal(file_read(dir, 0, STATUS_DATA, &back, &nbytes), STATUS_DATA);
    assert_non_null(strstr(status_trail(), "Is a directory"));
}

static void test_the_limit_counts_bytes(void **state) {
    (void)state;
    char *back = NULL;
    size_t nbytes = 0;
    const char *path = scratch_path(dir, "ten");
    scratch_write(path, "0123456789");
    assert_int_equal(file_read(path, 10, STATUS_DATA, &back, &nbytes), STATUS_OK);
    assert_int_equal(nbytes, 10);
    heap_free(back);
    assert_int_equal(file_read(path, 9, STATUS_DATA, &back, &nbytes), STATUS_DATA);
    assert_non_null(strstr(status_trail(), "limit of 9 bytes"));
    assert_int_equal(file_read("/proc/self/status", 5, STATUS_DATA, &back, &nbytes), STATUS_DATA);
}

static void test_an_atomic_write_replaces_and_leaves_no_temporary(void **state) {
    (void)state;
    const char *path = scratch_path(dir, "f");
    assert_int_equal(file_write_atomic(path, "long old text", 13, STATUS_DATA), STATUS_OK);
    assert_int_equal(file_write_atomic(path, "new", 3, STATUS_DATA), STATUS_OK);
    assert_string_equal(scratch_read(path), "new");
    char **names = NULL;
    int count = 0;
    assert_int_equal(file_list(dir, STATUS_DATA, &names, &count), STATUS_OK);
    assert_int_equal(count, 1);
    file_list_free(names, count);
}

static void test_a_failed_atomic_write_keeps_the_old_file_and_no_temporary(void **state) {
    (void)state;
    const char *path = scratch_path(dir, "d"); /* a directory cannot be renamed over */
    assert_int_equal(mkdir(path, 0777), 0);
    scratch_write(scratch_path(dir, "d/inside"), "kept");
    assert_int_equal(file_write_atomic(path, "new", 3, STATUS_CHECKPOINT), STATUS_CHECKPOINT);
    assert_string_equal(scratch_read(scratch_path(dir, "d/inside")), "kept");
    assert_false(file_exists(scratch_path(dir, "d.tmp")));
    assert_int_equal(file_write_atomic(scratch_path(dir, "no/f"), "x", 1, STATUS_DATA), STATUS_DATA);
    assert_non_null(strstr(status_trail(), "no/f.tmp: No such file or directory"));
}

static void test_a_full_disk_is_an_error(void **state) {
    (void)state;
    const int fd = open("/dev/full", O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        skip();
    assert_int_equal(file_pwrite(fd, "x", 1, 0, "/dev/full", STATUS_CHECKPOINT), STATUS_CHECKPOINT);
    assert_non_null(strstr(status_trail(), "/dev/full: No space left on device"));
    (void)close(fd);
}

static void test_pieces_are_written_and_read_at_their_offsets(void **state) {
    (void)state;
    const char *path = scratch_path(dir, "f");
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    assert_true(fd >= 0);
    assert_int_equal(file_pwrite(fd, "world", 5, 6, path, STATUS_DATA), STATUS_OK);
    assert_int_equal(file_pwrite(fd, "hello ", 6, 0, path, STATUS_DATA), STATUS_OK);
    char back[11];
    assert_int_equal(file_pread(fd, back, 11, 0, path, STATUS_DATA), STATUS_OK);
    assert_memory_equal(back, "hello world", 11);
    assert_int_equal(file_pread(fd, back, 6, 6, path, STATUS_DATA), STATUS_DATA);
    assert_non_null(strstr(status_trail(), "ends at byte 11, 6 bytes were expected at offset 6"));
    (void)close(fd);
}

static void test_directories_are_made_with_their_parents_and_twice(void **state) {
    (void)state;
    const char *path = scratch_path(dir, "a/b/c");
    assert_int_equal(file_make_dirs(path, STATUS_CONFIG), STATUS_OK);
    assert_int_equal(file_make_dirs(path, STATUS_CONFIG), STATUS_OK);
    assert_int_equal(file_make_dirs(scratch_path(dir, "a/d/"), STATUS_CONFIG), STATUS_OK);
    assert_true(file_exists(path));
    scratch_write(scratch_path(dir, "plain"), "x");
    assert_int_equal(file_make_dirs(scratch_path(dir, "plain"), STATUS_CONFIG), STATUS_CONFIG);
    assert_int_equal(file_make_dirs(scratch_path(dir, "plain/e"), STATUS_CONFIG), STATUS_CONFIG);
    assert_non_null(strstr(status_trail(), "Not a directory"));
}

static void test_names_come_in_byte_order(void **state) {
    (void)state;
    static const char *const made[] = {"step-10", "step-9", "B", "a", ".hidden", "step-00000100"};
    static const char *const sorted[] = {".hidden", "B", "a", "step-00000100", "step-10", "step-9"};
    for (int i = 0; i < 6; i++)
        scratch_write(scratch_path(dir, made[i]), "");
    for (int i = 0; i < 40; i++) { /* more than the first capacity */
        char name[16];
        (void)snprintf(name, sizeof name, "z%02d", i);
        scratch_write(scratch_path(dir, name), "");
    }
    char **names = NULL;
    int count = 0;
    assert_int_equal(file_list(dir, STATUS_DATA, &names, &count), STATUS_OK);
    assert_int_equal(count, 46);
    for (int i = 0; i < 6; i++)
        assert_string_equal(names[i], sorted[i]);
    assert_string_equal(names[45], "z39");
    file_list_free(names, count);
    assert_int_equal(file_list(scratch_path(dir, "absent"), STATUS_DATA, &names, &count), STATUS_DATA);
}

static void test_a_directory_goes_with_all_that_is_in_it(void **state) {
    (void)state;
    const char *path = scratch_path(dir, "old");
    assert_int_equal(file_remove_dir(path, STATUS_CHECKPOINT), STATUS_OK);
    assert_int_equal(mkdir(path, 0777), 0);
    scratch_write(scratch_path(dir, "old/one"), "1");
    scratch_write(scratch_path(dir, "old/two"), "2");
    assert_int_equal(file_remove_dir(path, STATUS_CHECKPOINT), STATUS_OK);
    assert_false(file_exists(path));
    assert_int_equal(file_make_dirs(scratch_path(dir, "old/sub"), STATUS_CHECKPOINT), STATUS_OK);
    scratch_write(scratch_path(dir, "old/sub/three"), "3");
    scratch_write(scratch_path(dir, "kept"), "4");
    assert_int_equal(symlink("../kept", scratch_path(dir, "old/link")), 0);
    assert_int_equal(file_remove_dir(scratch_path(dir, "old"), STATUS_CHECKPOINT), STATUS_OK);
    assert_false(file_exists(scratch_path(dir, "old")));
    assert_true(file_exists(scratch_path(dir, "kept")));
}

static void test_a_directory_can_be_synced_and_a_missing_one_not(void **state) {
    (void)state;
    assert_int_equal(file_sync_dir(dir, STATUS_CHECKPOINT), STATUS_OK);
    assert_int_equal(file_sync_dir(scratch_path(dir, "absent"), STATUS_CHECKPOINT), STATUS_CHECKPOINT);
}

#define FILE_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        FILE_TEST(test_what_is_written_reads_back_with_a_terminator),
        FILE_TEST(test_an_empty_file_and_one_without_a_size_are_read),
        FILE_TEST(test_a_missing_file_is_named_with_the_reason),
        FILE_TEST(test_the_limit_counts_bytes),
        FILE_TEST(test_an_atomic_write_replaces_and_leaves_no_temporary),
        FILE_TEST(test_a_failed_atomic_write_keeps_the_old_file_and_no_temporary),
        FILE_TEST(test_a_full_disk_is_an_error),
        FILE_TEST(test_pieces_are_written_and_read_at_their_offsets),
        FILE_TEST(test_directories_are_made_with_their_parents_and_twice),
        FILE_TEST(test_names_come_in_byte_order),
        FILE_TEST(test_a_directory_goes_with_all_that_is_in_it),
        FILE_TEST(test_a_directory_can_be_synced_and_a_missing_one_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
