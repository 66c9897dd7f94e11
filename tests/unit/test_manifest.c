/* trainer.json of a set: it reads back, no flipped bit passes, files that differ from it are named. */
#include "checkpoint/manifest.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/arena.h"
#include "base/hash.h"
#include "base/str.h"
#include "checkpoint/safetensors.h"
#include "tests/unit/scratch_dir.h"

static void list_file(Manifest *m, const char *name) {
    ManifestFile *file = &m->file[m->file_count++];
    str_format(file->name, sizeof file->name, "%s", name);
    assert_int_equal(manifest_hash_file(scratch_path(dir, name), file->sha256, &file->nbytes), STATUS_OK);
}

/* Two tensors of 8 elements; element i of tensor t is 8 * t + i. */
static void write_tensors(Manifest *m) {
    StTensor tensors[2] = {{"a.weight", ST_F32, 2, {2, 4}, 0, 0}, {"b.weight", ST_F32, 1, {8}, 0, 0}};
    char *header;
    int64_t header_nbytes, file_nbytes;
    assert_int_equal(st_layout(tensors, 2, &header, &header_nbytes, &file_nbytes), STATUS_OK);
    char bytes[1024];
    memcpy(bytes, header, (size_t)header_nbytes);
    for (int t = 0; t < 2; t++) {
        float x[8];
        for (int i = 0; i < 8; i++)
            x[i] = (float)(8 * t + i);
        memcpy(bytes + tensors[t].begin, x, sizeof x);
        str_format(m->tensor[t].name, sizeof m->tensor[t].name, "%s", tensors[t].name);
        m->tensor[t].hash = manifest_tensor_hash(tensors[t].name, 0, x, 8);
    }
    m->tensor_count = 2;
    scratch_write_bytes(scratch_path(dir, "model.safetensors"), bytes, (size_t)file_nbytes);
    heap_free(header);
}

static Manifest write_set(void) {
    Manifest m = {.step = 100,
                  .samples = 1600,
                  .adamw_t = 99,
                  .tokens_total = 409600,
                  .seed = 1234,
                  .fast = false,
                  .segments = 8,
                  .mesh = {2, 3, 4},
                  .data_parallel = DATA_DDP,
                  .run_id = "0123456789abcdef0123456789abcdef",
                  .version = "1.2.3"};
    m.config_yaml = heap_strdup("model: \"a\\b\"\n  # \xc3\xa9\ttab\n");
    m.data_identity = heap_strdup("kjv.txt 10 ff\n");
    m.file = HEAP_ALLOC(ManifestFile, 4);
    m.tensor = HEAP_ALLOC(ManifestTensor, 2);
    write_tensors(&m);
    scratch_write(scratch_path(dir, "config.json"), "{}\n");
    list_file(&m, "model.safetensors");
    list_file(&m, "config.json");
    assert_int_equal(manifest_write(dir, &m), STATUS_OK);
    return m;
}

static void expect_damage(Status status, const char *first, const char *second) {
    assert_int_equal(status, STATUS_CHECKPOINT);
    if (strstr(status_trail(), first) == NULL || strstr(status_trail(), second) == NULL)
        fail_msg("message %s\nlacks %s or %s", status_trail(), first, second);
}

static void test_every_member_reads_back(void **state) {
    (void)state;
    Manifest m = write_set(), r;
    assert_int_equal(manifest_read(dir, &r), STATUS_OK);
    assert_true(r.step == 100 && r.samples == 1600 && r.adamw_t == 99 && r.tokens_total == 409600 && r.seed == 1234);
    assert_true(!r.fast && r.segments == 8 && r.mesh.replicate == 2 && r.mesh.shard == 3 && r.mesh.tp == 4);
    assert_int_equal(r.data_parallel, DATA_DDP);
    assert_string_equal(r.run_id, m.run_id);
    assert_string_equal(r.version, m.version);
    assert_string_equal(r.config_yaml, m.config_yaml);
    assert_string_equal(r.data_identity, m.data_identity);
    assert_int_equal(r.file_count, 2);
    assert_memory_equal(r.file, m.file, 2 * sizeof *r.file);
    assert_int_equal(r.tensor_count, 2);
    assert_memory_equal(r.tensor, m.tensor, 2 * sizeof *r.tensor);
    uint64_t hash;
    assert_true(manifest_find_tensor(&r, "b.weight", &hash) && hash == m.tensor[1].hash);
    assert_false(manifest_find_tensor(&r, "c.weight", &hash));
    assert_int_equal(manifest_verify_files(dir, &r), STATUS_OK);
    manifest_deinit(&m);
    manifest_deinit(&r);
}

/* A member of sets whose products were not exact; others have none, as before there were such. */
static void test_the_products_of_a_set_read_back(void **state) {
    (void)state;
    Manifest m = write_set(), r;
    assert_null(strstr(scratch_read(scratch_path(dir, "trainer.json")), "products"));
    str_format(m.products, sizeof m.products, "3 products, 00ff");
    assert_int_equal(manifest_write(dir, &m), STATUS_OK);
    assert_int_equal(manifest_read(dir, &r), STATUS_OK);
    assert_string_equal(r.products, m.products);
    manifest_deinit(&m);
    manifest_deinit(&r);
}

static void test_large_and_negative_seeds_are_exact(void **state) {
    (void)state;
    const int64_t seeds[] = {INT64_MAX, INT64_MIN, -1, (INT64_C(1) << 53) + 1};
    Manifest m = write_set(), r;
    for (int i = 0; i < 4; i++) {
        m.seed = seeds[i];
        assert_int_equal(manifest_write(dir, &m), STATUS_OK);
        assert_int_equal(manifest_read(dir, &r), STATUS_OK);
        assert_true(r.seed == seeds[i]);
        manifest_deinit(&r);
    }
    manifest_deinit(&m);
}

static void test_self_is_the_hash_of_the_bytes_before_its_comma(void **state) {
    (void)state;
    Manifest m = write_set();
    const char *text = scratch_read(scratch_path(dir, MANIFEST_NAME));
    const char *comma = strstr(text, ",\"self\":\"");
    assert_non_null(comma);
    char sha256[65], tail[80];
    sha256_hex(text, (size_t)(comma - text), sha256);
    str_format(tail, sizeof tail, ",\"self\":\"%s\"}\n", sha256);
    assert_string_equal(comma, tail);
    manifest_deinit(&m);
}

static void test_no_flipped_bit_and_no_cut_passes(void **state) {
    (void)state;
    Manifest m = write_set(), r;
    const char *path = scratch_path(dir, MANIFEST_NAME);
    const size_t n = strlen(scratch_read(path));
    char *text = heap_strdup(scratch_read(path));
    for (size_t i = 0; i < n; i++) {
        text[i] = (char)(text[i] ^ (1 << (i % 7)));
        scratch_write_bytes(scratch_path(dir, MANIFEST_NAME), text, n);
        expect_damage(manifest_read(dir, &r), MANIFEST_NAME, "");
        text[i] = (char)(text[i] ^ (1 << (i % 7)));
    }
    for (size_t cut = 0; cut < n; cut += 5) {
        scratch_write_bytes(scratch_path(dir, MANIFEST_NAME), text, cut);
        expect_damage(manifest_read(dir, &r), MANIFEST_NAME, "");
    }
    heap_free(text);
    manifest_deinit(&m);
}

/* Replaces `from` by `to` and signs the file again: damage that the hash cannot see, as a careless hand would make it.
 */
static Status read_edited(const char *from, const char *to) {
    const char *path = scratch_path(dir, MANIFEST_NAME);
    char *text = heap_strdup(scratch_read(path));
    char *at = strstr(text, from), sha256[65];
    assert_non_null(at);
    *strstr(text, ",\"self\"") = '\0';
    Str edited = {0};
    str_append_n(&edited, text, (size_t)(at - text));
    str_append(&edited, to);
    str_append(&edited, at + strlen(from));
    sha256_hex(edited.text, edited.len, sha256);
    str_printf(&edited, ",\"self\":\"%s\"}\n", sha256);
    scratch_write(scratch_path(dir, MANIFEST_NAME), edited.text);
    Manifest r;
    const Status status = manifest_read(dir, &r);
    manifest_deinit(&r);
    str_deinit(&edited);
    heap_free(text);
    return status;
}

static void test_members_are_read_strictly(void **state) {
    (void)state;
    const struct {
        const char *from, *to, *says;
    } cases[] = {
        {"\"format\":1", "\"format\":2", "format 2"},
        {"\"step\":100", "\"step\":-1", "step"},
        {"\"step\":100", "\"step\":1.5", "step"},
        {"\"step\":100", "\"steps\":100", "step"},
        {"\"step\":100", "\"step\":100,\"more\":1", "unknown"},
        {"\"samples\":1600", "\"samples\":\"1600\"", "samples"},
        {"\"seed\":1234", "\"seed\":\"12x\"", "seed"},
        {"\"mode\":\"exact\"", "\"mode\":\"rough\"", "numerics.mode"},
        {"\"shard\":3", "\"shard\":0", "mesh.shard"},
        {"\"tp\":4", "\"tp\":4,\"pp\":1", "mesh."},
        {"\"mesh\":{\"replicate\":2,\"shard\":3,\"tp\":4}", "\"mesh\":[2,3,4]", "mesh.replicate"},
        {"\"0123456789abcdef0", "\"0123456789ABCDEF0", "run_id"},
        {"\"ddp\"", "\"zero\"", "data_parallel"},
        {"\"name\":\"config.json\"", "\"name\":\"../config.json\"", "no name for a file"},
        {"\"name\":\"config.json\"", "\"name\":\"trainer.json\"", "no name for a file"},
        {"\"name\":\"config.json\"", "\"name\":\".hidden\"", "no name for a file"},
        {"\"bytes\":3", "\"bytes\":-3", "files[].bytes"},
        {"\"tensors\":[", "\"tensors\":[{\"name\":\"x\",\"hash\":\"123\"},", "tensors[].hash"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Manifest m = write_set();
        const Status status = read_edited(cases[i].from, cases[i].to);
        if (status == STATUS_OK)
            fail_msg("accepted %s", cases[i].to);
        expect_damage(status, MANIFEST_NAME, cases[i].says);
        manifest_deinit(&m);
    }
}

static void test_a_directory_without_trainer_json_says_so(void **state) {
    (void)state;
    Manifest r;
    expect_damage(manifest_read(dir, &r), MANIFEST_NAME, "is no checkpoint set");
}

static void test_extra_missing_and_resized_files_are_named(void **state) {
    (void)state;
    Manifest m = write_set();
    scratch_write(scratch_path(dir, "stray.bin"), "x");
    expect_damage(manifest_verify_files(dir, &m), "stray.bin", "not listed");
    assert_int_equal(unlink(scratch_path(dir, "stray.bin")), 0);
    scratch_write(scratch_path(dir, "config.json"), "{} \n");
    expect_damage(manifest_verify_files(dir, &m), "config.json", "4 bytes");
    assert_int_equal(unlink(scratch_path(dir, "config.json")), 0);
    expect_damage(manifest_verify_files(dir, &m), "config.json", "missing");
    manifest_deinit(&m);
}

static void test_a_flipped_bit_names_the_file_and_the_tensor(void **state) {
    (void)state;
    Manifest m = write_set();
    const char *path = scratch_path(dir, "model.safetensors");
    static char good[1024], bad[1024];
    const size_t n = (size_t)m.file[0].nbytes;
    memcpy(good, scratch_read(path), n);
    for (size_t i = 0; i < n; i++) {
        memcpy(bad, good, n);
        bad[i] = (char)(bad[i] ^ 0x10);
        scratch_write_bytes(scratch_path(dir, "model.safetensors"), bad, n);
        const char *tensor = i >= n - 32 ? "tensor b.weight" : i >= n - 64 ? "tensor a.weight" : "";
        expect_damage(manifest_verify_files(dir, &m), "model.safetensors", tensor);
    }
    scratch_write_bytes(scratch_path(dir, "model.safetensors"), good, n);
    scratch_write(scratch_path(dir, "config.json"), "[]\n");
    expect_damage(manifest_verify_files(dir, &m), "config.json", "damaged");
    manifest_deinit(&m);
}

static void test_tensors_listed_and_tensors_held_are_the_same(void **state) {
    (void)state;
    Manifest m = write_set();
    m.tensor_count = 1;
    expect_damage(manifest_verify_files(dir, &m), "tensor b.weight", "not listed");
    m.tensor_count = 2;
    assert_int_equal(manifest_verify_tensors(dir, &m), STATUS_OK);
    ManifestTensor three[3] = {m.tensor[0], m.tensor[1], {.name = "c.weight"}};
    Manifest more = m;
    more.tensor = three;
    more.tensor_count = 3;
    expect_damage(manifest_verify_files(dir, &more), "lists 3 tensors", "hold 2");
    manifest_deinit(&m);
}

static void test_the_tensor_hash_does_not_depend_on_the_partition(void **state) {
    (void)state;
    float x[100];
    for (int i = 0; i < 100; i++)
        x[i] = (float)i / 3.0f;
    const uint64_t whole = manifest_tensor_hash("w", 0, x, 100);
    assert_true(manifest_tensor_hash("w", 0, x, 37) + manifest_tensor_hash("w", 37, x + 37, 63) == whole);
    assert_false(manifest_tensor_hash("v", 0, x, 100) == whole);
    x[99] = -x[99];
    assert_false(manifest_tensor_hash("w", 0, x, 100) == whole);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_the_products_of_a_set_read_back, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_every_member_reads_back, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_large_and_negative_seeds_are_exact, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_self_is_the_hash_of_the_bytes_before_its_comma, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_no_flipped_bit_and_no_cut_passes, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_members_are_read_strictly, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_a_directory_without_trainer_json_says_so, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_extra_missing_and_resized_files_are_named, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_a_flipped_bit_names_the_file_and_the_tensor, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_tensors_listed_and_tensors_held_are_the_same, make_dir, remove_dir),
        cmocka_unit_test(test_the_tensor_hash_does_not_depend_on_the_partition),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
