/* Strings, and numbers that reject whatever is not the whole of one. */
#include "base/str.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void test_a_builder_grows_and_stays_terminated(void **state) {
    (void)state;
    Str str = {0};
    str_append(&str, "");
    assert_string_equal(str.text, "");
    for (int i = 0; i < 1000; i++)
        str_printf(&str, "%d,", i);
    assert_int_equal(str.len, strlen(str.text));
    assert_int_equal(str.len, 10 * 2 + 90 * 3 + 900 * 4);
    str_clear(&str);
    assert_string_equal(str.text, "");
    str_append_n(&str, "abcdef", 3);
    str_append(&str, "xyz");
    assert_string_equal(str.text, "abcxyz");
    str_deinit(&str);
    assert_null(str.text);
}

static void test_paths_join_with_one_slash(void **state) {
    (void)state;
    char buf[64];
    str_path_join(buf, sizeof buf, "a", "b");
    assert_string_equal(buf, "a/b");
    str_path_join(buf, sizeof buf, "a/", "b/c");
    assert_string_equal(buf, "a/b/c");
    str_path_join(buf, sizeof buf, "", "b");
    assert_string_equal(buf, "b");
    str_path_join(buf, sizeof buf, "a", "/b");
    assert_string_equal(buf, "/b");
    assert_string_equal(str_base_name("x/y/z.bin"), "z.bin");
    assert_string_equal(str_base_name("z.bin"), "z.bin");
    assert_string_equal(str_base_name("x/"), "");
}

static void test_prefix_and_suffix(void **state) {
    (void)state;
    assert_true(str_starts_with("model.layers.0", "model."));
    assert_false(str_starts_with("mod", "model."));
    assert_true(str_ends_with("a.weight", ".weight"));
    assert_false(str_ends_with("weight", "a.weight"));
    assert_true(str_ends_with("abc", ""));
}

typedef struct IntRow {
    const char *text;
    int64_t value;
} IntRow;

static void test_whole_numbers_of_yaml_are_read(void **state) {
    (void)state;
    static const IntRow rows[] = {{"0", 0},
                                  {"-0", 0},
                                  {"+12", 12},
                                  {"007", 7},
                                  {"0x1F", 31},
                                  {"0xff", 255},
                                  {"0o17", 15},
                                  {"9223372036854775807", INT64_MAX},
                                  {"-9223372036854775808", INT64_MIN},
                                  {"0x7fffffffffffffff", INT64_MAX}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int64_t value = -99;
        assert_true(str_parse_int(rows[i].text, &value));
        assert_int_equal(value, rows[i].value);
    }
}

static void test_what_is_not_a_whole_number_is_refused(void **state) {
    (void)state;
    static const char *const bad[] = {"",
                                      "+",
                                      "-",
                                      "1_000",
                                      "1 ",
                                      " 1",
                                      "12a",
                                      "0x",
                                      "0o8",
                                      "-0x1",
                                      "0b1",
                                      "1.0",
                                      "1e3",
                                      "--1",
                                      "0xg",
                                      "9223372036854775808",
                                      "0X1F",
                                      "\n1",
                                      "-9223372036854775809",
                                      "0x8000000000000000"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        int64_t value = -99;
        if (str_parse_int(bad[i], &value))
            fail_msg("\"%s\" was read as %lld", bad[i], (long long)value);
        assert_int_equal(value, -99);
    }
}

typedef struct DoubleRow {
    const char *text;
    double value;
} DoubleRow;

static void test_decimal_numbers_of_yaml_are_read(void **state) {
    (void)state;
    static const DoubleRow rows[] = {
        {"1e-4", 1e-4},     {"0.1", 0.1},  {".5", 0.5},           {"5.", 5.0},
        {"-2.5E+3", -2500}, {"+1", 1},     {"1E5", 1e5},          {"0x10", 16},
        {"0o10", 8},        {"1e-400", 0}, {"5e-324", 0x1p-1074}, {"1.7976931348623157e308", 1.7976931348623157e308}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        double value = -99;
        if (!str_parse_double(rows[i].text, &value))
            fail_msg("\"%s\" was not read", rows[i].text);
        assert_memory_equal(&value, &rows[i].value, sizeof value);
    }
}

static void test_what_is_not_a_decimal_number_is_refused(void **state) {
    (void)state;
    static const char *const bad[] = {"",    ".",    "+.",  "e5",   "1e",    "1e+",   "1.5x",  "1,5",   " 1.0", "1.0 ",
                                      "inf", ".inf", "nan", ".nan", "1e999", "1_0.0", "0x1p3", "--1.0", "1..0"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        double value = -99;
        if (str_parse_double(bad[i], &value))
            fail_msg("\"%s\" was read as %g", bad[i], value);
    }
}

static void test_distance_counts_edits(void **state) {
    (void)state;
    assert_int_equal(str_distance("", ""), 0);
    assert_int_equal(str_distance("abc", ""), 3);
    assert_int_equal(str_distance("", "abc"), 3);
    assert_int_equal(str_distance("kitten", "sitting"), 3);
    assert_int_equal(str_distance("learning_rate", "learning_rate"), 0);
    assert_int_equal(str_distance("momentun", "momentum"), 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_builder_grows_and_stays_terminated),
        cmocka_unit_test(test_paths_join_with_one_slash),
        cmocka_unit_test(test_prefix_and_suffix),
        cmocka_unit_test(test_whole_numbers_of_yaml_are_read),
        cmocka_unit_test(test_what_is_not_a_whole_number_is_refused),
        cmocka_unit_test(test_decimal_numbers_of_yaml_are_read),
        cmocka_unit_test(test_what_is_not_a_decimal_number_is_refused),
        cmocka_unit_test(test_distance_counts_edits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
