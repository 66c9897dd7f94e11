/* config.json and the index: how this engine's models look to Hugging Face, and how theirs look to it. */
#include "checkpoint/hf.h"

#include <inttypes.h>
#include <string.h>

#include "base/arena.h"
#include "base/file.h"
#include "base/json.h"

#define HF_PATH 2048
#define CONFIG_MAX (1L << 24) /* bytes believed */

/* ---- writing ---- */

static void write_dimensions(JsonWriter *w, const ModelConfig *m) {
    json_int(w, "hidden_size", m->d_model);
    json_int(w, "intermediate_size", m->d_ff);
    json_int(w, "num_hidden_layers", m->n_layers);
    json_int(w, "num_attention_heads", m->n_heads);
    json_int(w, "num_key_value_heads", m->n_kv_heads);
    json_int(w, "head_dim", m->head_dim);
    json_int(w, "vocab_size", m->vocab_size);
    json_int(w, "max_position_embeddings", m->max_seq_len);
    json_double(w, "rms_norm_eps", m->norm_eps);
    json_double(w, "rope_theta", m->rope_theta);
    json_double(w, "initializer_range", m->init_std);
}

void hf_config_text(const ModelConfig *m, StDtype dtype, Str *out) {
    const char *type = m->qk_norm ? "qwen3" : m->qkv_bias ? "qwen2" : "llama";
    const char *class_name = m->qk_norm ? "Qwen3ForCausalLM" : m->qkv_bias ? "Qwen2ForCausalLM" : "LlamaForCausalLM";
    JsonWriter w = json_writer(out);
    json_begin_object(&w, NULL);
    json_begin_array(&w, "architectures");
    json_string(&w, NULL, class_name);
    json_end_array(&w);
    json_string(&w, "model_type", type);
    write_dimensions(&w, m);
    json_null(&w, "rope_scaling");
    json_string(&w, "hidden_act", "silu");
    json_bool(&w, "tie_word_embeddings", m->tie_embeddings);
    json_bool(&w, "attention_bias", m->qkv_bias);
    json_bool(&w, "mlp_bias", false);
    json_bool(&w, "use_sliding_window", false);
    /* Their defaults, 1 and 2, would be ordinary tokens of a vocabulary of bytes. */
    json_null(&w, "bos_token_id");
    json_null(&w, "eos_token_id");
    json_string(&w, "torch_dtype", dtype == ST_BF16 ? "bfloat16" : dtype == ST_F16 ? "float16" : "float32");
    json_end_object(&w);
    str_append(out, "\n");
}

static Status write_text(const char *dir, const char *name, Str *text) {
    char path[HF_PATH];
    str_path_join(path, sizeof path, dir, name);
    const Status status = file_write_atomic(path, text->text, text->len, STATUS_CHECKPOINT);
    str_deinit(text);
    return status;
}

Status hf_write_config(const char *dir, const ModelConfig *model) {
    Str text = {0};
    hf_config_text(model, ST_F32, &text);
    return write_text(dir, HF_CONFIG_NAME, &text);
}

Status hf_write_index(const char *dir, const HfIndexEntry *entry, int count) {
    int64_t total = 0;
    for (int i = 0; i < count; i++)
        total += entry[i].nbytes;
    Str text = {0};
    JsonWriter w = json_writer(&text);
    json_begin_object(&w, NULL);
    json_begin_object(&w, "metadata");
    json_int(&w, "total_size", total);
    json_end_object(&w);
    json_begin_object(&w, "weight_map");
    for (int i = 0; i < count; i++)
        json_string(&w, entry[i].tensor, entry[i].file);
    json_end_object(&w);
    json_end_object(&w);
    str_append(&text, "\n");
    return write_text(dir, HF_INDEX_NAME, &text);
}

/* ---- checking ---- */

typedef struct Check {
    const JsonValue *root;
    Str lines; /* one per key that differs */
} Check;

/* There, and not null. */
static bool is_set(const JsonValue *value) {
    double number;
    bool flag;
    return json_as_string(value) != NULL || json_as_double(value, &number) || json_as_bool(value, &flag) ||
           json_is_object(value) || json_is_array(value);
}

/* An absent key or null means `fallback`; a value of another type is a difference. */
static void same_int(Check *c, const char *key, int64_t fallback, const char *ours, int64_t model) {
    const JsonValue *value = json_get(c->root, key);
    int64_t theirs = fallback;
    if (is_set(value) && !json_as_int(value, &theirs))
        str_printf(&c->lines, "\n    %s is no whole number", key);
    else if (theirs != model)
        str_printf(&c->lines, "\n    %s = %" PRId64 ", the model has %s = %" PRId64, key, theirs, ours, model);
}

static void same_double(Check *c, const JsonValue *in, const char *key, double fallback, const char *ours,
                        double model) {
    const JsonValue *value = json_get(in, key);
    double theirs = fallback;
    if (is_set(value) && !json_as_double(value, &theirs))
        str_printf(&c->lines, "\n    %s is no number", key);
    else if (theirs < model || theirs > model)
        str_printf(&c->lines, "\n    %s = %.17g, the model has %s = %.17g", key, theirs, ours, model);
}

static bool bool_of(Check *c, const char *key, bool fallback) {
    const JsonValue *value = json_get(c->root, key);
    bool theirs = fallback;
    if (is_set(value) && !json_as_bool(value, &theirs))
        str_printf(&c->lines, "\n    %s is neither true nor false", key);
    return theirs;
}

static void same_bool(Check *c, const char *key, bool theirs, const char *ours, bool model) {
    if (theirs != model)
        str_printf(&c->lines, "\n    %s = %s, the model has %s: %s", key, theirs ? "true" : "false", ours,
                   model ? "true" : "false");
}

static const char *string_of(const JsonValue *in, const char *key, const char *fallback) {
    const JsonValue *value = json_get(in, key);
    if (!is_set(value))
        return fallback;
    const char *text = json_as_string(value);
    return text != NULL ? text : "(no string)";
}

static int64_t int_of(const Check *c, const char *key, int64_t fallback) {
    int64_t value;
    return json_as_int(json_get(c->root, key), &value) ? value : fallback;
}

/* What model_type implies beyond the keys. */
static void check_family(Check *c, const ModelConfig *m) {
    const char *type = string_of(c->root, "model_type", "(missing)");
    const bool qwen2 = strcmp(type, "qwen2") == 0, qwen3 = strcmp(type, "qwen3") == 0;
    if (!qwen2 && !qwen3 && strcmp(type, "llama") != 0 && strcmp(type, "mistral") != 0) {
        str_printf(&c->lines, "\n    model_type = %s: only llama, mistral, qwen2 and qwen3 can be computed", type);
        return;
    }
    const bool bias = bool_of(c, "attention_bias", false);
    same_bool(c, qwen2 ? "model_type qwen2: bias of q, k, v" : "attention_bias", qwen2 || bias, "qkv_bias",
              m->qkv_bias);
    same_bool(c, qwen3 ? "model_type qwen3: norms of q and k" : "norms of q and k", qwen3, "qk_norm", m->qk_norm);
}

static void check_rope(Check *c, const ModelConfig *m) {
    const JsonValue *scaling = json_get(c->root, "rope_scaling"), *parameters = json_get(c->root, "rope_parameters");
    const JsonValue *sources[2] = {scaling, parameters};
    for (int i = 0; i < 2; i++) {
        if (!is_set(sources[i]))
            continue;
        const char *type = string_of(sources[i], "rope_type", string_of(sources[i], "type", "(missing)"));
        if (strcmp(type, "default") != 0)
            str_printf(&c->lines, "\n    %s = {type: %s}: only null or type default can be computed",
                       i == 0 ? "rope_scaling" : "rope_parameters", type);
    }
    same_double(c, json_get(parameters, "rope_theta") != NULL ? parameters : c->root, "rope_theta", 10000.0,
                "rope_theta", m->rope_theta);
    const JsonValue *partial = json_get(c->root, "partial_rotary_factor");
    if (is_set(partial))
        same_double(c, c->root, "partial_rotary_factor", 1.0, "a factor of", 1.0);
    if (bool_of(c, "rope_interleaved", false))
        str_append(&c->lines, "\n    rope_interleaved = true: only the half-rotated form can be computed");
}

static void check_window(Check *c, const ModelConfig *m) {
    const bool mistral = strcmp(string_of(c->root, "model_type", ""), "mistral") == 0;
    const int64_t window = int_of(c, "sliding_window", INT64_MAX);
    if (bool_of(c, "use_sliding_window", mistral) && window < m->max_seq_len)
        str_printf(&c->lines,
                   "\n    sliding_window = %" PRId64 " is active and below max_seq_len = %" PRId64
                   ": only full attention can be computed",
                   window, m->max_seq_len);
    else if (!mistral && bool_of(c, "use_sliding_window", false))
        str_append(&c->lines, "\n    use_sliding_window = true: only full attention can be computed");
    const JsonValue *layers = json_get(c->root, "layer_types");
    for (int i = 0; i < json_count(layers); i++) {
        const char *type = json_as_string(json_at(layers, i));
        if (type != NULL && strcmp(type, "full_attention") != 0) {
            str_printf(&c->lines, "\n    layer_types[%d] = %s: only full_attention can be computed", i, type);
            return;
        }
    }
}

static void check_limits(Check *c, const ModelConfig *m) {
    const char *act = string_of(c->root, "hidden_act", "silu");
    if (strcmp(act, "silu") != 0)
        str_printf(&c->lines, "\n    hidden_act = %s: only silu can be computed", act);
    if (bool_of(c, "mlp_bias", false))
        str_append(&c->lines, "\n    mlp_bias = true: biases of the feed-forward part cannot be computed");
    const JsonValue *quantization = json_get(c->root, "quantization_config");
    if (is_set(quantization))
        str_append(&c->lines, "\n    quantization_config is set: only F32, BF16 and F16 weights can be read");
    const int64_t positions = int_of(c, "max_position_embeddings", INT64_MAX);
    if (positions < m->max_seq_len)
        str_printf(&c->lines, "\n    max_position_embeddings = %" PRId64 ", the model has max_seq_len = %" PRId64,
                   positions, m->max_seq_len);
}

static void check_keys(Check *c, const ModelConfig *m) {
    const int64_t hidden = int_of(c, "hidden_size", 0), heads = int_of(c, "num_attention_heads", 0);
    check_family(c, m);
    same_int(c, "hidden_size", 0, "d_model", m->d_model);
    same_int(c, "intermediate_size", 0, "d_ff", m->d_ff);
    same_int(c, "num_hidden_layers", 0, "n_layers", m->n_layers);
    same_int(c, "num_attention_heads", 0, "n_heads", m->n_heads);
    same_int(c, "num_key_value_heads", heads, "n_kv_heads", m->n_kv_heads);
    same_int(c, "head_dim", heads > 0 ? hidden / heads : 0, "head_dim", m->head_dim);
    same_int(c, "vocab_size", 0, "vocab_size", m->vocab_size);
    same_double(c, c->root, "rms_norm_eps", 1e-6, "norm_eps", m->norm_eps);
    same_bool(c, "tie_word_embeddings", bool_of(c, "tie_word_embeddings", false), "tie_embeddings", m->tie_embeddings);
    check_rope(c, m);
    check_window(c, m);
    check_limits(c, m);
}

/* attention_bias means a bias of o_proj too, to Hugging Face; a file shows whether there is one. */
static Status check_output_bias(const char *dir) {
    HfDir files;
    const StFile *file;
    TRY(hf_open(&files, dir));
    const bool found = hf_find(&files, "model.layers.0.self_attn.o_proj.bias", &file) != NULL;
    hf_close(&files);
    if (found)
        return STATUS_FAIL(STATUS_CHECKPOINT,
                           "%s/" HF_CONFIG_NAME ": attention_bias = true with a bias of o_proj: only "
                           "biases of q, k and v can be computed",
                           dir);
    return STATUS_OK;
}

static Status check_root(const char *path, const JsonValue *root, const ModelConfig *model) {
    Check check = {.root = root};
    if (!json_is_object(root))
        return STATUS_FAIL(STATUS_CHECKPOINT, "%s: no JSON object", path);
    check_keys(&check, model);
    Status status = STATUS_OK;
    if (check.lines.len > 0)
        status = STATUS_FAIL(STATUS_CHECKPOINT, "%s does not fit the model:%s", path, check.lines.text);
    str_deinit(&check.lines);
    return status;
}

Status hf_check(const char *dir, const ModelConfig *model) {
    char path[HF_PATH];
    char *text;
    size_t nbytes;
    str_path_join(path, sizeof path, dir, HF_CONFIG_NAME);
    TRY(file_read(path, CONFIG_MAX, STATUS_CHECKPOINT, &text, &nbytes));
    JsonValue *root = NULL;
    Status status = json_parse(text, nbytes, path, STATUS_CHECKPOINT, &root);
    if (status == STATUS_OK)
        status = check_root(path, root, model);
    json_free(root);
    heap_free(text);
    if (status == STATUS_OK && model->qkv_bias)
        status = check_output_bias(dir);
    return status;
}
