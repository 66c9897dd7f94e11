/* The matrix product against its definition, bit for bit: the reference below is the formula of kernels.h in plain
 * loops. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "tests/fixtures/kernel_ctx.h"

/* The AVX-512 tile made of AVX2 halves, so that its logic is tested where the processor has no AVX-512. */
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define DM_ISA emulated_512
#define DM_EMULATE_512
#include "kernels/cpu/gemm.c"
#include "kernels/cpu/gemm_pack.c"
#include "kernels/cpu/gemm_tile.c"
#pragma GCC pop_options

void gemm_generic(const KernelCtx *ctx, const void *args);
void gemm_avx2(const KernelCtx *ctx, const void *args);
void gemm_avx512(const KernelCtx *ctx, const void *args);

typedef struct Unit {
    const char *name;
    KernelFn gemm;
    bool runs;
} Unit;

enum { NUNITS = 4 };
static Unit units[NUNITS];

static int setup_units(void **state) {
    (void)state;
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
    units[0] = (Unit){"generic", gemm_generic, true};
    units[1] = (Unit){"avx2", gemm_avx2, avx2};
    units[2] = (Unit){"avx512 emulated", gemm_emulated_512, avx2};
    units[3] = (Unit){"avx512", gemm_avx512, avx2 && avx512};
    return 0;
}

/* ---- random data ------------------------------------------------------------------------------------------------ */

static uint64_t random_state = 1;

static uint32_t random_u32(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 32);
}

static int64_t random_between(int64_t low, int64_t high) {
    return low + (int64_t)(random_u32() % (uint32_t)(high - low + 1));
}

/* Signed zeros, subnormals and large numbers among ordinary ones; `exponent` moves the ordinary ones, so that whole
 * products can be subnormal. Nothing overflows: 2^50 * 2^50 * K stays finite. */
static float random_float(int exponent) {
    const float sign = random_u32() & 1 ? -1.0f : 1.0f;
    const float x = (float)(random_u32() >> 8) / 16777216.0f;
    switch (random_u32() % 12) {
    case 0:
        return sign * 0.0f;
    case 1:
        return sign * ldexpf(x, -130);
    case 2:
        return sign * ldexpf(x, (int)random_between(10, 50));
    default:
        return sign * ldexpf(x, exponent);
    }
}

/* A matrix of rows x cols inside exactly the memory that it may touch; what lies between rows is NaN. */
static float *random_matrix(int64_t rows, int64_t cols, int64_t ld, int exponent) {
    const int64_t nelem = rows > 0 ? (rows - 1) * ld + cols : 0;
    float *x = malloc((size_t)(nelem > 0 ? nelem : 1) * sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < nelem; i++)
        x[i] = i % ld < cols ? random_float(exponent) : NAN;
    return x;
}

/* ---- the definition --------------------------------------------------------------------------------------------- */

static float reference_chain(const Gemm *g, int p, int64_t i, int64_t j, int segment) {
    const GemmPart *part = &g->part[p];
    const int64_t size = g->nsegments == 1 ? part->k : part->segment;
    float c = 0.0f;
    for (int64_t k = segment * size; k < (segment + 1) * size && k < part->k; k++) {
        const float a = g->trans_a ? part->a[k * part->lda + i] : part->a[i * part->lda + k];
        const float b = g->trans_b ? part->b[j * part->ldb + k] : part->b[k * part->ldb + j];
        c = fmaf(a, b, c);
    }
    return c;
}

static float reference_tree(const Gemm *g, int64_t i, int64_t j, int first, int n) {
    if (n == 1) {
        float value = reference_chain(g, 0, i, j, first);
        for (int p = 1; p < g->nparts; p++)
            value = value + reference_chain(g, p, i, j, first);
        return value;
    }
    int half = 1;
    while (half * 2 < n)
        half *= 2;
    return reference_tree(g, i, j, first, half) + reference_tree(g, i, j, first + half, n - half);
}

static float reference_element(const Gemm *g, const float *c, int64_t i, int64_t j) {
    if (g->shape == GEMM_LOWER_MIRRORED && i < j)
        return reference_element(g, c, j, i);
    const float value = reference_tree(g, i, j, 0, g->nsegments);
    return g->accumulate ? c[i * g->ldc + j] + value : value;
}

/* ---- one case --------------------------------------------------------------------------------------------------- */

typedef struct Case {
    int64_t m, n, k[3], segment[3];
    int nparts, nsegments, nthreads, exponent;
    bool trans_a, trans_b, accumulate;
    GemmShape shape;
} Case;

enum { MARGIN = 40 };

static void fail_at(const Case *t, const char *unit, int64_t at, float want, float got) {
    uint32_t bits[2];
    memcpy(&bits[0], &want, sizeof want);
    memcpy(&bits[1], &got, sizeof got);
    fail_msg("%s: m %d n %d k %d,%d,%d segments %d x %d,%d,%d parts %d trans %d%d accumulate %d shape %d threads %d: "
             "c[%d] is %08x, want %08x",
             unit, (int)t->m, (int)t->n, (int)t->k[0], (int)t->k[1], (int)t->k[2], t->nsegments, (int)t->segment[0],
             (int)t->segment[1], (int)t->segment[2], t->nparts, t->trans_a, t->trans_b, t->accumulate, (int)t->shape,
             t->nthreads, (int)at, bits[1], bits[0]);
}

static void run_units(const Case *t, Gemm *g, const float *before, const float *want, int64_t nelem) {
    float *c = malloc((size_t)nelem * sizeof *c);
    assert_non_null(c);
    for (int u = 0; u < NUNITS; u++) {
        if (!units[u].runs)
            continue;
        memcpy(c, before, (size_t)nelem * sizeof *c);
        g->c = c + MARGIN;
        units[u].gemm(test_kernel_ctx(t->nthreads), g);
        for (int64_t i = 0; i < nelem; i++)
            if (memcmp(&c[i], &want[i], sizeof c[i]) != 0)
                fail_at(t, units[u].name, i - MARGIN, want[i], c[i]);
    }
    free(c);
}

/* `before` surrounds the matrix with sentinels; `want` differs from it in the elements only. */
static void check_output(const Case *t, Gemm *g) {
    const int64_t nelem = g->m * g->ldc + 2 * MARGIN;
    float *before = malloc((size_t)nelem * sizeof *before), *want = malloc((size_t)nelem * sizeof *want);
    assert_true(before && want);
    for (int64_t i = 0; i < nelem; i++)
        before[i] = -123.0f - (float)(i % 7);
    for (int64_t i = 0; i < t->m; i++)
        for (int64_t j = 0; j < t->n; j++)
            before[MARGIN + i * g->ldc + j] = t->shape == GEMM_FULL || j <= i ? random_float(t->exponent) : NAN;
    memcpy(want, before, (size_t)nelem * sizeof *want);
    for (int64_t i = 0; i < t->m; i++)
        for (int64_t j = 0; j < t->n; j++)
            want[MARGIN + i * g->ldc + j] = reference_element(g, before + MARGIN, i, j);
    run_units(t, g, before, want, nelem);
    free(before);
    free(want);
}

static void check(const Case *t) {
    Gemm g = {.m = t->m,
              .n = t->n,
              .nparts = t->nparts,
              .nsegments = t->nsegments,
              .trans_a = t->trans_a,
              .trans_b = t->trans_b,
              .accumulate = t->accumulate,
              .shape = t->shape,
              .ldc = t->n + random_between(0, 9)};
    float *a[3], *b[3];
    for (int p = 0; p < t->nparts; p++) {
        GemmPart *part = &g.part[p];
        part->k = t->k[p];
        part->segment = t->segment[p];
        part->lda = (t->trans_a ? t->m : t->k[p]) + random_between(0, 9);
        part->ldb = (t->trans_b ? t->k[p] : t->n) + random_between(0, 9);
        a[p] = random_matrix(t->trans_a ? t->k[p] : t->m, t->trans_a ? t->m : t->k[p], part->lda + 1, t->exponent);
        b[p] = random_matrix(t->trans_b ? t->n : t->k[p], t->trans_b ? t->k[p] : t->n, part->ldb + 1, t->exponent);
        part->lda++;
        part->ldb++;
        part->a = a[p];
        part->b = b[p];
    }
    check_output(t, &g);
    for (int p = 0; p < t->nparts; p++) {
        free(a[p]);
        free(b[p]);
    }
}

/* ---- claims ----------------------------------------------------------------------------------------------------- */

static void fill_random(Case *t, int64_t largest, int64_t deepest) {
    t->m = random_between(1, largest);
    t->n = t->shape == GEMM_LOWER_MIRRORED ? t->m : random_between(1, largest);
    for (int p = 0; p < t->nparts; p++) {
        t->segment[p] = random_between(1, deepest / t->nsegments + 1);
        const int64_t most = t->segment[p] * t->nsegments;
        t->k[p] = random_u32() % 2 ? most : random_between(0, most);
    }
    t->nthreads = (int)random_between(1, 3);
    t->exponent = random_u32() % 3 == 0 ? -70 : 0;
}

static void test_every_form_of_small_sizes_has_the_bits_of_its_definition(void **state) {
    (void)state;
    for (int form = 0; form < 4 * 4 * 3 * 2 * 2 * 2; form++) {
        Case t = {.trans_a = form & 1,
                  .trans_b = form >> 1 & 1,
                  .accumulate = form >> 2 & 1,
                  .shape = form >> 3 & 1 ? GEMM_LOWER_MIRRORED : GEMM_FULL,
                  .nsegments = 1 << (form >> 4 & 3),
                  .nparts = 1 + (form >> 6) % 3};
        fill_random(&t, 70, 70);
        check(&t);
    }
}

static void test_a_chain_goes_on_across_blocks_of_the_contracted_dimension(void **state) {
    (void)state;
    for (int form = 0; form < 16; form++) {
        Case t = {.m = 21,
                  .n = 37,
                  .trans_a = form & 1,
                  .trans_b = form >> 1 & 1,
                  .accumulate = form >> 2 & 1,
                  .nsegments = 1 << 3 * (form >> 3 & 1),
                  .nparts = 1 + form % 3,
                  .nthreads = 1 + form % 2};
        for (int p = 0; p < t.nparts; p++) {
            t.segment[p] = t.nsegments == 1 ? 1500 : 300 + 150 * (form % 3) + 7 * p;
            t.k[p] = t.segment[p] * t.nsegments - 5;
        }
        check(&t);
    }
}

static void test_large_outputs_are_cut_into_macro_tiles_without_a_trace(void **state) {
    (void)state;
    const int64_t sizes[][3] = {{1100, 35, 9}, {35, 1100, 9}, {1050, 1047, 3},
                                {70, 2200, 5}, {2200, 70, 5}, {390, 300, 20}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        Case t = {.m = sizes[i][0],
                  .n = sizes[i][1],
                  .k = {sizes[i][2]},
                  .segment = {sizes[i][2]},
                  .nparts = 1,
                  .nsegments = 1,
                  .trans_b = i % 2,
                  .nthreads = 1 + (int)i % 3};
        check(&t);
    }
}

static void test_a_mirrored_product_is_symmetric_to_the_bit(void **state) {
    (void)state;
    const int64_t sizes[][2] = {{1, 1}, {6, 40}, {14, 14}, {96, 390}, {203, 60}, {1090, 2}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        Case t = {.m = sizes[i][0],
                  .n = sizes[i][0],
                  .k = {sizes[i][1]},
                  .segment = {sizes[i][1]},
                  .nparts = 1,
                  .nsegments = 1,
                  .trans_b = i % 2,
                  .shape = GEMM_LOWER_MIRRORED,
                  .nthreads = 1 + (int)i % 3};
        check(&t);
    }
}

static void test_empty_segments_are_plus_zero_and_enter_the_tree(void **state) {
    (void)state;
    for (int form = 0; form < 8; form++) {
        Case t = {.m = 7,
                  .n = 19,
                  .k = {0, 11, 64},
                  .segment = {3, 5, 1},
                  .nsegments = 64,
                  .nparts = 1 + form % 3,
                  .accumulate = form & 1,
                  .nthreads = 1};
        check(&t);
        t.segment[0] = 0;
        check(&t);
    }
}

static void test_a_product_over_nothing_is_plus_zero(void **state) {
    (void)state;
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        Case t = {.m = 9, .n = 33, .nparts = 1, .nsegments = 1, .accumulate = accumulate, .nthreads = 2};
        check(&t);
    }
}

static void test_an_output_without_elements_is_left_alone(void **state) {
    (void)state;
    Case t = {.m = 0, .n = 5, .k = {4}, .segment = {4}, .nparts = 1, .nsegments = 1, .nthreads = 2};
    check(&t);
    t.m = 5;
    t.n = 0;
    check(&t);
    t.m = 0;
    t.shape = GEMM_LOWER_MIRRORED;
    check(&t);
}

static void test_each_product_of_a_batch_has_the_bits_that_it_has_alone(void **state) {
    (void)state;
    enum { M = 19, N = 37, K = 23, PRODUCTS = 3 };
    float *a = random_matrix(PRODUCTS * M, K, K, 0), *b = random_matrix(PRODUCTS * N, K, K, 0);
    float *before = random_matrix(PRODUCTS * M, N, N, 0);
    float together[PRODUCTS * M * N], alone[PRODUCTS * M * N];
    const Gemm batch = {.m = M,
                        .n = N,
                        .nparts = 1,
                        .part = {{.a = a, .b = b, .lda = K, .ldb = K, .k = K, .stride_a = M * K, .stride_b = N * K}},
                        .nsegments = 1,
                        .trans_b = true,
                        .accumulate = true,
                        .c = together,
                        .ldc = N,
                        .batch = PRODUCTS,
                        .stride_c = M * N};
    for (int u = 0; u < NUNITS; u++) {
        if (!units[u].runs)
            continue;
        memcpy(together, before, sizeof together);
        memcpy(alone, before, sizeof alone);
        units[u].gemm(test_kernel_ctx(2), &batch);
        for (int i = 0; i < PRODUCTS; i++) {
            Gemm one = batch;
            one.batch = 0;
            one.part[0].a += i * M * K;
            one.part[0].b += i * N * K;
            one.c = alone + i * M * N;
            units[u].gemm(test_kernel_ctx(2), &one);
        }
        assert_memory_equal(together, alone, sizeof alone);
        assert_memory_not_equal(together, before, sizeof together);
    }
    free(a);
    free(b);
    free(before);
}

static void test_sixty_four_segments_of_three_parts_fit_the_program(void **state) {
    (void)state;
    Case t = {.m = 15, .n = 40, .nparts = 3, .nsegments = 64, .nthreads = 2};
    for (int p = 0; p < 3; p++) {
        t.segment[p] = 1 + p;
        t.k[p] = 64 * t.segment[p];
    }
    check(&t);
    for (int p = 0; p < 3; p++) {
        t.segment[p] = 9 + p;
        t.k[p] = 64 * t.segment[p] - 30;
    }
    check(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_form_of_small_sizes_has_the_bits_of_its_definition),
        cmocka_unit_test(test_a_chain_goes_on_across_blocks_of_the_contracted_dimension),
        cmocka_unit_test(test_large_outputs_are_cut_into_macro_tiles_without_a_trace),
        cmocka_unit_test(test_a_mirrored_product_is_symmetric_to_the_bit),
        cmocka_unit_test(test_empty_segments_are_plus_zero_and_enter_the_tree),
        cmocka_unit_test(test_a_product_over_nothing_is_plus_zero),
        cmocka_unit_test(test_an_output_without_elements_is_left_alone),
        cmocka_unit_test(test_each_product_of_a_batch_has_the_bits_that_it_has_alone),
        cmocka_unit_test(test_sixty_four_segments_of_three_parts_fit_the_program),
    };
    return cmocka_run_group_tests(tests, setup_units, NULL);
}
