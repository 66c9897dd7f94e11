/* Several files as one sequence of windows. */
#include "data/dataset.h"

#include "tests/unit/bits.h"
#include "tests/unit/scratch_dir.h"

#include <sys/stat.h>

/* Writes `nbytes` bytes start, start + 1, ... mod 256. */
static void write_text(const char *name, int start, int nbytes) {
    unsigned char bytes[1024];
    for (int i = 0; i < nbytes; i++)
        bytes[i] = (unsigned char)(start + i);
    scratch_write_bytes(scratch_path(dir, name), bytes, (size_t)nbytes);
}

static Status open_pattern(Dataset **dataset, const char *pattern, int64_t seq_len, int64_t vocab_size) {
    Str files = {0};
    const DatasetOptions options = {
        .pattern = pattern, .key = "data.train", .format = FORMAT_AUTO, .seq_len = seq_len, .vocab_size = vocab_size};
    Status status = dataset_list(pattern, "data.train", &files);
    if (status == STATUS_OK)
        status = dataset_open(dataset, &options, files.text);
    str_deinit(&files);
    return status;
}

static void test_list_is_sorted_and_one_per_line(void **state) {
    (void)state;
    Str files = {0};
    char want[4 * SCRATCH_PATH];
    write_text("b.txt", 0, 9);
    write_text("a.txt", 0, 9);
    write_text("B.txt", 0, 9);
    str_format(want, sizeof want, "%s/B.txt\n%s/a.txt\n%s/b.txt\n", dir, dir, dir);
    assert_int_equal(dataset_list(scratch_path(dir, "*.txt"), "data.train", &files), STATUS_OK);
    assert_string_equal(files.text, want);
    assert_int_equal(dataset_list(scratch_path(dir, "a.txt"), "data.train", &files), STATUS_OK);
    str_format(want, sizeof want, "%s/a.txt\n", dir);
    assert_string_equal(files.text, want);
    str_deinit(&files);
}

static void test_a_name_with_the_signs_of_a_glob_is_a_name(void **state) {
    (void)state;
    Str files = {0};
    write_text("x[1].txt", 0, 9);
    assert_int_equal(dataset_list(scratch_path(dir, "x[1].txt"), "data.train", &files), STATUS_OK);
    assert_true(str_ends_with(files.text, "/x[1].txt\n"));
    str_deinit(&files);
}

static void test_no_match_is_an_error_that_names_the_key(void **state) {
    (void)state;
    Str files = {0};
    assert_int_equal(dataset_list(scratch_path(dir, "*.absent"), "data.val", &files), STATUS_DATA);
    assert_non_null(strstr(status_trail(), "data.val"));
    assert_non_null(strstr(status_trail(), "*.absent"));
    assert_int_equal(dataset_list("", "data.train", &files), STATUS_DATA);
    assert_non_null(strstr(status_trail(), "data.train is empty"));
    write_text("line\nbreak.txt", 0, 9);
    assert_int_equal(dataset_list(scratch_path(dir, "line*"), "data.train", &files), STATUS_DATA);
    assert_non_null(strstr(status_trail(), "line break"));
    str_deinit(&files);
}

static void test_windows_stand_inside_one_file(void **state) {
    (void)state;
    Dataset *dataset;
    int32_t tokens[4], targets[4];
    write_text("1.txt", 0, 9);    /* 2 windows of 5 at stride 4, nothing dropped */
    write_text("2.txt", 100, 12); /* 2 windows, 3 dropped                        */
    write_text("3.txt", 200, 5);  /* 1 window                                    */
    const int first[] = {0, 4, 100, 104, 200};
    assert_int_equal(open_pattern(&dataset, scratch_path(dir, "[123].txt"), 4, 256), STATUS_OK);
    assert_int_equal(dataset_samples(dataset), 5);
    assert_int_equal(dataset_tokens(dataset), 26);
    assert_int_equal(dataset_dropped(dataset), 3);
    assert_int_equal(dataset_file_count(dataset), 3);
    assert_int_equal(dataset_id_bytes(dataset), 26);
    for (int sample = 0; sample < 5; sample++) {
        assert_int_equal(dataset_window(dataset, sample, tokens, targets), STATUS_OK);
        for (int i = 0; i < 4; i++) {
            assert_int_equal(tokens[i], first[sample] + i);
            assert_int_equal(targets[i], first[sample] + i + 1);
        }
    }
    dataset_close(dataset);
}

static void test_a_file_shorter_than_a_window_is_refused(void **state) {
    (void)state;
    Dataset *dataset;
    write_text("s1.txt", 0, 9);
    write_text("s2.txt", 0, 4);
    assert_int_equal(open_pattern(&dataset, scratch_path(dir, "s?.txt"), 4, 256), STATUS_DATA);
    assert_null(dataset);
    assert_non_null(strstr(status_trail(), "s2.txt has 4 tokens"));
    assert_non_null(strstr(status_trail(), "batch.seq_len + 1 = 5"));
    assert_int_equal(open_pattern(&dataset, scratch_path(dir, "s2.txt"), 3, 256), STATUS_OK);
    assert_int_equal(dataset_samples(dataset), 1);
    dataset_close(dataset);
}

static void test_a_bad_file_among_good_ones_is_named(void **state) {
    (void)state;
    Dataset *dataset;
    write_text("g1.txt", 0, 9);
    assert_int_equal(mkdir(scratch_path(dir, "g2.txt"), 0777), 0);
    assert_int_equal(open_pattern(&dataset, scratch_path(dir, "g?.txt"), 4, 256), STATUS_DATA);
    assert_null(dataset);
    assert_non_null(strstr(status_trail(), "g2.txt is a directory"));
}

static void test_ids_are_checked_in_parts_that_cover_all(void **state) {
    (void)state;
    for (int bad = 0; bad < 18; bad++) {
        Dataset *dataset;
        unsigned char bytes[2][9] = {{0}};
        bytes[bad / 9][bad % 9] = 77;
        scratch_write_bytes(scratch_path(dir, "p1.txt"), bytes[0], 9);
        scratch_write_bytes(scratch_path(dir, "p2.txt"), bytes[1], 9);
        assert_int_equal(open_pattern(&dataset, scratch_path(dir, "p?.txt"), 4, 77), STATUS_OK);
        for (int parts = 1; parts <= 12; parts++) {
            int found = 0;
            for (int part = 0; part < parts; part++)
                found += dataset_check_ids(dataset, part, parts) == STATUS_DATA;
            assert_int_equal(found, 1);
        }
        assert_non_null(strstr(status_trail(), bad < 9 ? "p1.txt: token" : "p2.txt: token"));
        dataset_close(dataset);
    }
}

static void test_a_window_with_a_bad_id_is_an_error(void **state) {
    (void)state;
    Dataset *dataset;
    int32_t tokens[4], targets[4];
    write_text("w.txt", 0, 9);
    assert_int_equal(open_pattern(&dataset, scratch_path(dir, "w.txt"), 4, 8), STATUS_OK);
    assert_int_equal(dataset_window(dataset, 0, tokens, targets), STATUS_OK);
    assert_int_equal(dataset_window(dataset, 1, tokens, targets), STATUS_DATA); /* only its last target is 8 */
    assert_non_null(strstr(status_trail(), "w.txt: token 8 (byte 8) has id 8"));
    dataset_close(dataset);
}

static void test_identity_has_a_line_per_file(void **state) {
    (void)state;
    Dataset *dataset;
    Str identity = {0};
    write_text("i1.txt", 0, 9);
    write_text("i2.txt", 0, 12);
    assert_int_equal(open_pattern(&dataset, scratch_path(dir, "i?.txt"), 4, 256), STATUS_OK);
    assert_int_equal(dataset_identity(dataset, &identity), STATUS_OK);
    assert_true(str_starts_with(identity.text, "i1.txt 9 "));
    assert_non_null(strstr(identity.text, "\ni2.txt 12 "));
    assert_int_equal(identity.text[identity.len - 1], '\n');
    str_deinit(&identity);
    dataset_close(dataset);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_list_is_sorted_and_one_per_line),
        cmocka_unit_test(test_a_name_with_the_signs_of_a_glob_is_a_name),
        cmocka_unit_test(test_no_match_is_an_error_that_names_the_key),
        cmocka_unit_test(test_windows_stand_inside_one_file),
        cmocka_unit_test(test_a_file_shorter_than_a_window_is_refused),
        cmocka_unit_test(test_a_bad_file_among_good_ones_is_named),
        cmocka_unit_test(test_ids_are_checked_in_parts_that_cover_all),
        cmocka_unit_test(test_a_window_with_a_bad_id_is_an_error),
        cmocka_unit_test(test_identity_has_a_line_per_file),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
