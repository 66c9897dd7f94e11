/* The network against an independent framework: golden files of tests/golden/make_model_golden.py (PyTorch, binary64).
 */
#include "tests/unit/bits.h"

#include <stdio.h>

#include "tests/fixtures/resident.h"

#define TOLERANCE 1e-5
#define GOLDEN_MAX 32768

/* f32 of the file: loss, logits [B*T, vocab], gradients in registry order. */
static size_t golden_read(const char *kind, float *golden) {
    char path[256];
    (void)snprintf(path, sizeof path, "tests/golden/model_%s.bin", kind);
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        fail_msg("%s: cannot be opened; tests run from the top of the tree", path);
    const size_t n = fread(golden, sizeof *golden, GOLDEN_MAX, file);
    (void)fclose(file);
    return n;
}

/* Every position's logits, as the last position of a prefix. */
static void check_logits(Resident *r, const ResidentSpec *spec, const int32_t *tokens, const float *golden) {
    float *logits = calloc((size_t)(spec->B * spec->T * spec->vocab), sizeof *logits);
    for (int64_t b = 0; b < spec->B; b++)
        for (int64_t t = 0; t < spec->T; t++)
            model_logits(r->model, tokens + b * spec->T, t + 1, logits + (b * spec->T + t) * spec->vocab);
    assert_near_norm(logits, golden, spec->B * spec->T * spec->vocab, TOLERANCE, "logits");
    free(logits);
}

static void check_kind(const char *kind, const ResidentSpec *spec) {
    static float golden[GOLDEN_MAX];
    Resident r;
    int32_t tokens[RESIDENT_TOKENS], targets[RESIDENT_TOKENS];
    const size_t n = golden_read(kind, golden);
    resident_create(&r, spec);
    resident_formula_weights(&r);
    resident_formula_tokens(spec, tokens, targets);
    model_forward_backward(r.model, tokens, targets);
    const float loss = model_loss(r.model);
    assert_near_norm(&loss, golden, 1, TOLERANCE, kind);
    check_logits(&r, spec, tokens, golden + 1);
    size_t at = 1 + (size_t)(spec->B * spec->T * spec->vocab);
    for (int i = 0; i < r.table.count; i++) {
        const Param *p = &r.table.row[i];
        assert_near_norm(r.grad[i], golden + at, param_numel(p), TOLERANCE, p->name);
        at += (size_t)param_numel(p);
    }
    assert_int_equal(at, n);
    resident_destroy(&r);
}

static void test_model_agrees_with_pytorch_multi_head(void **state) {
    (void)state;
    check_kind(resident_kinds[0].name, &resident_kinds[0].spec);
}

static void test_model_agrees_with_pytorch_grouped_tied_qk_norm(void **state) {
    (void)state;
    check_kind(resident_kinds[1].name, &resident_kinds[1].spec);
}

static void test_model_agrees_with_pytorch_biases_and_padded_vocabulary(void **state) {
    (void)state;
    check_kind(resident_kinds[2].name, &resident_kinds[2].spec);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model_agrees_with_pytorch_multi_head),
        cmocka_unit_test(test_model_agrees_with_pytorch_grouped_tied_qk_norm),
        cmocka_unit_test(test_model_agrees_with_pytorch_biases_and_padded_vocabulary),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
