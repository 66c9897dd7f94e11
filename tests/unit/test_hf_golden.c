/* Models that Hugging Face transformers wrote, read by this engine, against the loss and the logits that transformers
 * computes from them: the directories of tests/golden/make_hf_golden.py, or those below the argument. */
#include "tests/unit/bits.h"

#include <stdio.h>

#include "base/str.h"
#include "checkpoint/hf.h"
#include "data/shard.h"
#include "tests/fixtures/resident.h"

#define TOLERANCE 1e-5 /* of the norm; measured: 6e-7 */

enum { B = 4, T = 16, EVERY = 4, VOCAB = 131, GOLDEN = 1 + B * T / EVERY * VOCAB };

static const char *root = "tests/golden/hf";

#define DIMENSIONS .C = 32, .L = 2, .H = 4, .F = 48, .vocab = VOCAB, .B = B, .T = T
/* KINDS of make_hf_golden.py. */
static const ResidentSpec llama = {DIMENSIONS, .K = 4, .D = 8};
static const ResidentSpec llama_tied = {DIMENSIONS, .K = 2, .D = 8, .tied = true, .rope_theta = 500000.0};
static const ResidentSpec qwen2 = {DIMENSIONS,      .K = 2, .D = 8, .qkv_bias = true, .rope_theta = 1000000.0,
                                   .norm_eps = 1e-6};
static const ResidentSpec qwen2_tied = {DIMENSIONS, .K = 2, .D = 8, .qkv_bias = true, .tied = true};
static const ResidentSpec qwen3 = {DIMENSIONS, .K = 2, .D = 16, .qk_norm = true, .rope_theta = 1000000.0};
static const ResidentSpec qwen3_tied = {DIMENSIONS, .K = 2, .D = 16, .qk_norm = true, .tied = true, .norm_eps = 1e-6};

static void assert_ok(Status status) {
    if (status != STATUS_OK)
        fail_msg("%s", status_trail());
}

static void read_weights(Resident *r, const char *dir) {
    HfDir files;
    assert_ok(hf_check(dir, &r->config.model));
    assert_ok(hf_open(&files, dir));
    assert_int_equal(hf_count(&files), r->table.count);
    for (int i = 0; i < r->table.count; i++) {
        const Param *p = &r->table.row[i];
        const StFile *file = NULL;
        const StTensor *tensor = hf_find(&files, p->name, &file);
        if (tensor == NULL)
            fail_msg("%s: no tensor %s", dir, p->name);
        assert_int_equal(st_numel(tensor), param_numel(p));
        assert_ok(st_read_f32(file, tensor, 0, param_numel(p), r->weight[i]));
    }
    hf_close(&files);
}

/* Windows of T + 1 ids at stride T. */
static void read_tokens(int32_t *tokens, int32_t *targets) {
    char path[512];
    int32_t ids[B * T + 1];
    Shard shard;
    str_path_join(path, sizeof path, root, "tokens.bin");
    assert_ok(shard_open(&shard, path, "tokens", FORMAT_TOKENS));
    assert_ok(shard_read(&shard, 0, B * T + 1, VOCAB, ids));
    shard_close(&shard);
    memcpy(tokens, ids, B * T * sizeof *ids);
    memcpy(targets, ids + 1, B * T * sizeof *ids);
}

static void read_golden(const char *dir, float *golden) {
    char path[512];
    str_path_join(path, sizeof path, dir, "golden.bin");
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        fail_msg("%s: cannot be opened; tests run from the top of the tree", path);
    assert_int_equal(fread(golden, sizeof *golden, GOLDEN + 1, file), GOLDEN);
    (void)fclose(file);
}

static void check_kind(const char *kind, const ResidentSpec *spec) {
    static float golden[GOLDEN + 1], logits[GOLDEN - 1];
    int32_t tokens[B * T], targets[B * T];
    char dir[256];
    Resident r;
    str_path_join(dir, sizeof dir, root, kind);
    resident_create(&r, spec);
    read_weights(&r, dir);
    read_golden(dir, golden);
    read_tokens(tokens, targets);
    model_forward_backward(r.model, tokens, targets);
    const float loss = model_loss(r.model);
    assert_near_norm(&loss, golden, 1, TOLERANCE, kind);
    float *row = logits;
    for (int b = 0; b < B; b++)
        for (int n = EVERY; n <= T; n += EVERY, row += VOCAB)
            model_logits(r.model, tokens + b * T, n, row);
    assert_near_norm(logits, golden + 1, GOLDEN - 1, TOLERANCE, "logits");
    resident_destroy(&r);
}

static void test_llama_in_shards_agrees(void **state) {
    (void)state;
    check_kind("llama", &llama);
}

static void test_llama_with_tied_embeddings_agrees(void **state) {
    (void)state;
    check_kind("llama_tied", &llama_tied);
}

static void test_qwen2_agrees(void **state) {
    (void)state;
    check_kind("qwen2", &qwen2);
}

static void test_qwen2_with_tied_embeddings_stored_in_bf16_agrees(void **state) {
    (void)state;
    check_kind("qwen2_tied", &qwen2_tied);
}

static void test_qwen3_stored_in_f16_agrees(void **state) {
    (void)state;
    check_kind("qwen3", &qwen3);
}

static void test_qwen3_with_tied_embeddings_agrees(void **state) {
    (void)state;
    check_kind("qwen3_tied", &qwen3_tied);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_llama_in_shards_agrees),
        cmocka_unit_test(test_llama_with_tied_embeddings_agrees),
        cmocka_unit_test(test_qwen2_agrees),
        cmocka_unit_test(test_qwen2_with_tied_embeddings_stored_in_bf16_agrees),
        cmocka_unit_test(test_qwen3_stored_in_f16_agrees),
        cmocka_unit_test(test_qwen3_with_tied_embeddings_agrees),
    };
    if (argc > 1)
        root = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
