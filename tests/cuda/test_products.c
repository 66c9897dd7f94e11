/* The CUDA matrix product and attention against the CPU's, bit for bit. */
#include <stdio.h>

#include "tests/cuda/parity.h"

/* ---- matrix product ---------------------------------------------------------------------------------------------- */

typedef struct Product {
    int64_t m, n, k[3], segment[3];
    int nparts, nsegments;
    bool trans_a, trans_b, accumulate;
    GemmShape shape;
    int64_t spare; /* added to every leading dimension */
    bool special;
    int64_t batch; /* 0: 1 */
} Product;

static void run_product(const Product *t) {
    const int64_t batch = t->batch > 0 ? t->batch : 1;
    Gemm g = {.m = t->m,
              .n = t->n,
              .nparts = t->nparts,
              .nsegments = t->nsegments,
              .trans_a = t->trans_a,
              .trans_b = t->trans_b,
              .accumulate = t->accumulate,
              .shape = t->shape,
              .ldc = t->n + t->spare,
              .batch = t->batch,
              .stride_c = t->m * (t->n + t->spare) + 3};
    for (int p = 0; p < t->nparts; p++) {
        GemmPart *part = &g.part[p];
        part->k = t->k[p];
        part->segment = t->segment[p];
        part->lda = (t->trans_a ? t->m : t->k[p]) + t->spare;
        part->ldb = (t->trans_b ? t->k[p] : t->n) + t->spare;
        part->stride_a = (t->trans_a ? t->k[p] : t->m) * part->lda + 1;
        part->stride_b = (t->trans_b ? t->n : t->k[p]) * part->ldb + 2;
        part->a = pool_random(batch * part->stride_a);
        part->b = pool_random(batch * part->stride_b);
    }
    g.c = pool_random(batch * g.stride_c);
    (void)snprintf(parity.what, sizeof parity.what,
                   "m %d n %d k %d,%d,%d segments %d parts %d trans %d%d accumulate %d shape %d spare %d", (int)t->m,
                   (int)t->n, (int)t->k[0], (int)t->k[1], (int)t->k[2], t->nsegments, t->nparts, t->trans_a, t->trans_b,
                   t->accumulate, (int)t->shape, (int)t->spare);
    PARITY_RUN(GEMM, &g);
}

/* A product of each tile size, in every transposition, with and without accumulation, plain and over segments. */
static void check_forms(int64_t m, int64_t n, int64_t k, int64_t spare) {
    for (int form = 0; form < 8; form++) {
        Product t = {.m = m,
                     .n = n,
                     .k = {k},
                     .segment = {k},
                     .nparts = 1,
                     .nsegments = 1,
                     .trans_a = (form & 1) != 0,
                     .trans_b = (form & 2) != 0,
                     .accumulate = (form & 4) != 0,
                     .spare = spare};
        pool_begin(form == 3);
        run_product(&t);
        t.nsegments = form < 4 ? 4 : 8;
        t.segment[0] = (k + t.nsegments - 1) / t.nsegments;
        pool_begin(false);
        run_product(&t);
    }
}

static void test_every_form_of_every_tile(void **state) {
    (void)state;
    parity_restore_signals();
    check_forms(37, 71, 19, 0);
    check_forms(64, 64, 64, 0);
    check_forms(5, 130, 3, 3);
    check_forms(130, 9, 33, 1);
    check_forms(258, 260, 21, 0); /* beyond the small tile */
    check_forms(1, 1, 1, 0);
}

/* So many tiles that blocks with scratch take more than one, and the largest tile is chosen. */
static void test_large_outputs(void **state) {
    (void)state;
    parity_restore_signals();
    const Product cases[] = {
        {.m = 1500, .n = 1500, .k = {9}, .nparts = 1, .nsegments = 1, .trans_b = true},
        {.m = 1411, .n = 1409, .k = {17}, .nparts = 1, .nsegments = 1, .spare = 1, .accumulate = true},
        {.m = 2049, .n = 1031, .k = {10}, .segment = {5}, .nparts = 1, .nsegments = 2, .trans_a = true},
        {.m = 1450, .n = 1450, .k = {8}, .nparts = 1, .nsegments = 1, .trans_b = true, .shape = GEMM_LOWER_MIRRORED},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        pool_begin(false);
        run_product(&cases[i]);
    }
}

static void test_parts_add_up_in_each_segment(void **state) {
    (void)state;
    parity_restore_signals();
    const Product cases[] = {
        {.m = 33, .n = 70, .k = {64, 16, 16}, .segment = {8, 2, 2}, .nparts = 3, .nsegments = 8},
        {.m = 33, .n = 70, .k = {30, 7, 0}, .segment = {8, 2, 0}, .nparts = 3, .nsegments = 4, .accumulate = true},
        {.m = 65, .n = 33, .k = {40, 41}, .nparts = 2, .nsegments = 1, .trans_a = true, .spare = 2},
        {.m = 300, .n = 300, .k = {64, 64}, .segment = {8, 8}, .nparts = 2, .nsegments = 8, .spare = 4},
        {.m = 9, .n = 9, .k = {64, 60, 3}, .segment = {1, 1, 1}, .nparts = 3, .nsegments = 64, .trans_b = true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        pool_begin(i == 2);
        run_product(&cases[i]);
    }
}

static void test_mirrored_products(void **state) {
    (void)state;
    parity_restore_signals();
    const int64_t sizes[] = {1, 31, 64, 97, 259};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const int64_t m = sizes[i];
        for (int form = 0; form < 4; form++) {
            const Product t = {.m = m,
                               .n = m,
                               .k = {m / 2 + 5},
                               .segment = {(m / 2 + 5 + 3) / 4},
                               .nparts = 1,
                               .nsegments = (form & 1) != 0 ? 4 : 1,
                               .trans_b = true,
                               .accumulate = (form & 2) != 0,
                               .shape = GEMM_LOWER_MIRRORED,
                               .spare = i % 2};
            pool_begin(false);
            run_product(&t);
        }
    }
}

static void test_batches(void **state) {
    (void)state;
    parity_restore_signals();
    const Product cases[] = {
        {.m = 33, .n = 17, .k = {21}, .nparts = 1, .nsegments = 1, .trans_b = true, .batch = 3},
        {.m = 40,
         .n = 24,
         .k = {32, 9},
         .segment = {8, 3},
         .nparts = 2,
         .nsegments = 4,
         .accumulate = true,
         .batch = 2},
        {.m = 31,
         .n = 31,
         .k = {12},
         .nparts = 1,
         .nsegments = 1,
         .trans_a = true,
         .shape = GEMM_LOWER_MIRRORED,
         .batch = 4},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        pool_begin(false);
        run_product(&cases[i]);
    }
}

static void test_nothing_to_contract(void **state) {
    (void)state;
    parity_restore_signals();
    const Product cases[] = {
        {.m = 33, .n = 35, .k = {0}, .nparts = 1, .nsegments = 1},
        {.m = 33, .n = 35, .k = {0}, .nparts = 1, .nsegments = 1, .accumulate = true},
        {.m = 33, .n = 35, .k = {0}, .segment = {5}, .nparts = 1, .nsegments = 8},
        {.m = 33, .n = 35, .k = {11}, .segment = {5}, .nparts = 1, .nsegments = 8, .trans_b = true},
        {.m = 0, .n = 35, .k = {11}, .nparts = 1, .nsegments = 1},
        {.m = 33, .n = 0, .k = {11}, .segment = {11}, .nparts = 1, .nsegments = 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        pool_begin(false);
        run_product(&cases[i]);
    }
}

/* Chains whose value is -0 or a subnormal show every padded step. */
static void test_negative_zeros_and_infinities_meet_no_padding(void **state) {
    (void)state;
    parity_restore_signals();
    for (int64_t k = 1; k < 20; k++) {
        const Product t = {.m = 34, .n = 67, .k = {k}, .nparts = 1, .nsegments = 1, .trans_b = k % 2 == 0};
        pool_begin(k % 3 == 0);
        run_product(&t);
    }
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

typedef struct Attention {
    int64_t B, T, H, K, D;
    int64_t spare; /* added to every stride */
    bool special;
    float size; /* of the queries: large ones make scores that overflow an exponential without the maximum */
} Attention;

/* Forward, then backward from what the CPU's forward saved. */
static void run_attention(const Attention *t) {
    const int64_t q_stride = t->H * t->D + t->spare, kv_stride = t->K * t->D + t->spare;
    const int64_t tokens = t->B * t->T, rows = t->B * t->H * t->T;
    pool_begin(t->special);
    (void)snprintf(parity.what, sizeof parity.what, "B %d T %d H %d K %d D %d spare %d", (int)t->B, (int)t->T,
                   (int)t->H, (int)t->K, (int)t->D, (int)t->spare);
    float *q = pool_random(tokens * q_stride), *k = pool_random(tokens * kv_stride);
    float *v = pool_random(tokens * kv_stride), *o = pool_floats(tokens * q_stride);
    float *max = pool_floats(rows), *sum = pool_floats(rows);
    for (int64_t i = 0; i < tokens * q_stride; i++)
        q[i] *= t->size;
    PARITY_RUN(ATTENTION_FORWARD, (&(AttentionForward){.o = o,
                                                       .max = max,
                                                       .sum = sum,
                                                       .q = q,
                                                       .k = k,
                                                       .v = v,
                                                       .B = t->B,
                                                       .T = t->T,
                                                       .H = t->H,
                                                       .K = t->K,
                                                       .D = t->D,
                                                       .q_stride = q_stride,
                                                       .kv_stride = kv_stride,
                                                       .o_stride = q_stride,
                                                       .scale = 0x1.6p-2f}));
    PARITY_RUN(ATTENTION_BACKWARD, (&(AttentionBackward){.dq = pool_floats(tokens * q_stride),
                                                         .dk = pool_floats(tokens * kv_stride),
                                                         .dv = pool_floats(tokens * kv_stride),
                                                         .d_o = pool_random(tokens * q_stride),
                                                         .q = q,
                                                         .k = k,
                                                         .v = v,
                                                         .o = o,
                                                         .max = max,
                                                         .sum = sum,
                                                         .B = t->B,
                                                         .T = t->T,
                                                         .H = t->H,
                                                         .K = t->K,
                                                         .D = t->D,
                                                         .q_stride = q_stride,
                                                         .kv_stride = kv_stride,
                                                         .o_stride = q_stride,
                                                         .scale = 0x1.6p-2f}));
}

static const Attention attentions[] = {
    {.B = 1, .T = 1, .H = 1, .K = 1, .D = 1, .size = 1.0f},
    {.B = 2, .T = 7, .H = 4, .K = 2, .D = 5, .spare = 3, .size = 1.0f},
    {.B = 1, .T = 32, .H = 3, .K = 1, .D = 16, .size = 1.0f},
    {.B = 2, .T = 33, .H = 2, .K = 2, .D = 64, .spare = 1, .size = 1.0f},
    {.B = 1, .T = 100, .H = 2, .K = 1, .D = 70, .size = 1.0f},
    {.B = 1, .T = 128, .H = 1, .K = 1, .D = 8, .size = 200.0f},
    {.B = 1, .T = 129, .H = 2, .K = 1, .D = 16, .size = 1.0f},
    {.B = 1, .T = 200, .H = 2, .K = 1, .D = 64, .spare = 2, .size = 1.0f},
    {.B = 1, .T = 193, .H = 1, .K = 1, .D = 72, .size = 1.0f},
    {.B = 1, .T = 130, .H = 1, .K = 1, .D = 133, .spare = 1, .size = 20.0f},
    {.B = 1, .T = 40, .H = 2, .K = 1, .D = 9, .special = true, .size = 1.0f},
    {.B = 1, .T = 140, .H = 1, .K = 1, .D = 9, .special = true, .size = 1.0f},
    {.B = 1, .T = 0, .H = 2, .K = 1, .D = 8, .size = 1.0f},
    {.B = 0, .T = 5, .H = 2, .K = 1, .D = 8, .size = 1.0f},
};

static void test_attention_forward_and_backward(void **state) {
    (void)state;
    parity_restore_signals();
    for (size_t i = 0; i < sizeof attentions / sizeof *attentions; i++)
        run_attention(&attentions[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_form_of_every_tile),
        cmocka_unit_test(test_large_outputs),
        cmocka_unit_test(test_parts_add_up_in_each_segment),
        cmocka_unit_test(test_mirrored_products),
        cmocka_unit_test(test_batches),
        cmocka_unit_test(test_nothing_to_contract),
        cmocka_unit_test(test_attention_forward_and_backward),
        cmocka_unit_test(test_negative_zeros_and_infinities_meet_no_padding),
    };
    parity_keep_signals();
    return cmocka_run_group_tests(tests, parity_open, parity_close);
}
