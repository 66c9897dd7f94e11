/* Hugging Face layout: what is written is what they read, what is theirs is compared key by key. */
#include "checkpoint/hf.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "base/arena.h"
#include "base/json.h"
#include "tests/unit/scratch_dir.h"

static const ModelConfig llama = {.family = "llama",
                                  .d_model = 64,
                                  .n_layers = 2,
                                  .n_heads = 8,
                                  .n_kv_heads = 4,
                                  .head_dim = 8,
                                  .d_ff = 176,
                                  .vocab_size = 256,
                                  .max_seq_len = 512,
                                  .rope_theta = 10000.0,
                                  .norm_eps = 1e-5,
                                  .init_std = 0.02};

/* A file of one-element f32 tensors. */
static void write_tensors(const char *name, const char *const *tensors, int count) {
    StTensor *layout = HEAP_ALLOC(StTensor, count);
    for (int i = 0; i < count; i++) {
        layout[i] = (StTensor){.dtype = ST_F32, .ndim = 1, .dim = {1}};
        str_format(layout[i].name, sizeof layout[i].name, "%s", tensors[i]);
    }
    char *header;
    int64_t header_nbytes, file_nbytes;
    assert_int_equal(st_layout(layout, count, &header, &header_nbytes, &file_nbytes), STATUS_OK);
    char bytes[2048] = {0};
    memcpy(bytes, header, (size_t)header_nbytes);
    scratch_write_bytes(scratch_path(dir, name), bytes, (size_t)file_nbytes);
    heap_free(header);
    heap_free(layout);
}

static void expect(const ModelConfig *model, const char *json, const char *says) {
    scratch_write(scratch_path(dir, HF_CONFIG_NAME), json);
    const Status status = hf_check(dir, model);
    if (says == NULL) {
        if (status != STATUS_OK)
            fail_msg("refused %s\n%s", json, status_trail());
        return;
    }
    assert_int_equal(status, STATUS_CHECKPOINT);
    if (strstr(status_trail(), says) == NULL || strstr(status_trail(), HF_CONFIG_NAME) == NULL)
        fail_msg("message %s\nlacks %s", status_trail(), says);
}

static void test_the_written_config_names_the_family_and_passes_its_own_check(void **state) {
    (void)state;
    const struct {
        bool bias, norm;
        const char *type, *class_name;
    } cases[] = {{false, false, "llama", "LlamaForCausalLM"},
                 {true, false, "qwen2", "Qwen2ForCausalLM"},
                 {false, true, "qwen3", "Qwen3ForCausalLM"},
                 {true, true, "qwen3", "Qwen3ForCausalLM"}};
    const char *names[] = {"model.layers.0.self_attn.q_proj.bias"};
    write_tensors(HF_SINGLE_NAME, names, 1);
    for (int i = 0; i < 4; i++) {
        ModelConfig model = llama;
        model.qkv_bias = cases[i].bias;
        model.qk_norm = cases[i].norm;
        assert_int_equal(hf_write_config(dir, &model), STATUS_OK);
        assert_int_equal(hf_check(dir, &model), STATUS_OK);
        const char *text = scratch_read(scratch_path(dir, HF_CONFIG_NAME));
        JsonValue *root;
        assert_int_equal(json_parse(text, strlen(text), "config", STATUS_CHECKPOINT, &root), STATUS_OK);
        assert_string_equal(json_as_string(json_get(root, "model_type")), cases[i].type);
        assert_string_equal(json_as_string(json_at(json_get(root, "architectures"), 0)), cases[i].class_name);
        assert_string_equal(json_as_string(json_get(root, "torch_dtype")), "float32");
        assert_string_equal(json_as_string(json_get(root, "hidden_act")), "silu");
        int64_t value;
        assert_true(json_as_int(json_get(root, "num_key_value_heads"), &value) && value == 4);
        assert_true(json_as_int(json_get(root, "max_position_embeddings"), &value) && value == 512);
        json_free(root);
        model.qk_norm = !model.qk_norm;
        assert_int_equal(hf_check(dir, &model), STATUS_CHECKPOINT);
    }
}

#define BASE                                                                                                           \
    "\"hidden_size\":64,\"intermediate_size\":176,\"num_hidden_layers\":2,\"num_attention_heads\":8,\"vocab_size\":"   \
    "256,"                                                                                                             \
    "\"rms_norm_eps\":1e-05,\"num_key_value_heads\":4"
#define LLAMA "{\"model_type\":\"llama\"," BASE

static void test_foreign_configs_are_compared_with_their_defaults(void **state) {
    (void)state;
    expect(&llama, LLAMA "}", NULL);
    expect(&llama,
           LLAMA ",\"head_dim\":8,\"rope_scaling\":null,\"tie_word_embeddings\":false,\"rope_interleaved\":false}",
           NULL);
    expect(&llama, LLAMA ",\"rope_scaling\":{\"rope_type\":\"default\"}}", NULL);
    expect(&llama, LLAMA ",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":10000}}", NULL);
    expect(&llama, LLAMA ",\"max_position_embeddings\":2048}", NULL);
    expect(&llama, "{\"model_type\":\"mistral\",\"sliding_window\":4096," BASE "}", NULL);
    expect(&llama, "{\"model_type\":\"mistral\",\"sliding_window\":null," BASE "}", NULL);
    expect(&llama, LLAMA ",\"layer_types\":[\"full_attention\",\"full_attention\"]}", NULL);
    ModelConfig other = llama;
    other.n_kv_heads = 8;
    expect(&other,
           "{\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":176,\"num_hidden_layers\":2,"
           "\"num_attention_heads\":8,\"vocab_size\":256,\"rms_norm_eps\":1e-05}",
           NULL);
    other.norm_eps = 1e-6;
    expect(&other,
           "{\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":176,\"num_hidden_layers\":2,"
           "\"num_attention_heads\":8,\"vocab_size\":256}",
           NULL);
}

static void test_what_differs_is_named_with_both_values(void **state) {
    (void)state;
    expect(&llama, "{\"model_type\":\"llama\"}", "hidden_size = 0, the model has d_model = 64");
    expect(&llama, LLAMA ",\"head_dim\":16}", "head_dim = 16, the model has head_dim = 8");
    expect(&llama, LLAMA ",\"rope_theta\":500000.0}", "rope_theta = 500000, the model has rope_theta = 10000");
    expect(&llama, LLAMA ",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":1e6}}",
           "rope_theta = 1000000");
    expect(&llama, LLAMA ",\"tie_word_embeddings\":true}",
           "tie_word_embeddings = true, the model has tie_embeddings: false");
    expect(&llama, LLAMA ",\"attention_bias\":true}", "attention_bias = true, the model has qkv_bias: false");
    expect(&llama, LLAMA ",\"max_position_embeddings\":256}", "max_position_embeddings = 256");
    expect(&llama, "{\"model_type\":\"qwen2\"," BASE "}", "qkv_bias: false");
    expect(&llama, "{\"model_type\":\"qwen3\"," BASE "}", "qk_norm: false");
    expect(&llama, LLAMA ",\"head_dim\":\"8\"}", "head_dim is no whole number");
    ModelConfig other = llama;
    other.n_layers = 3;
    other.norm_eps = 1e-6;
    expect(&other, LLAMA "}", "num_hidden_layers = 2, the model has n_layers = 3");
    assert_non_null(strstr(status_trail(), "rms_norm_eps")); /* all of them, not the first */
}

static void test_what_cannot_be_computed_is_refused_with_its_value(void **state) {
    (void)state;
    expect(&llama, LLAMA ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0}}",
           "rope_scaling = {type: llama3}");
    expect(&llama, LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.0}}", "rope_scaling = {type: linear}");
    expect(&llama, LLAMA ",\"rope_parameters\":{\"rope_type\":\"yarn\"}}", "rope_parameters = {type: yarn}");
    expect(&llama, LLAMA ",\"partial_rotary_factor\":0.5}", "partial_rotary_factor = 0.5");
    expect(&llama, LLAMA ",\"rope_interleaved\":true}", "rope_interleaved");
    expect(&llama, LLAMA ",\"hidden_act\":\"gelu\"}", "hidden_act = gelu");
    expect(&llama, LLAMA ",\"mlp_bias\":true}", "mlp_bias");
    expect(&llama, LLAMA ",\"quantization_config\":{\"bits\":4}}", "quantization_config");
    expect(&llama, LLAMA ",\"use_sliding_window\":true}", "use_sliding_window = true");
    expect(&llama, LLAMA ",\"layer_types\":[\"full_attention\",\"sliding_attention\"]}",
           "layer_types[1] = sliding_attention");
    expect(&llama, "{\"model_type\":\"mistral\",\"sliding_window\":256," BASE "}", "sliding_window = 256");
    expect(&llama, "{\"model_type\":\"gemma\"," BASE "}", "model_type = gemma");
    expect(&llama, "{" BASE "}", "model_type = (missing)");
    expect(&llama, "[]", "no JSON object");
    expect(&llama, "{", HF_CONFIG_NAME);
}

static void test_a_bias_of_o_proj_is_refused(void **state) {
    (void)state;
    ModelConfig model = llama;
    model.qkv_bias = true;
    const char *names[] = {"model.layers.0.self_attn.q_proj.bias", "model.layers.0.self_attn.o_proj.bias"};
    write_tensors(HF_SINGLE_NAME, names, 1);
    expect(&model, LLAMA ",\"attention_bias\":true}", NULL);
    write_tensors(HF_SINGLE_NAME, names, 2);
    expect(&model, LLAMA ",\"attention_bias\":true}", "o_proj");
}

static void test_the_written_index_opens(void **state) {
    (void)state;
    const char *first[] = {"a", "b"}, *second[] = {"c"};
    write_tensors("model-00001-of-00002.safetensors", first, 2);
    write_tensors("model-00002-of-00002.safetensors", second, 1);
    const HfIndexEntry entries[] = {{"a", "model-00001-of-00002.safetensors", 4},
                                    {"b", "model-00001-of-00002.safetensors", 4},
                                    {"c", "model-00002-of-00002.safetensors", 4}};
    assert_int_equal(hf_write_index(dir, entries, 3), STATUS_OK);
    assert_string_equal(scratch_read(scratch_path(dir, HF_INDEX_NAME)),
                        "{\"metadata\":{\"total_size\":12},\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\","
                        "\"b\":\"model-00001-of-00002.safetensors\",\"c\":\"model-00002-of-00002.safetensors\"}}\n");
    HfDir files;
    assert_int_equal(hf_open(&files, dir), STATUS_OK);
    assert_int_equal(files.count, 2);
    assert_int_equal(hf_count(&files), 3);
    const StFile *file;
    const StTensor *tensor = hf_find(&files, "c", &file);
    assert_non_null(tensor);
    assert_true(str_ends_with(file->path, "model-00002-of-00002.safetensors"));
    assert_null(hf_find(&files, "d", &file));
    hf_close(&files);
}

static void expect_unopened(const char *index, const char *says) {
    scratch_write(scratch_path(dir, HF_INDEX_NAME), index);
    HfDir files;
    assert_int_equal(hf_open(&files, dir), STATUS_CHECKPOINT);
    if (strstr(status_trail(), says) == NULL)
        fail_msg("message %s\nlacks %s", status_trail(), says);
    assert_null(files.file);
}

static void test_an_index_that_lies_is_refused(void **state) {
    (void)state;
    const char *names[] = {"a", "b"};
    write_tensors("one.safetensors", names, 2);
    write_tensors("two.safetensors", names, 1);
    expect_unopened("{\"weight_map\":{\"x\":\"one.safetensors\"}}", "tensor x is not in one.safetensors");
    expect_unopened("{\"weight_map\":{\"a\":\"absent.safetensors\"}}", "absent.safetensors");
    expect_unopened("{\"weight_map\":{\"a\":\"../one.safetensors\"}}", "no plain file name");
    expect_unopened("{\"weight_map\":{\"a\":3}}", "no plain file name");
    expect_unopened("{\"weight_map\":[]}", "weight_map");
    expect_unopened("{\"weight_map\":{\"b\":\"one.safetensors\",\"a\":\"two.safetensors\"}}",
                    "tensor a is in two files");
    expect_unopened("{", HF_INDEX_NAME);
}

static void test_a_directory_without_weights_is_refused(void **state) {
    (void)state;
    HfDir files;
    assert_int_equal(hf_open(&files, dir), STATUS_CHECKPOINT);
    assert_non_null(strstr(status_trail(), HF_SINGLE_NAME));
    assert_int_equal(hf_open_set(&files, dir), STATUS_CHECKPOINT);
    assert_int_equal(hf_open_set(&files, scratch_path(dir, "absent")), STATUS_CHECKPOINT);
}

static void test_a_set_opens_with_weights_and_state(void **state) {
    (void)state;
    const char *weights[] = {"a"}, *momentum[] = {"momentum.a"};
    write_tensors("model-00001-of-00001.safetensors", weights, 1);
    write_tensors("optim-00001-of-00001.safetensors", momentum, 1);
    scratch_write(scratch_path(dir, "trainer.json"), "{}");
    HfDir files;
    assert_int_equal(hf_open_set(&files, dir), STATUS_OK);
    assert_int_equal(hf_count(&files), 2);
    const StFile *file;
    assert_non_null(hf_find(&files, "momentum.a", &file));
    hf_close(&files);
    write_tensors("model-00002-of-00002.safetensors", weights, 1);
    assert_int_equal(hf_open_set(&files, dir), STATUS_CHECKPOINT);
    assert_non_null(strstr(status_trail(), "two files"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_the_written_config_names_the_family_and_passes_its_own_check, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(test_foreign_configs_are_compared_with_their_defaults, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_what_differs_is_named_with_both_values, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_what_cannot_be_computed_is_refused_with_its_value, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_a_bias_of_o_proj_is_refused, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_the_written_index_opens, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_an_index_that_lies_is_refused, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_a_directory_without_weights_is_refused, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_a_set_opens_with_weights_and_state, make_dir, remove_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
