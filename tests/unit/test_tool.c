/* dmuon-ckpt: sets that differ by a known bit, exports that read back. */
#include "checkpoint/tool.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "base/arena.h"
#include "base/json.h"
#include "checkpoint/hf.h"
#include "checkpoint/manifest.h"
#include "tests/unit/scratch_dir.h"

#define CONFIG_YAML                                                                                                    \
    "model: {family: llama, d_model: 64, n_layers: 2, n_heads: 8, n_kv_heads: 4, head_dim: 8, d_ff: 176, vocab_size: " \
    "256, "                                                                                                            \
    "max_seq_len: 512, rope_theta: 10000, norm_eps: 1.0e-5, tie_embeddings: false, qkv_bias: false, qk_norm: false, "  \
    "init_std: 0.02}\n"                                                                                                \
    "mesh: {shard: 2}\ndata: {train: a.txt}\n"

enum { ROWS = 3, COLS = 5, N = ROWS * COLS };

/* One file with one [3, 5] tensor, listed in the manifest. */
static void write_file(Manifest *m, const char *set, const char *file_name, const char *tensor, const float *x) {
    StTensor layout = {.dtype = ST_F32, .ndim = 2, .dim = {ROWS, COLS}};
    str_format(layout.name, sizeof layout.name, "%s", tensor);
    char *header, bytes[1024], path[SCRATCH_PATH];
    int64_t header_nbytes, file_nbytes;
    assert_int_equal(st_layout(&layout, 1, &header, &header_nbytes, &file_nbytes), STATUS_OK);
    memcpy(bytes, header, (size_t)header_nbytes);
    memcpy(bytes + header_nbytes, x, N * sizeof *x);
    heap_free(header);
    str_format(path, sizeof path, "%.500s/%s", set, file_name);
    scratch_write_bytes(path, bytes, (size_t)file_nbytes);
    ManifestFile *file = &m->file[m->file_count++];
    str_format(file->name, sizeof file->name, "%s", file_name);
    assert_int_equal(manifest_hash_file(path, file->sha256, &file->nbytes), STATUS_OK);
    ManifestTensor *listed = &m->tensor[m->tensor_count++];
    str_format(listed->name, sizeof listed->name, "%s", tensor);
    listed->hash = manifest_tensor_hash(tensor, 0, x, N);
}

/* A set of two weights in two files and a momentum; element i of weight t is 1 + i/3 + t, plus `bump` units in the last
 * place at index 7 of "b". */
static const char *write_set(const char *name, int64_t step, uint32_t bump) {
    static char set[2][SCRATCH_PATH];
    static int turn;
    turn = 1 - turn;
    str_format(set[turn], sizeof set[turn], "%.500s/%s", dir, name);
    assert_int_equal(mkdir(set[turn], 0777), 0);
    Manifest m = {.step = step,
                  .samples = 16 * step,
                  .adamw_t = step,
                  .seed = INT64_C(9007199254740993), /* no binary64 */
                  .segments = 8,
                  .products = "three, pinned",
                  .mesh = {1, 2, 1},
                  .version = "1",
                  .run_id = "0123456789abcdef0123456789abcdef"};
    m.config_yaml = heap_strdup(CONFIG_YAML);
    m.data_identity = heap_strdup("");
    m.file = HEAP_ALLOC(ManifestFile, 3);
    m.tensor = HEAP_ALLOC(ManifestTensor, 3);
    float a[N], b[N];
    for (int i = 0; i < N; i++) {
        a[i] = 1.0f + (float)i / 3.0f;
        b[i] = 2.0f + (float)i / 3.0f;
    }
    uint32_t bits;
    memcpy(&bits, &b[7], sizeof bits);
    bits += bump;
    memcpy(&b[7], &bits, sizeof bits);
    write_file(&m, set[turn], "model-00001-of-00002.safetensors", "a", a);
    write_file(&m, set[turn], "model-00002-of-00002.safetensors", "b", b);
    write_file(&m, set[turn], "optim-00001-of-00001.safetensors", "momentum.a", a);
    assert_int_equal(manifest_write(set[turn], &m), STATUS_OK);
    manifest_deinit(&m);
    return set[turn];
}

static JsonValue *parse(const Str *text) {
    JsonValue *root;
    if (json_parse(text->text, text->len, "output", STATUS_CHECKPOINT, &root) != STATUS_OK)
        fail_msg("%s\n%s", status_trail(), text->text);
    return root;
}

static int64_t number(const JsonValue *object, const char *key) {
    int64_t value = -12345;
    if (!json_as_int(json_get(object, key), &value))
        fail_msg("%s is no number", key);
    return value;
}

static void test_info_names_position_files_and_tensors(void **state) {
    (void)state;
    const char *set = write_set("a", 100, 0);
    Str out = {0};
    assert_int_equal(tool_info(set, TOOL_JSON, &out), STATUS_OK);
    JsonValue *root = parse(&out);
    assert_int_equal(number(root, "step"), 100);
    assert_int_equal(number(root, "parameters"), 2 * N);
    assert_int_equal(number(json_get(root, "mesh"), "shard"), 2);
    assert_string_equal(json_as_string(json_get(root, "seed")), "9007199254740993");
    assert_string_equal(json_as_string(json_get(json_get(root, "numerics"), "products")), "three, pinned");
    assert_int_equal(json_count(json_get(root, "files")), 3);
    const JsonValue *tensors = json_get(root, "tensors");
    assert_int_equal(json_count(tensors), 3);
    assert_string_equal(json_as_string(json_get(json_at(tensors, 2), "name")), "momentum.a");
    assert_int_equal(strlen(json_as_string(json_get(json_at(tensors, 2), "hash"))), 16);
    json_free(root);
    str_clear(&out);
    assert_int_equal(tool_info(set, TOOL_TEXT, &out), STATUS_OK);
    assert_non_null(strstr(out.text, "step 100, 1600 samples"));
    assert_non_null(strstr(out.text, "F32  [3, 5] b\n"));
    assert_non_null(strstr(out.text, "products three, pinned\n"));
    str_deinit(&out);
    assert_int_equal(tool_info(dir, TOOL_TEXT, &out), STATUS_CHECKPOINT);
}

static void test_verify_tells_a_whole_set_from_a_damaged_one(void **state) {
    (void)state;
    const char *set = write_set("a", 100, 0);
    Str out = {0};
    assert_int_equal(tool_verify(set, TOOL_TEXT, &out), STATUS_OK);
    assert_non_null(strstr(out.text, "3 files"));
    str_clear(&out);
    assert_int_equal(tool_verify(set, TOOL_JSON, &out), STATUS_OK);
    assert_non_null(strstr(out.text, "\"valid\":true,\"error\":null"));
    str_clear(&out);
    char path[SCRATCH_PATH];
    str_format(path, sizeof path, "%.500s/model-00002-of-00002.safetensors", set);
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    FILE *file = fopen(path, "r+b");
    fseek(file, -1, SEEK_END);
    fputc(0x7f, file);
    fclose(file);
    assert_int_equal(tool_verify(set, TOOL_JSON, &out), STATUS_CHECKPOINT);
    assert_non_null(strstr(out.text, "\"valid\":false,\"error\":\"checkpoint "));
    assert_non_null(strstr(out.text, "tensor b differs"));
    JsonValue *root = parse(&out);
    json_free(root);
    str_deinit(&out);
}

static void test_equal_sets_have_no_difference(void **state) {
    (void)state;
    const char *a = write_set("a", 100, 0), *b = write_set("b", 100, 0);
    bool equal = false;
    Str out = {0};
    assert_int_equal(tool_diff(a, b, TOOL_TEXT, &out, &equal), STATUS_OK);
    assert_true(equal);
    assert_string_equal(out.text, "equal: 3 tensors, bit for bit\n");
    str_clear(&out);
    assert_int_equal(tool_diff(a, b, TOOL_JSON, &out, &equal), STATUS_OK);
    assert_string_equal(out.text, "{\"state\":[],\"tensors\":[],\"equal\":true}\n");
    str_deinit(&out);
}

static void test_a_difference_has_its_place_bits_and_distance(void **state) {
    (void)state;
    const char *a = write_set("a", 100, 0), *b = write_set("b", 101, 3);
    bool equal = true;
    Str out = {0};
    assert_int_equal(tool_diff(a, b, TOOL_JSON, &out, &equal), STATUS_OK);
    assert_false(equal);
    JsonValue *root = parse(&out);
    assert_int_equal(json_count(json_get(root, "state")), 3); /* step, samples, adamw_t */
    const JsonValue *tensors = json_get(root, "tensors"), *d = json_at(tensors, 0);
    assert_int_equal(json_count(tensors), 1);
    assert_string_equal(json_as_string(json_get(d, "name")), "b");
    assert_string_equal(json_as_string(json_get(d, "difference")), "values");
    assert_int_equal(number(d, "index"), 7);
    assert_int_equal(number(d, "ulp"), 3);
    assert_int_equal(number(d, "differing"), 1);
    assert_int_equal(number(d, "elements"), N);
    int64_t row, column;
    assert_true(json_as_int(json_at(json_get(d, "position"), 0), &row) && row == 1);
    assert_true(json_as_int(json_at(json_get(d, "position"), 1), &column) && column == 2);
    assert_string_equal(json_as_string(json_get(d, "a_bits")), "408aaaaa"); /* 2 + 7/3 */
    assert_string_equal(json_as_string(json_get(d, "b_bits")), "408aaaad");
    json_free(root);
    str_clear(&out);
    assert_int_equal(tool_diff(a, b, TOOL_TEXT, &out, &equal), STATUS_OK);
    assert_non_null(strstr(out.text, "step: 100 against 101\n"));
    assert_non_null(
        strstr(out.text, "b: first difference at [1, 2] (index 7): 408aaaaa (4.33333302) against 408aaaad"));
    assert_non_null(strstr(out.text, "3 ulp; 1 of 15 elements differ"));
    str_deinit(&out);
}

static void test_the_distance_counts_through_zero(void **state) {
    (void)state;
    const char *a = write_set("a", 100, 0), *b = write_set("b", 100, 0x80000000u);
    bool equal = true;
    Str out = {0};
    assert_int_equal(tool_diff(a, b, TOOL_JSON, &out, &equal), STATUS_OK);
    JsonValue *root = parse(&out);
    assert_int_equal(number(json_at(json_get(root, "tensors"), 0), "ulp"), 2 * INT64_C(0x408aaaaa));
    json_free(root);
    str_deinit(&out);
}

static void test_missing_tensors_and_unreadable_directories_are_told_apart(void **state) {
    (void)state;
    const char *a = write_set("a", 100, 0), *b = write_set("b", 100, 0);
    char path[SCRATCH_PATH];
    str_format(path, sizeof path, "%.500s/optim-00001-of-00001.safetensors", b);
    assert_int_equal(unlink(path), 0);
    bool equal = true;
    Str out = {0};
    assert_int_equal(tool_diff(a, b, TOOL_JSON, &out, &equal), STATUS_OK);
    assert_false(equal);
    assert_non_null(strstr(out.text, "{\"name\":\"momentum.a\",\"difference\":\"missing_in_b\"}"));
    str_clear(&out);
    assert_int_equal(tool_diff(b, a, TOOL_JSON, &out, &equal), STATUS_OK);
    assert_non_null(strstr(out.text, "{\"name\":\"momentum.a\",\"difference\":\"missing_in_a\"}"));
    str_clear(&out);
    assert_int_equal(tool_diff(a, scratch_path(dir, "absent"), TOOL_JSON, &out, &equal), STATUS_CHECKPOINT);
    assert_int_equal(out.len, 0);
    str_deinit(&out);
}

static void check_export(const char *set, StDtype dtype, bool single, const char *name) {
    char path[SCRATCH_PATH];
    str_format(path, sizeof path, "%.500s/%s", dir, name);
    Str out = {0};
    const ExportOptions options = {.dir = set, .out = path, .dtype = dtype, .single_file = single};
    if (tool_export(&options, &out) != STATUS_OK)
        fail_msg("%s", status_trail());
    str_deinit(&out);
    HfDir files;
    assert_int_equal(hf_open(&files, path), STATUS_OK);
    assert_int_equal(files.count, single ? 1 : 2);
    assert_int_equal(hf_count(&files), 2);
    const StFile *file;
    const StTensor *tensor = hf_find(&files, "b", &file);
    assert_non_null(tensor);
    assert_int_equal(tensor->dtype, dtype);
    float x[N];
    assert_int_equal(st_read_f32(file, tensor, 0, N, x), STATUS_OK);
    for (int i = 0; i < N; i++) {
        const float exact = 2.0f + (float)i / 3.0f,
                    expected = dtype == ST_BF16 ? st_bf16_to_f32(st_f32_to_bf16(exact)) : exact;
        assert_true(x[i] == expected);
    }
    hf_close(&files);
    const char *config = scratch_read(scratch_path(path, HF_CONFIG_NAME));
    assert_non_null(strstr(config, dtype == ST_BF16 ? "bfloat16" : "float32"));
    assert_non_null(strstr(config, "\"hidden_size\":64"));
    str_format(path, sizeof path, "%.500s/%s.tmp", dir, name);
    assert_int_not_equal(access(path, F_OK), 0);
}

static void test_exports_read_back_as_they_were_or_rounded_once(void **state) {
    (void)state;
    const char *set = write_set("a", 100, 0);
    check_export(set, ST_F32, false, "f32");
    check_export(set, ST_F32, true, "f32-single");
    check_export(set, ST_BF16, false, "bf16");
    check_export(set, ST_BF16, true, "bf16-single");
}

static void test_an_export_overwrites_nothing_and_needs_a_valid_set(void **state) {
    (void)state;
    const char *set = write_set("a", 100, 0);
    Str out = {0};
    ExportOptions options = {.dir = set, .out = dir, .dtype = ST_F32};
    assert_int_equal(tool_export(&options, &out), STATUS_CONFIG);
    assert_non_null(strstr(status_trail(), "exists already"));
    scratch_write(scratch_path(set, "stray"), "x");
    char path[SCRATCH_PATH];
    str_format(path, sizeof path, "%.500s/new", dir);
    options.out = path;
    assert_int_equal(tool_export(&options, &out), STATUS_CHECKPOINT);
    assert_int_not_equal(access(path, F_OK), 0);
    str_deinit(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_info_names_position_files_and_tensors, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_verify_tells_a_whole_set_from_a_damaged_one, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_equal_sets_have_no_difference, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_a_difference_has_its_place_bits_and_distance, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_the_distance_counts_through_zero, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_missing_tensors_and_unreadable_directories_are_told_apart, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(test_exports_read_back_as_they_were_or_rounded_once, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_an_export_overwrites_nothing_and_needs_a_valid_set, make_dir, remove_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
