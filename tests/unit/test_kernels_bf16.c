/* Rounding to bf16, packing and unpacking, against distances in binary64. */
#include "tests/unit/kernel_cases.h"

enum { VALUES = 1 << 16 };

static float value_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Of the two bf16 around x the nearer one, the even one of two that are as near; beyond the largest comes 2^128, which
 * is infinity. */
static uint16_t nearest(float x) {
    const uint32_t bits = bits_of_f32(x);
    const uint32_t sign = bits >> 31 << 15, below = bits >> 16 & 0x7fff;
    if (isnan(x))
        return (uint16_t)(sign | below | 0x40);
    if (isinf(x))
        return (uint16_t)(bits >> 16);
    const double above = below + 1 == 0x7f80 ? 0x1p128 : (double)value_of((below + 1) << 16);
    const double down = fabs((double)x) - (double)value_of(below << 16), up = above - fabs((double)x);
    const bool take_above = up < down || (up == down && below % 2 == 1);
    return (uint16_t)(sign | (below + take_above));
}

/* x [n] rounded, in place too, and packed. An odd count leaves the last element of the buffer alone. */
static void check_rounding(float *x, int64_t n) {
    const int64_t even = n + n % 2;
    uint16_t *packed = cases_bytes((size_t)even * sizeof *packed),
             *expected = cases_bytes((size_t)even * sizeof *packed);
    float *rounded = cases_floats(n), *out = cases_floats(n);
    for (int64_t i = 0; i < n; i++) {
        expected[i] = nearest(x[i]);
        rounded[i] = value_of((uint32_t)expected[i] << 16);
    }
    CASES_RUN(PACK_BF16, (&(PackBf16){.y = packed, .x = x, .n = n}), CASES_OUTPUT(packed, expected, even));
    CASES_RUN(ROUND_BF16, (&(RoundBf16){.y = out, .x = x, .n = n}), CASES_OUTPUT(out, rounded, n));
    CASES_RUN(ROUND_BF16, (&(RoundBf16){.y = out, .bits = packed, .x = x, .n = n}), CASES_OUTPUT(out, rounded, n),
              CASES_OUTPUT(packed, expected, even));
    CASES_RUN(ROUND_BF16, (&(RoundBf16){.y = x, .x = x, .n = n}), CASES_OUTPUT(x, rounded, n));
    CASES_RUN(ROUND_BF16, (&(RoundBf16){.y = rounded, .x = rounded, .n = n}),
              CASES_OUTPUT(rounded, cases_copy(rounded, n), n));
    cases_end();
}

static void test_every_bf16_value_is_unpacked_exactly(void **state) {
    (void)state;
    for (int64_t n = VALUES - 1; n <= VALUES; n++) {
        uint16_t *x = cases_bytes(VALUES * sizeof *x);
        float *y = cases_floats(n), *expected = cases_floats(n);
        for (uint32_t h = 0; h < VALUES; h++)
            x[h] = (uint16_t)h;
        for (uint32_t h = 0; h < n; h++)
            expected[h] = value_of(h << 16);
        CASES_RUN(UNPACK_BF16, (&(UnpackBf16){.y = y, .x = x, .n = n}), CASES_OUTPUT(y, expected, n));
        cases_end();
    }
}

/* Each bf16 value as the upper half, with lower halves at, beside and between the ties: zeros, subnormals, the largest
 * number, infinities and NaNs with all kinds of payload are among them. */
static void test_rounding_is_to_nearest_even_around_every_bf16_value(void **state) {
    static const uint32_t lower[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
    enum { NLOWER = sizeof lower / sizeof *lower };
    (void)state;
    float *x = cases_floats(VALUES * NLOWER);
    for (uint32_t h = 0; h < VALUES; h++)
        for (uint32_t l = 0; l < NLOWER; l++)
            x[h * NLOWER + l] = value_of(h << 16 | lower[l]);
    check_rounding(x, VALUES * NLOWER);
}

static void test_known_cases(void **state) {
    static const struct {
        uint32_t x;
        uint16_t y;
    } row[] = {{0x3f808000, 0x3f80}, {0x3f818000, 0x3f82}, /* ties to even                */
               {0x3f808001, 0x3f81}, {0x3f817fff, 0x3f81}, /* beside them                 */
               {0x80000000, 0x8000}, {0x00008000, 0x0000}, /* -0; half the least, to even */
               {0x00018000, 0x0002}, {0x80008001, 0x8001}, /* subnormals                  */
               {0x007fffff, 0x0080},                       /* the least normal number     */
               {0x7f7f7fff, 0x7f7f}, {0x7f7f8000, 0x7f80}, /* the largest; beyond it      */
               {0xff800000, 0xff80}, {0x7f800001, 0x7fc0}, /* -inf; a NaN stays one       */
               {0xffffffff, 0xffff}, {0xff810000, 0xffc1}};
    enum { NROWS = sizeof row / sizeof *row };
    (void)state;
    float x[NROWS];
    uint16_t y[NROWS], *out = cases_bytes((NROWS + 1) * sizeof *out),
                       *expected = cases_bytes((NROWS + 1) * sizeof *out);
    for (int i = 0; i < NROWS; i++) {
        x[i] = value_of(row[i].x);
        y[i] = row[i].y;
        assert_int_equal(nearest(x[i]), y[i]);
    }
    memcpy(expected, y, sizeof y);
    CASES_RUN(PACK_BF16, (&(PackBf16){.y = out, .x = x, .n = NROWS}), CASES_OUTPUT(out, expected, NROWS + 1));
    cases_end();
}

static void test_rounding_of_any_length(void **state) {
    static const int64_t sizes[] = {0, 1, 15, 16, 31, 33, 511, 513, 40001};
    (void)state;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        check_rounding(cases_random(sizes[s]), sizes[s]);
}

/* ---- kernels that store what they compute as bf16 ---- */

/* What a kernel must leave: `value` rounded, and its bits. */
typedef struct Rounded {
    float *value;
    uint16_t *bits;
} Rounded;

static Rounded rounded(const float *value, int64_t n) {
    Rounded r = {cases_floats(n), cases_bytes((size_t)n * sizeof *r.bits)};
    for (int64_t i = 0; i < n; i++) {
        r.bits[i] = nearest(value[i]);
        r.value[i] = value_of((uint32_t)r.bits[i] << 16);
    }
    return r;
}

static uint16_t *words(int64_t n) {
    return cases_bytes((size_t)n * sizeof(uint16_t));
}

/* Runs the plain kernel, whose result is in `out` [n] then, and gives what the storing one must leave; `out` is as
 * before. */
static Rounded expected_of(KernelId id, const void *args, float *out, int64_t n) {
    float *before = cases_copy(out, n);
    kernels_cpu_generic.fn[id](test_kernel_ctx(1), args);
    const Rounded r = rounded(out, n);
    memcpy(out, before, (size_t)n * sizeof *out);
    return r;
}

/* The kernel with the result in `out` [n], by its field `store`. */
#define CHECK_STORED(id, Args, args, out, n)                                                                           \
    do {                                                                                                               \
        Args stored_ = (args);                                                                                         \
        const Rounded want_ = expected_of(KERNEL_##id, &stored_, (out), (n));                                          \
        uint16_t *bits_ = words(n);                                                                                    \
        stored_.store = (StoreBf16){.rounded = true};                                                                  \
        CASES_RUN(id, &stored_, CASES_OUTPUT((out), want_.value, (n)));                                                \
        stored_.store.bits = bits_;                                                                                    \
        CASES_RUN(id, &stored_, CASES_OUTPUT((out), want_.value, (n)), CASES_OUTPUT(bits_, want_.bits, (n)));          \
        cases_end();                                                                                                   \
    } while (0)

static void test_norms_store_the_nearest_bf16(void **state) {
    enum { ROWS = 14, D = 36 };
    (void)state;
    float *y = cases_floats(ROWS * D);
    CHECK_STORED(RMSNORM_FORWARD, RmsnormForward,
                 ((RmsnormForward){.y = y,
                                   .rstd = cases_floats(ROWS),
                                   .x = cases_random(ROWS * D),
                                   .w = cases_random(D),
                                   .rows = ROWS,
                                   .d = D,
                                   .eps = 1e-5f}),
                 y, ROWS * D);
    float *dx = cases_random(ROWS * D); /* the residual too */
    CHECK_STORED(RMSNORM_BACKWARD, RmsnormBackward,
                 ((RmsnormBackward){.dx = dx,
                                    .dy = cases_random(ROWS * D),
                                    .x = cases_random(ROWS * D),
                                    .w = cases_random(D),
                                    .rstd = cases_random(ROWS),
                                    .residual = dx,
                                    .rows = ROWS,
                                    .d = D}),
                 dx, ROWS * D);
}

static void test_rotations_store_the_nearest_bf16_and_leave_what_lies_between_tokens(void **state) {
    enum { N = 9, HEADS = 3, D = 6, STRIDE = HEADS * D + 4 };
    (void)state;
    float *x = cases_random((int64_t)N * STRIDE), *before = cases_copy(x, (int64_t)N * STRIDE);
    Rope rope = {.x = x,
                 .cos = cases_random(4 * D / 2),
                 .sin = cases_random(4 * D / 2),
                 .n = N,
                 .heads = HEADS,
                 .d = D,
                 .stride = STRIDE,
                 .T = 4};
    Rounded want = expected_of(KERNEL_ROPE, &rope, x, (int64_t)N * STRIDE);
    uint16_t *bits = words((int64_t)N * STRIDE);
    for (int64_t i = 0; i < N; i++) {
        const int64_t gap = i * STRIDE + (int64_t)HEADS * D;
        memcpy(want.value + gap, before + gap, 4 * sizeof(float));
        memcpy(want.bits + gap, bits + gap, 4 * sizeof(uint16_t));
    }
    rope.store = (StoreBf16){.bits = bits, .rounded = true};
    CASES_RUN(ROPE, &rope, CASES_OUTPUT(x, want.value, N * STRIDE), CASES_OUTPUT(bits, want.bits, N * STRIDE));
    cases_end();
}

static void test_gated_units_store_the_nearest_bf16(void **state) {
    enum { N = 1028 };
    (void)state;
    float *a = cases_floats(N), *z = cases_random(N), *u = cases_random(N);
    CHECK_STORED(SWIGLU_FORWARD, SwigluForward,
                 ((SwigluForward){.a = a, .z = cases_random(N), .u = cases_random(N), .n = N}), a, N);
    a = cases_random(N);
    z = cases_random(N);
    u = cases_random(N);
    float *dz = cases_floats(N), *du = cases_floats(N);
    SwigluBackward args = {.dz = dz, .du = du, .da = a, .z = z, .u = u, .n = N};
    const Rounded want_dz = expected_of(KERNEL_SWIGLU_BACKWARD, &args, dz, N);
    const Rounded want_du = expected_of(KERNEL_SWIGLU_BACKWARD, &args, du, N);
    uint16_t *bits_dz = words(N), *bits_du = words(N);
    args.dz = z; /* in place */
    args.du = u;
    args.store_dz = (StoreBf16){.bits = bits_dz, .rounded = true};
    args.store_du = (StoreBf16){.bits = bits_du, .rounded = true};
    CASES_RUN(SWIGLU_BACKWARD, &args, CASES_OUTPUT(z, want_dz.value, N), CASES_OUTPUT(u, want_du.value, N),
              CASES_OUTPUT(bits_dz, want_dz.bits, N), CASES_OUTPUT(bits_du, want_du.bits, N));
    cases_end();
}

static void test_sums_are_stored_as_the_nearest_bf16(void **state) {
    enum { N = 1029 };
    (void)state;
    float *dst = cases_floats(N);
    Add args = {.dst = dst, .a = cases_random(N), .b = cases_random(N), .n = N};
    const Rounded want = expected_of(KERNEL_ADD, &args, dst, N);
    args.rounded = true;
    CASES_RUN(ADD, &args, CASES_OUTPUT(dst, want.value, N));
    cases_end();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_bf16_value_is_unpacked_exactly),
        cmocka_unit_test(test_rounding_is_to_nearest_even_around_every_bf16_value),
        cmocka_unit_test(test_known_cases),
        cmocka_unit_test(test_rounding_of_any_length),
        cmocka_unit_test(test_norms_store_the_nearest_bf16),
        cmocka_unit_test(test_rotations_store_the_nearest_bf16_and_leave_what_lies_between_tokens),
        cmocka_unit_test(test_gated_units_store_the_nearest_bf16),
        cmocka_unit_test(test_sums_are_stored_as_the_nearest_bf16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
