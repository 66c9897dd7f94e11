/* SHA-256 against its published vectors, and the element hash against every cut. */
#include "base/hash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"

typedef struct ShaRow {
    const char *text, *hex;
} ShaRow;

/* FIPS 180-4 examples. */
static const ShaRow sha_rows[] = {
    {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
    {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
    {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
     "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
    {"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu",
     "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"},
};
static const char million_a_hex[] = "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0";

static void test_sha256_gives_the_published_digests(void **state) {
    (void)state;
    char hex[65];
    for (size_t i = 0; i < sizeof sha_rows / sizeof sha_rows[0]; i++) {
        sha256_hex(sha_rows[i].text, strlen(sha_rows[i].text), hex);
        assert_string_equal(hex, sha_rows[i].hex);
    }
}

/* The million bytes in updates of `piece` bytes. Whole blocks inside an update take the instructions where the
 * machine has them; with pieces below 64 bytes every block takes the portable form. */
static void million_a(size_t piece, char hex[65]) {
    static char text[100000];
    memset(text, 'a', sizeof text);
    Sha256 sha;
    sha256_begin(&sha);
    for (size_t left = 1000000; left > 0;) {
        const size_t n = left < piece ? left : piece;
        sha256_update(&sha, text, n);
        left -= n;
    }
    sha256_end(&sha, hex);
}

static void test_sha256_of_a_million_a_whatever_the_pieces(void **state) {
    (void)state;
    static const size_t pieces[] = {100000, 63, 17, 64, 65, 4096, 1000};
    char hex[65];
    for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++) {
        million_a(pieces[i], hex);
        assert_string_equal(hex, million_a_hex);
    }
}

static void test_sha256_agrees_with_itself_at_every_length_and_cut(void **state) {
    (void)state;
    unsigned char data[200];
    for (int i = 0; i < 200; i++)
        data[i] = (unsigned char)(i * 37 + 11);
    for (size_t n = 0; n <= sizeof data; n++) {
        char whole[65];
        sha256_hex(data, n, whole);
        char cut[65];
        Sha256 sha;
        sha256_begin(&sha);
        for (size_t i = 0; i < n; i++)
            sha256_update(&sha, data + i, 1);
        sha256_end(&sha, cut);
        assert_string_equal(whole, cut);
    }
}

static void fill(float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        uint32_t words[4];
        rng_block(7, RNG_INIT, 0, (uint64_t)i, words);
        memcpy(&x[i], words, sizeof x[i]); /* any bits, NaNs too */
    }
}

static void test_hash_elements_gives_the_same_sum_for_any_cut(void **state) {
    (void)state;
    static float x[1000];
    fill(x, 1000);
    const uint64_t name = hash_bytes("model.norm.weight", 17, 0);
    const int64_t offset = (int64_t)1 << 40;
    const uint64_t whole = hash_elements(name, offset, x, 1000);
    for (int64_t cut = 0; cut <= 1000; cut += 13) {
        const uint64_t left = hash_elements(name, offset, x, cut);
        assert_int_equal(left + hash_elements(name, offset + cut, x + cut, 1000 - cut), whole);
    }
    uint64_t one_by_one = 0;
    for (int64_t i = 999; i >= 0; i--)
        one_by_one += hash_elements(name, offset + i, x + i, 1);
    assert_int_equal(one_by_one, whole);
    assert_int_equal(hash_elements(name, 0, x, 0), 0);
}

static void test_hash_elements_sees_every_bit_place_and_name(void **state) {
    (void)state;
    static float x[100];
    fill(x, 100);
    const uint64_t whole = hash_elements(1, 0, x, 100);
    assert_int_not_equal(hash_elements(2, 0, x, 100), whole);
    assert_int_not_equal(hash_elements(1, 1, x, 100), whole);
    for (int i = 0; i < 3200; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i / 32], sizeof bits);
        const uint32_t flipped = bits ^ (uint32_t)1 << (i % 32);
        memcpy(&x[i / 32], &flipped, sizeof flipped);
        assert_int_not_equal(hash_elements(1, 0, x, 100), whole);
        memcpy(&x[i / 32], &bits, sizeof bits);
    }
    const float first = x[0]; /* a swap of two elements is a change */
    x[0] = x[1];
    x[1] = first;
    assert_int_not_equal(hash_elements(1, 0, x, 100), whole);
}

/* Every run's log holds these hashes, so the function may not drift. */
static void test_hash_elements_and_bytes_are_the_recorded_functions(void **state) {
    (void)state;
    static const float x[4] = {1.0f, -0.0f, 3.5f, 1e-40f};
    assert_int_equal(hash_mix64(1), 0x5692161d100b05e5u);
    assert_int_equal(hash_elements(hash_bytes("w", 1, 0), 5, x, 4), 0xe00080f4ef6da1deu);
    assert_int_equal(hash_bytes("model.embed_tokens.weight", 25, 3), 0xba705f080d8765d4u);
}

static void test_hash_bytes_depends_on_length_seed_and_every_byte(void **state) {
    (void)state;
    char data[40] = {0};
    uint64_t seen[81];
    int count = 0;
    for (size_t n = 0; n <= sizeof data; n++)
        seen[count++] = hash_bytes(data, n, 0);
    for (size_t i = 0; i < sizeof data; i++) {
        data[i] = 1;
        seen[count++] = hash_bytes(data, sizeof data, 0);
        data[i] = 0;
    }
    for (int i = 0; i < count; i++) {
        for (int j = 0; j < i; j++)
            assert_int_not_equal(seen[i], seen[j]);
    }
    assert_int_not_equal(hash_bytes("abc", 3, 1), hash_bytes("abc", 3, 2));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sha256_gives_the_published_digests),
        cmocka_unit_test(test_sha256_of_a_million_a_whatever_the_pieces),
        cmocka_unit_test(test_sha256_agrees_with_itself_at_every_length_and_cut),
        cmocka_unit_test(test_hash_elements_gives_the_same_sum_for_any_cut),
        cmocka_unit_test(test_hash_elements_sees_every_bit_place_and_name),
        cmocka_unit_test(test_hash_elements_and_bytes_are_the_recorded_functions),
        cmocka_unit_test(test_hash_bytes_depends_on_length_seed_and_every_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
