/* Prompts as token ids. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "data/prompt.h"

static void assert_tokens(const char *prompt, int64_t vocab, int64_t want_count, const int32_t *want) {
    int32_t tokens[8] = {0};
    int64_t count = -1, checked = -1;
    assert_int_equal(prompt_parse("it", prompt, vocab, tokens, &count), STATUS_OK);
    assert_int_equal(prompt_parse("it", prompt, vocab, NULL, &checked), STATUS_OK);
    assert_int_equal(count, want_count);
    assert_int_equal(checked, want_count);
    assert_memory_equal(tokens, want, (size_t)count * sizeof *want);
}

static void test_a_vocabulary_of_256_is_bytes(void **state) {
    (void)state;
    assert_tokens("1 \xff", 256, 3, (const int32_t[]){'1', ' ', 255});
}

static void test_any_other_vocabulary_is_ids_between_blanks(void **state) {
    (void)state;
    assert_tokens(" 0  511 07 ", 512, 3, (const int32_t[]){0, 511, 7});
    assert_tokens("2", 3, 1, (const int32_t[]){2});
}

static void test_nothing_is_one_token(void **state) {
    (void)state;
    assert_tokens("", 256, 1, (const int32_t[]){'\n'});
    assert_tokens("", 512, 1, (const int32_t[]){0});
    assert_tokens("  ", 512, 1, (const int32_t[]){0});
}

static void test_what_is_no_id_below_the_vocabulary_is_refused(void **state) {
    static const char *const bad[] = {"512", "-0", "+1", "1\n2", "1x", "x", "18446744073709551617"};
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        int64_t count;
        assert_int_equal(prompt_parse("it", bad[i], 512, NULL, &count), STATUS_CONFIG);
        assert_non_null(strstr(status_trail(), "it \""));
        assert_non_null(strstr(status_trail(), "token ids from 0 to 511"));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_vocabulary_of_256_is_bytes),
        cmocka_unit_test(test_any_other_vocabulary_is_ids_between_blanks),
        cmocka_unit_test(test_nothing_is_one_token),
        cmocka_unit_test(test_what_is_no_id_below_the_vocabulary_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
