/* The files of configs/ and models/ that come with the engine. Run from the root of the tree. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/str.h"
#include "config/config.h"

static Config loaded;

static void assert_loads(const char *path, char *const *overrides, int count, Str *warnings) {
    const Status status = config_load(&loaded, path, overrides, count, warnings);
    if (status != STATUS_OK)
        print_error("%s: %s\n", path, status_trail());
    assert_int_equal(status, STATUS_OK);
}

static void test_every_configuration_loads_without_a_warning(void **state) {
    char **names;
    int count, yaml = 0;
    (void)state;
    assert_int_equal(file_list("configs", STATUS_CONFIG, &names, &count), STATUS_OK);
    for (int i = 0; i < count; i++) {
        char path[256];
        Str warnings = {0};
        if (!str_ends_with(names[i], ".yaml"))
            continue;
        (void)snprintf(path, sizeof path, "configs/%s", names[i]);
        assert_loads(path, NULL, 0, &warnings);
        assert_null(warnings.text);
        assert_true(file_exists(loaded.model_path));
        assert_true(file_exists(loaded.data.train) && file_exists(loaded.data.val));
        yaml++;
    }
    file_list_free(names, count);
    assert_true(yaml >= 5);
}

/* Parameters of the model, by the usual sum. */
static int64_t parameters(const ModelConfig *m) {
    const int64_t q = m->n_heads * m->head_dim, kv = m->n_kv_heads * m->head_dim;
    const int64_t layer = 2 * m->d_model * q + 2 * m->d_model * kv + 3 * m->d_model * m->d_ff + 2 * m->d_model +
                          (m->qk_norm ? 2 * m->head_dim : 0) + (m->qkv_bias ? q + 2 * kv : 0);
    return m->n_layers * layer + m->d_model + (m->tie_embeddings ? 1 : 2) * m->vocab_size * m->d_model;
}

static void test_every_model_has_its_published_size(void **state) {
    static const struct {
        const char *name;
        int64_t parameters;
    } models[] = {
        {"llama-tiny", 125248},   {"llama-1m", 869504},     {"llama-60m", 58073600},     {"llama-124m", 123587328},
        {"llama-1b", 1235814400}, {"llama-7b", 6738415616}, {"smollm2-135m", 134515008}, {"qwen3-0.6b", 596049920},
    };
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        char argument[128];
        char *const overrides[] = {argument};
        (void)snprintf(argument, sizeof argument, "model=models/%s.yaml", models[i].name);
        assert_loads("configs/kjv-one.yaml", overrides, 1, NULL);
        if (parameters(&loaded.model) != models[i].parameters)
            print_error("%s: %lld parameters\n", models[i].name, (long long)parameters(&loaded.model));
        assert_int_equal(parameters(&loaded.model), models[i].parameters);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_configuration_loads_without_a_warning),
        cmocka_unit_test(test_every_model_has_its_published_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
