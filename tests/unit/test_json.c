/* JSON: what is written reads back, and what is not strict JSON is refused with the byte. */
#include "base/json.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static JsonValue *parse(const char *text) {
    JsonValue *root = NULL;
    if (json_parse(text, strlen(text), "test", STATUS_DATA, &root) != STATUS_OK)
        fail_msg("%s: %s", text, status_trail());
    return root;
}

static void test_writer_places_commas_and_keys(void **state) {
    (void)state;
    Str out = {0};
    JsonWriter w = json_writer(&out);
    json_begin_object(&w, NULL);
    json_int(&w, "step", -3);
    json_begin_array(&w, "list");
    json_bool(&w, NULL, true);
    json_null(&w, NULL);
    json_begin_object(&w, NULL);
    json_end_object(&w);
    json_begin_array(&w, NULL);
    json_end_array(&w);
    json_end_array(&w);
    json_hex32(&w, "loss_bits", 0xabcu);
    json_hex64(&w, "params_hash", 0x123456789abcdefu);
    json_raw(&w, "raw", "{\"a\":1}");
    json_string(&w, "none", NULL);
    json_end_object(&w);
    assert_string_equal(out.text, "{\"step\":-3,\"list\":[true,null,{},[]],\"loss_bits\":\"00000abc\","
                                  "\"params_hash\":\"0123456789abcdef\",\"raw\":{\"a\":1},\"none\":null}");
    str_deinit(&out);
}

static void test_doubles_are_short_and_read_back_to_the_bit(void **state) {
    (void)state;
    static const double values[] = {0.1,    1.0 / 3, 1e300,  5e-324,    -0.0, 123456789012345678.0,
                                    3.0e-4, 6.25,    2.0e22, 0x1.8p-30, 1e15, 0.30000000000000004};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        Str out = {0};
        JsonWriter w = json_writer(&out);
        json_double(&w, NULL, values[i]);
        JsonValue *root = parse(out.text);
        double back = 0;
        assert_true(json_as_double(root, &back));
        assert_memory_equal(&back, &values[i], sizeof back);
        json_free(root);
        str_deinit(&out);
    }
    Str out = {0};
    JsonWriter w = json_writer(&out);
    json_begin_array(&w, NULL);
    json_double(&w, NULL, 0.07); /* %.16g would be 0.07000000000000001 */
    json_double(&w, NULL, 100);
    json_double(&w, NULL, NAN);
    json_double(&w, NULL, -INFINITY);
    json_end_array(&w);
    assert_string_equal(out.text, "[0.07,100,null,null]");
    str_deinit(&out);
}

static void test_strings_are_escaped_and_read_back(void **state) {
    (void)state;
    static const char text[] = "quote \" back \\ slash / nl \n tab \t bell \x07 del \x7f e-acute \xc3\xa9 clef "
                               "\xf0\x9d\x84\x9e";
    Str out = {0};
    JsonWriter w = json_writer(&out);
    json_string(&w, NULL, text);
    assert_non_null(strstr(out.text, "quote \\\" back \\\\ slash / nl \\n tab \\t bell \\u0007 del \\u007f"));
    JsonValue *root = parse(out.text);
    assert_string_equal(json_as_string(root), text);
    json_free(root);
    str_deinit(&out);
}

static void test_invalid_utf8_is_written_as_replacement_characters(void **state) {
    (void)state;
    Str out = {0};
    JsonWriter w = json_writer(&out);
    /* a lone byte, an overlong slash, a surrogate, a sequence cut short */
    json_string(&w, NULL, "a\xff\xc0\xafz\xed\xa0\x80.\xe2\x82");
    assert_string_equal(out.text, "\"a\\ufffd\\ufffd\\ufffdz\\ufffd\\ufffd\\ufffd.\\ufffd\\ufffd\"");
    str_deinit(&out);
}

static void test_values_are_found_by_key_and_by_place(void **state) {
    (void)state;
    JsonValue *root = parse(" {\"z\": [1, 2.5, \"x\"], \"a\": {\"\\u0062\": true}, \"m\": null, \"big\": "
                            "9007199254740992, \"over\": 9007199254740994, \"neg\": -7e0} \n");
    assert_true(json_is_object(root));
    assert_int_equal(json_count(root), 6);
    assert_string_equal(json_key(json_at(root, 0)), "z");
    assert_string_equal(json_key(json_at(root, 5)), "neg");
    assert_null(json_at(root, 6));
    assert_null(json_at(root, -1));
    const JsonValue *list = json_get(root, "z");
    assert_true(json_is_array(list));
    assert_int_equal(json_count(list), 3);
    int64_t whole = 0;
    double real = 0;
    bool yes = false;
    assert_true(json_as_int(json_at(list, 0), &whole));
    assert_int_equal(whole, 1);
    assert_false(json_as_int(json_at(list, 1), &whole));
    assert_true(json_as_double(json_at(list, 1), &real));
    assert_true(real == 2.5);
    assert_string_equal(json_as_string(json_at(list, 2)), "x");
    assert_null(json_as_string(json_at(list, 1)));
    assert_null(json_key(json_at(list, 0)));
    assert_true(json_as_bool(json_get(json_get(root, "a"), "b"), &yes));
    assert_true(yes);
    assert_true(json_as_int(json_get(root, "big"), &whole));
    assert_int_equal(whole, (int64_t)1 << 53);
    assert_false(json_as_int(json_get(root, "over"), &whole));
    assert_true(json_as_int(json_get(root, "neg"), &whole));
    assert_int_equal(whole, -7);
    assert_null(json_get(root, "absent"));
    assert_null(json_get(list, "z"));
    assert_null(json_get(NULL, "z"));
    assert_int_equal(json_count(NULL), 0);
    assert_false(json_as_bool(json_get(root, "m"), &yes));
    assert_false(json_as_int(json_get(root, "m"), &whole));
    json_free(root);
    json_free(NULL);
}

typedef struct BadRow {
    const char *text, *words; /* words: a part of the message */
} BadRow;

static const BadRow bad_rows[] = {
    {"", "byte 0: the text ends"},
    {"  ", "byte 2: the text ends"},
    {"{\"a\":1,\"b\":2,\"a\":3}", "the key \"a\" stands twice"},
    {"[{\"x\":{\"k\":1,\"\\u006b\":2}}]", "the key \"k\" stands twice"},
    {"1 2", "byte 2: text after the value"},
    {"{} x", "byte 3: text after the value"},
    {"01", "byte 0: a number must not begin with 0"},
    {"-01", "byte 1: a number must not begin with 0"},
    {"+1", "byte 0: a value is expected"},
    {".5", "byte 0: a value is expected"},
    {"1.", "byte 2: a digit is missing"},
    {"-", "byte 1: a digit is missing"},
    {"1e", "byte 2: a digit is missing"},
    {"1e+", "byte 3: a digit is missing"},
    {"0x10", "byte 1: text after the value"},
    {"1e999", "out of range"},
    {"NaN", "a value is expected"},
    {"nan", "a value is expected"},
    {"Infinity", "a value is expected"},
    {"-Infinity", "a digit is missing"},
    {"True", "a value is expected"},
    {"nul", "a value is expected"},
    {"[1,]", "byte 3: a value is expected"},
    {"[1 2]", "byte 3: ',' or ']'"},
    {"[1", "byte 2: ',' or ']'"},
    {"{\"a\":1,}", "byte 7: a string is expected"},
    {"{a:1}", "byte 1: a string is expected"},
    {"{\"a\" 1}", "byte 5: ':' is expected"},
    {"{\"a\":1", "byte 6: ',' or '}'"},
    {"'a'", "a value is expected"},
    {"\"a\nb\"", "byte 2: a control character"},
    {"\"\x01\"", "byte 1: a control character"},
    {"\"abc", "byte 4: a string does not end"},
    {"\"a\\", "byte 2: an unknown escape"},
    {"\"\\x41\"", "byte 1: an unknown escape"},
    {"\"\\u12g4\"", "byte 1: \\u needs four hex digits"},
    {"\"\\u12\"", "byte 1: \\u needs four hex digits"},
    {"\"\\u0000\"", "byte 1: a string must not hold NUL"},
    {"\"\\ud800\"", "half a surrogate pair"},
    {"\"\\ud800\\u0041\"", "half a surrogate pair"},
    {"\"\\udc00\"", "half a surrogate pair"},
    {"\"\xff\"", "byte 1: invalid UTF-8"},
    {"\"ab\xc0\xaf\"", "byte 3: invalid UTF-8"},
    {"\"\xed\xa0\x80\"", "byte 1: invalid UTF-8"},
    {"\"\xf4\x90\x80\x80\"", "byte 1: invalid UTF-8"},
    {"\xef\xbb\xbf{}", "byte 0: a value is expected"},
    {"\f1", "byte 0: a value is expected"},
    {"[1] // comment", "byte 4: text after the value"},
    {"1111111111111111111111111111111111111111111111111111111111111111", "longer than 63 characters"},
};

static void test_what_is_not_strict_json_is_refused_with_the_byte(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof bad_rows / sizeof bad_rows[0]; i++) {
        JsonValue *root = NULL;
        const Status status =
            json_parse(bad_rows[i].text, strlen(bad_rows[i].text), "file.json", STATUS_CHECKPOINT, &root);
        if (status != STATUS_CHECKPOINT)
            fail_msg("%s was accepted", bad_rows[i].text);
        assert_null(root);
        assert_ptr_equal(strstr(status_trail(), "file.json: "), status_trail());
        if (strstr(status_trail(), bad_rows[i].words) == NULL)
            fail_msg("%s: \"%s\" is not in: %s", bad_rows[i].text, bad_rows[i].words, status_trail());
    }
}

static void test_nul_bytes_are_not_an_end(void **state) {
    (void)state;
    JsonValue *root = NULL;
    assert_int_equal(json_parse("{}\0x", 4, "test", STATUS_DATA, &root), STATUS_DATA);
    assert_int_equal(json_parse("\"a\0b\"", 5, "test", STATUS_DATA, &root), STATUS_DATA);
    assert_int_equal(json_parse("[1]x", 3, "test", STATUS_DATA, &root), STATUS_OK); /* nbytes ends the text */
    json_free(root);
}

static void nest(Str *text, int depth) {
    str_clear(text);
    for (int i = 0; i < depth; i++)
        str_append(text, "[");
    for (int i = 0; i < depth; i++)
        str_append(text, "]");
}

static void test_64_levels_are_read_and_65_are_not(void **state) {
    (void)state;
    Str text = {0};
    nest(&text, 64);
    JsonValue *root = parse(text.text);
    json_free(root);
    nest(&text, 65);
    assert_int_equal(json_parse(text.text, text.len, "test", STATUS_DATA, &root), STATUS_DATA);
    assert_non_null(strstr(status_trail(), "byte 64: nested deeper than 64"));
    nest(&text, 1000000);
    assert_int_equal(json_parse(text.text, text.len, "test", STATUS_DATA, &root), STATUS_DATA);
    str_deinit(&text);
}

static void test_strict_forms_that_are_legal_are_read(void **state) {
    (void)state;
    static const char *const good[] = {"0",
                                       "-0",
                                       "-0.0e-0",
                                       "1E5",
                                       "[ ]",
                                       "{ }",
                                       "\"\"",
                                       "\t[\r\n]",
                                       "{\"\":0}",
                                       "[[],{}]",
                                       "\"\\ud834\\udd1e\"",
                                       "\"\\/\\b\\f\\n\\r\\t\\\"\\\\\"",
                                       "1e-999"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        json_free(parse(good[i]));
    JsonValue *root = parse("\"\\ud834\\udd1e\"");
    assert_string_equal(json_as_string(root), "\xf0\x9d\x84\x9e");
    json_free(root);
}

static void test_ten_thousand_members_are_found(void **state) {
    (void)state;
    Str text = {0};
    str_append(&text, "{");
    for (int i = 0; i < 10000; i++)
        str_printf(&text, "%s\"key%d\":%d", i > 0 ? "," : "", (i * 7919) % 10000, i);
    str_append(&text, "}");
    JsonValue *root = parse(text.text);
    for (int i = 0; i < 10000; i++) {
        char key[20];
        str_format(key, sizeof key, "key%d", (i * 7919) % 10000);
        int64_t value = -1;
        assert_true(json_as_int(json_get(root, key), &value));
        assert_int_equal(value, i);
    }
    json_free(root);
    str_deinit(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_writer_places_commas_and_keys),
        cmocka_unit_test(test_doubles_are_short_and_read_back_to_the_bit),
        cmocka_unit_test(test_strings_are_escaped_and_read_back),
        cmocka_unit_test(test_invalid_utf8_is_written_as_replacement_characters),
        cmocka_unit_test(test_values_are_found_by_key_and_by_place),
        cmocka_unit_test(test_what_is_not_strict_json_is_refused_with_the_byte),
        cmocka_unit_test(test_nul_bytes_are_not_an_end),
        cmocka_unit_test(test_64_levels_are_read_and_65_are_not),
        cmocka_unit_test(test_strict_forms_that_are_legal_are_read),
        cmocka_unit_test(test_ten_thousand_members_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
