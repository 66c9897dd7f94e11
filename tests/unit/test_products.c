/* The lists of products, against what a step, a validation, a prompt and Newton-Schulz launch. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "device/backend.h"
#include "model/products.h"
#include "tests/fixtures/newton_schulz.h"
#include "tests/fixtures/resident.h"

/* ---- a device that notes its products ---- */

static Backend noting;
static ProductList noted;

static void note_launch(Stream *stream, KernelId id, const void *args, size_t nbytes) {
    const Gemm *g = args;
    const AttentionForward *f = args;
    if (id == KERNEL_ATTENTION_FORWARD)
        products_add_attention(&noted, f->T, f->H, f->K, f->D);
    if (id == KERNEL_GEMM)
        for (int p = 0; p < g->nparts; p++)
            products_add(&noted, (ProductShape){g->m, g->n, g->part[p].k, g->trans_a, g->trans_b, g->shape, g->range});
    backend_cpu.launch(stream, id, args, nbytes);
}

static size_t note_nbytes(const Device *device, int count) {
    (void)device;
    return (size_t)count;
}

static void note(Device *device) {
    noting = backend_cpu;
    noting.launch = note_launch;
    noting.choice_nbytes = note_nbytes;
    device->backend = &noting;
    products_deinit(&noted);
}

/* ---- comparing ---- */

static int find(const ProductList *list, const ProductShape *p) {
    for (int i = 0; i < list->count; i++) {
        const ProductShape *q = &list->shape[i];
        if (p->m == q->m && p->n == q->n && p->k == q->k && p->trans_a == q->trans_a && p->trans_b == q->trans_b &&
            p->shape == q->shape && p->range == q->range)
            return i;
    }
    return -1;
}

static void expect_within(const ProductList *some, const ProductList *all, const char *what) {
    for (int i = 0; i < some->count; i++) {
        const ProductShape *p = &some->shape[i];
        if (find(all, p) < 0)
            fail_msg("%s: m %d n %d k %d, transposed %d %d, shape %d, range %d", what, (int)p->m, (int)p->n, (int)p->k,
                     p->trans_a, p->trans_b, (int)p->shape, (int)p->range);
    }
}

static void expect_equal(ProductList *listed) {
    assert_true(noted.count > 0);
    expect_within(&noted, listed, "launched and not listed");
    expect_within(listed, &noted, "listed and not launched");
    products_deinit(listed);
    products_deinit(&noted);
}

/* ---- claims ---- */

static void test_products_are_listed_once_and_empty_ones_not_at_all(void **state) {
    (void)state;
    ProductList list = {0};
    for (int i = 0; i < 100; i++) {
        products_add(&list, (ProductShape){.m = 1 + i / 2, .n = 2, .k = 3});
        products_add(&list, (ProductShape){.m = 1 + i / 2, .n = i % 2, .k = 0});
    }
    assert_int_equal(list.count, 50);
    assert_int_equal(list.shape[49].m, 50);
    products_add(&list, (ProductShape){.m = 50, .n = 2, .k = 3, .range = GEMM_RANGE_UNIT});
    assert_int_equal(list.count, 51);
    products_deinit(&list);
}

static void test_products_of_the_model_are_those_it_launches(void **state) {
    (void)state;
    for (int kind = 0; kind < RESIDENT_KINDS; kind++) {
        const ResidentSpec spec = resident_kinds[kind].spec;
        int32_t tokens[RESIDENT_TOKENS], targets[RESIDENT_TOKENS];
        float windows[RESIDENT_TOKENS], logits[64];
        ProductList listed = {0};
        Resident r;
        resident_create(&r, &spec);
        resident_formula_tokens(&spec, tokens, targets);
        note(r.device);
        model_forward_backward(r.model, tokens, targets);
        model_eval(r.model, tokens, targets, windows);
        model_logits(r.model, tokens, 3, logits);
        model_logits(r.model, tokens, spec.T, logits);
        model_products(&r.shape, spec.B, spec.T, 1, &listed);
        expect_equal(&listed);
        resident_destroy(&r);
    }
}

/* A prompt run at the full length has the bits of the prompt alone. */
static void test_logits_do_not_depend_on_what_follows_the_prompt(void **state) {
    (void)state;
    const ResidentSpec spec = resident_kinds[0].spec;
    int32_t tokens[RESIDENT_TOKENS], targets[RESIDENT_TOKENS];
    float alone[64], whole[64];
    Resident r;
    resident_create(&r, &spec);
    resident_formula_weights(&r);
    resident_formula_tokens(&spec, tokens, targets);
    model_forward_backward(r.model, tokens, targets);
    model_logits(r.model, tokens + 5, 7, alone);
    note(r.device);
    model_logits(r.model, tokens + 5, 7, whole);
    assert_memory_equal(alone, whole, sizeof(float) * (size_t)spec.vocab);
    products_deinit(&noted);
    resident_destroy(&r);
}

static void expect_cut(int64_t T, int64_t H, int64_t K, int64_t rows, int64_t pairs) {
    const AttentionCut cut = attention_cut(T, H, K);
    assert_int_equal(cut.rows, rows);
    assert_int_equal(cut.pairs, pairs);
}

/* 256 MiB at 12 bytes for each row, head and key: all rows of all heads, else 512 of some heads, else fewer of one. */
static void test_attention_is_cut_to_what_memory_holds(void **state) {
    (void)state;
    expect_cut(1, 1, 1, 1, 22369621);
    expect_cut(1024, 12, 12, 1024, 21);
    expect_cut(1000, 22, 22, 1000, 22);
    expect_cut(1000, 23, 23, 896, 24);
    expect_cut(2048, 32, 8, 512, 5);
    expect_cut(8192, 32, 32, 512, 5);
    expect_cut(32768, 32, 8, 128, 1);
    expect_cut(131072, 64, 8, 128, 1);
}

static void test_products_of_attention_are_three_for_each_block(void **state) {
    (void)state;
    ProductList list = {0};
    products_add_attention(&list, 1100, 20, 10, 8);
    assert_int_equal(list.count, 6);
    assert_true(find(&list, &(ProductShape){.m = 1792, .n = 896, .k = 8, .trans_b = true}) >= 0);
    assert_true(find(&list, &(ProductShape){.m = 408, .n = 1100, .k = 8, .trans_b = true}) >= 0);
    assert_true(find(&list, &(ProductShape){.m = 408, .n = 8, .k = 1100}) >= 0);
    assert_true(find(&list, &(ProductShape){.m = 1100, .n = 8, .k = 408, .trans_a = true}) >= 0);
    products_deinit(&list);
}

/* Of all tp ranks: a vocabulary of 61 leaves the last with fewer rows. */
static void test_products_of_the_model_cover_every_tp_rank(void **state) {
    (void)state;
    const ResidentSpec spec = resident_kinds[2].spec;
    const Config config = resident_config(&spec);
    const ModelShape shape = model_shape(&config);
    ProductList list = {0};
    model_products(&shape, spec.B, spec.T, 2, &list);
    assert_true(find(&list, &(ProductShape){.m = 1, .n = 32, .k = 32, .trans_b = true}) >= 0);
    assert_true(find(&list, &(ProductShape){.m = 1, .n = 29, .k = 32, .trans_b = true}) >= 0);
    assert_true(find(&list, &(ProductShape){.m = 32, .n = 32, .k = 24}) >= 0); /* half of F */
    products_deinit(&list);
}

static void test_products_of_newton_schulz_are_those_it_launches(void **state) {
    (void)state;
    static const int64_t shapes[][2] = {{16, 16}, {8, 40}, {40, 8}, {24, 24}};
    for (int i = 0; i < 4 * 2 * 3; i++) {
        NsConfig config = ns_default_config(i % 2 == 0 ? NS_GRAM : NS_DIRECT);
        config.steps = i / 8 == 0 ? 5 : i / 8; /* 5, 1, 2 */
        config.restarts[0] = i / 8 == 2 ? 1 : 2;
        const int64_t out = shapes[i / 2 % 4][0], in = shapes[i / 2 % 4][1];
        const NsPlan plan = ns_plan(&config, out, in, -1, 1);
        Device *device;
        ProductList listed = {0};
        Stream *stream = ns_stream(&device, 1);
        float *x = ns_floats(out * in), *result = ns_floats(out * in);
        for (int64_t e = 0; e < out * in; e++)
            x[e] = (float)ns_input(e / in, e % in, i);
        note(device);
        assert_true(ns_run_on_copy(&plan, stream, x, result));
        ns_products(&plan, 1, &listed);
        expect_equal(&listed);
        free(x);
        free(result);
        device_destroy(device);
    }
}

/* In slices the contracted dimension is shorter, and not for all ranks alike. */
static void test_products_of_slices_cover_every_tp_rank(void **state) {
    (void)state;
    const NsConfig config = ns_default_config(NS_GRAM);
    const NsPlan plan = ns_plan(&config, 61, 16, 0, 8);
    ProductList list = {0};
    ns_products(&plan, 2, &list);
    const GemmRange range = GEMM_RANGE_UNIT;
    const GemmShape mirrored = GEMM_LOWER_MIRRORED;
    assert_true(find(&list, &(ProductShape){16, 16, 32, true, false, mirrored, range}) >= 0);
    assert_true(find(&list, &(ProductShape){16, 16, 29, true, false, mirrored, range}) >= 0);
    assert_true(find(&list, &(ProductShape){32, 16, 16, false, true, GEMM_FULL, range}) >= 0);
    assert_true(find(&list, &(ProductShape){29, 16, 16, false, true, GEMM_FULL, range}) >= 0);
    assert_int_equal(list.count, 6);
    products_deinit(&list);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products_are_listed_once_and_empty_ones_not_at_all),
        cmocka_unit_test(test_products_of_the_model_are_those_it_launches),
        cmocka_unit_test(test_logits_do_not_depend_on_what_follows_the_prompt),
        cmocka_unit_test(test_attention_is_cut_to_what_memory_holds),
        cmocka_unit_test(test_products_of_attention_are_three_for_each_block),
        cmocka_unit_test(test_products_of_the_model_cover_every_tp_rank),
        cmocka_unit_test(test_products_of_newton_schulz_are_those_it_launches),
        cmocka_unit_test(test_products_of_slices_cover_every_tp_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
