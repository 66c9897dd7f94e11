/* Text and token files: what is read, and every way in which a file can be wrong. */
#include "data/shard.h"

#include <sys/resource.h>
#include <unistd.h>

#include "tests/unit/bits.h"
#include "tests/unit/scratch_dir.h"

#include "base/arena.h"

static void put_u32(unsigned char *at, uint32_t value) {
    for (int i = 0; i < 4; i++)
        at[i] = (unsigned char)(value >> (8 * i));
}

/* A token shard with `count` in its header and `nids` ids of `width` bytes: 3, 10, 17 ... */
static const char *write_tokens(const char *name, uint32_t magic, uint32_t version, uint32_t count, int nids,
                                int width) {
    static unsigned char bytes[1 << 16];
    memset(bytes, 0, sizeof bytes);
    put_u32(bytes, magic);
    put_u32(bytes + 4, version);
    put_u32(bytes + 8, count);
    for (int i = 0; i < nids; i++) {
        const uint32_t id = 3 + 7 * (uint32_t)i;
        memcpy(bytes + 1024 + width * i, (unsigned char[4]){(unsigned char)id, (unsigned char)(id >> 8)},
               (size_t)width);
    }
    const char *path = scratch_path(dir, name);
    scratch_write_bytes(path, bytes, 1024 + (size_t)(nids * width));
    return path;
}

/* The file is refused as bad data, and the message holds every part. */
static void check_refused(const char *path, DataFormat format, const char *const *parts) {
    Shard shard;
    assert_int_equal(shard_open(&shard, path, "data.train", format), STATUS_DATA);
    assert_int_equal(shard.fd, -1);
    for (; *parts; parts++)
        if (!strstr(status_trail(), *parts))
            fail_msg("'%s' is not in: %s", *parts, status_trail());
}

#define PARTS(...) ((const char *const[]){"data.train", __VA_ARGS__, NULL})

static void test_text_is_its_bytes(void **state) {
    (void)state;
    const unsigned char bytes[] = {0, 'a', 200, 255, '\n'};
    int32_t ids[5];
    Shard shard;
    const char *path = scratch_path(dir, "a.txt");
    scratch_write_bytes(path, bytes, sizeof bytes);
    assert_int_equal(shard_open(&shard, path, "data.train", FORMAT_AUTO), STATUS_OK);
    assert_int_equal(shard.ntokens, 5);
    assert_int_equal(shard_read(&shard, 0, 5, 256, ids), STATUS_OK);
    for (int i = 0; i < 5; i++)
        assert_int_equal(ids[i], bytes[i]);
    shard_close(&shard);
    assert_int_equal(shard.fd, -1);
}

static void test_both_token_formats_are_read(void **state) {
    (void)state;
    for (int width = 2; width <= 4; width += 2) {
        int32_t ids[50];
        Shard shard;
        const char *path = width == 2 ? write_tokens("w2.bin", 20240520, 1, 100, 100, 2)
                                      : write_tokens("w4.bin", 20240801, 7, 100, 100, 4);
        assert_int_equal(shard_open(&shard, path, "data.train", FORMAT_AUTO), STATUS_OK);
        assert_int_equal(shard.ntokens, 100);
        assert_int_equal(shard.id_nbytes, width);
        assert_int_equal(shard_read(&shard, 50, 50, 50000, ids), STATUS_OK);
        for (int i = 0; i < 50; i++)
            assert_int_equal(ids[i], 3 + 7 * (50 + i));
        shard_close(&shard);
    }
}

static void test_format_overrules_the_name(void **state) {
    (void)state;
    Shard shard;
    const char *path = write_tokens("tokens.txt", 20240520, 1, 10, 10, 2);
    assert_int_equal(shard_open(&shard, path, "data.train", FORMAT_TOKENS), STATUS_OK);
    assert_int_equal(shard.ntokens, 10);
    shard_close(&shard);
    assert_int_equal(shard_open(&shard, path, "data.train", FORMAT_AUTO), STATUS_OK);
    assert_int_equal(shard.ntokens, 1044);
    shard_close(&shard);
}

static void test_what_is_no_file_is_refused(void **state) {
    (void)state;
    check_refused(scratch_path(dir, "absent.txt"), FORMAT_AUTO, PARTS("absent.txt", "No such file"));
    check_refused(dir, FORMAT_TEXT, PARTS(dir, "is a directory", "glob"));
    scratch_write(scratch_path(dir, "empty.txt"), "");
    check_refused(scratch_path(dir, "empty.txt"), FORMAT_AUTO, PARTS("empty.txt", "is empty"));
    check_refused("/dev/null", FORMAT_TEXT, PARTS("/dev/null", "not a regular file"));
}

static void test_a_name_that_auto_cannot_judge_is_refused(void **state) {
    (void)state;
    scratch_write(scratch_path(dir, "a.dat"), "text");
    check_refused(scratch_path(dir, "a.dat"), FORMAT_AUTO, PARTS("a.dat", "data.format", ".txt", ".bin"));
}

static void test_wrong_headers_are_refused(void **state) {
    (void)state;
    check_refused(write_tokens("magic.bin", 20240521, 1, 10, 10, 2), FORMAT_AUTO,
                  PARTS("magic.bin", "20240521", "20240520", "20240801", "byte 0"));
    check_refused(write_tokens("v.bin", 20240520, 7, 10, 10, 2), FORMAT_AUTO,
                  PARTS("version 7", "version 1", "byte 4"));
    check_refused(write_tokens("v.bin", 20240801, 1, 10, 10, 4), FORMAT_AUTO,
                  PARTS("version 1", "version 7", "byte 4"));
    check_refused(write_tokens("n.bin", 20240520, 1, 0xffffffff, 10, 2), FORMAT_AUTO,
                  PARTS("-1", "negative", "byte 8"));
    scratch_write(scratch_path(dir, "short.bin"), "0123456789");
    check_refused(scratch_path(dir, "short.bin"), FORMAT_AUTO, PARTS("short.bin", "10 bytes", "1024"));
}

static void test_wrong_lengths_are_refused(void **state) {
    (void)state;
    check_refused(write_tokens("long.bin", 20240520, 1, 9, 10, 2), FORMAT_AUTO, PARTS("1044", "1042", "9 ids"));
    check_refused(write_tokens("cut.bin", 20240520, 1, 11, 10, 2), FORMAT_AUTO, PARTS("1044", "1046", "11 ids"));
    check_refused(write_tokens("wide.bin", 20240801, 7, 10, 10, 2), FORMAT_AUTO, PARTS("1044", "1064"));
    check_refused(write_tokens("big.bin", 20240801, 7, 0x7fffffff, 10, 4), FORMAT_AUTO, PARTS("8589935612"));
    const char *odd = write_tokens("odd.bin", 20240520, 1, 10, 10, 2);
    assert_int_equal(truncate(odd, 1043), 0);
    check_refused(odd, FORMAT_AUTO, PARTS("1043", "1044"));
}

static void test_an_id_beyond_the_vocabulary_is_named(void **state) {
    (void)state;
    int32_t ids[100];
    Shard shard;
    assert_int_equal(shard_open(&shard, write_tokens("ids.bin", 20240520, 1, 100, 100, 2), "data.train", FORMAT_AUTO),
                     STATUS_OK);
    assert_int_equal(shard_check_ids(&shard, 0, 100, 697), STATUS_OK); /* the last is 3 + 7*99 = 696 */
    assert_int_equal(shard_check_ids(&shard, 0, 100, 696), STATUS_DATA);
    assert_non_null(strstr(status_trail(), "ids.bin: token 99 (byte 1222) has id 696"));
    assert_non_null(strstr(status_trail(), "vocab_size = 696"));
    assert_int_equal(shard_check_ids(&shard, 0, 99, 696), STATUS_OK);
    assert_int_equal(shard_read(&shard, 90, 10, 696, ids), STATUS_DATA);
    shard_close(&shard);
}

static void test_ids_above_31_bits_are_not_negative(void **state) {
    (void)state;
    unsigned char last[4];
    Shard shard;
    const char *path = write_tokens("huge.bin", 20240801, 7, 10, 10, 4);
    put_u32(last, 0xfffffff0);
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, 1024 + 36, SEEK_SET), 0);
    assert_int_equal(fwrite(last, 1, 4, file), 4);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(shard_open(&shard, path, "data.train", FORMAT_AUTO), STATUS_OK);
    assert_int_equal(shard_check_ids(&shard, 0, 10, 128256), STATUS_DATA);
    assert_non_null(strstr(status_trail(), "token 9 (byte 1060) has id 4294967280"));
    shard_close(&shard);
}

static void identity_of(const char *path, Str *out) {
    Shard shard;
    str_clear(out);
    assert_int_equal(shard_open(&shard, path, "data.train", FORMAT_TEXT), STATUS_OK);
    assert_int_equal(shard_identity(&shard, out), STATUS_OK);
    shard_close(&shard);
}

static void test_identity_is_name_size_and_content(void **state) {
    (void)state;
    static char bytes[1000050];
    Str first = {0}, second = {0};
    memset(bytes, 'x', sizeof bytes);
    const char *path = scratch_path(dir, "big.txt");
    scratch_write_bytes(path, bytes, sizeof bytes);
    identity_of(path, &first);
    assert_true(str_starts_with(first.text, "big.txt 1000050 "));
    identity_of(path, &second);
    assert_string_equal(first.text, second.text);
    const size_t covered[] = {0, 1023, 4095, 500000 - 996000 / 126, sizeof bytes - 1};
    for (size_t i = 0; i < sizeof covered / sizeof *covered; i++) {
        bytes[covered[i]] = 'y';
        scratch_write_bytes(path, bytes, sizeof bytes);
        identity_of(path, &second);
        assert_string_not_equal(first.text, second.text);
        bytes[covered[i]] = 'x';
    }
    str_deinit(&first);
    str_deinit(&second);
}

/* The hash was computed by another program from the words of data/shard.h. */
static void test_identity_is_pinned(void **state) {
    (void)state;
    static unsigned char bytes[1000050];
    Str identity = {0};
    for (uint32_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)((uint64_t)i * 7919 >> 5);
    scratch_write_bytes(scratch_path(dir, "pinned.txt"), bytes, sizeof bytes);
    identity_of(scratch_path(dir, "pinned.txt"), &identity);
    assert_string_equal(identity.text,
                        "pinned.txt 1000050 5f67fd9bebd4dd44f2c2a86499142833e31d6e4185bc2df977c6e84b3bd24e09\n");
    str_deinit(&identity);
}

static void test_identity_of_a_small_file_covers_all_of_it(void **state) {
    (void)state;
    static char bytes[64 * 4096];
    Str first = {0}, second = {0};
    const char *path = scratch_path(dir, "small.txt");
    scratch_write_bytes(path, bytes, sizeof bytes);
    identity_of(path, &first);
    for (size_t at = 0; at < sizeof bytes; at += 30011) {
        bytes[at] ^= 1;
        scratch_write_bytes(path, bytes, sizeof bytes);
        identity_of(path, &second);
        assert_string_not_equal(first.text, second.text);
        bytes[at] ^= 1;
    }
    str_deinit(&first);
    str_deinit(&second);
}

static void test_a_file_that_shrinks_is_named_where_it_ends(void **state) {
    (void)state;
    static unsigned char bytes[40000];
    static int32_t ids[40000];
    Shard shard;
    const char *path = scratch_path(dir, "shrinks.txt");
    scratch_write_bytes(path, bytes, sizeof bytes);
    assert_int_equal(shard_open(&shard, path, "data.train", FORMAT_AUTO), STATUS_OK);
    assert_int_equal(truncate(path, 20000), 0);
    assert_int_equal(shard_read(&shard, 0, 20000, 256, ids), STATUS_OK);
    assert_int_equal(shard_read(&shard, 0, 20001, 256, ids), STATUS_DATA);
    assert_non_null(strstr(status_trail(), "shrinks.txt has 20000 bytes, but had 40000"));
    Str identity = {0};
    assert_int_equal(shard_identity(&shard, &identity), STATUS_DATA);
    str_deinit(&identity);
    shard_close(&shard);
}

static void test_more_files_than_descriptors_are_opened(void **state) {
    (void)state;
    struct rlimit before, few;
    Shard shard[40];
    const char *path = scratch_path(dir, "many.txt");
    scratch_write_bytes(path, "text", 4);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = before;
    few.rlim_cur = 20;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    for (int i = 0; i < 40; i++)
        assert_int_equal(shard_open(&shard[i], path, "data.train", FORMAT_AUTO), STATUS_OK);
    for (int i = 0; i < 40; i++)
        shard_close(&shard[i]);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_is_its_bytes),
        cmocka_unit_test(test_both_token_formats_are_read),
        cmocka_unit_test(test_format_overrules_the_name),
        cmocka_unit_test(test_what_is_no_file_is_refused),
        cmocka_unit_test(test_a_name_that_auto_cannot_judge_is_refused),
        cmocka_unit_test(test_wrong_headers_are_refused),
        cmocka_unit_test(test_wrong_lengths_are_refused),
        cmocka_unit_test(test_an_id_beyond_the_vocabulary_is_named),
        cmocka_unit_test(test_ids_above_31_bits_are_not_negative),
        cmocka_unit_test(test_identity_is_name_size_and_content),
        cmocka_unit_test(test_identity_is_pinned),
        cmocka_unit_test(test_identity_of_a_small_file_covers_all_of_it),
        cmocka_unit_test(test_a_file_that_shrinks_is_named_where_it_ends),
        cmocka_unit_test(test_more_files_than_descriptors_are_opened),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
