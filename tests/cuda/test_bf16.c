/* The CUDA kernels between binary32 and bf16 against the CPU's, bit for bit. */
#include "tests/cuda/parity.h"

static uint16_t *pool_halves(int64_t n) {
    return pool_bytes((size_t)n * sizeof(uint16_t), (size_t)random_below(8) * sizeof(uint16_t));
}

/* x [n] rounded, in place too, and packed; what was packed, unpacked. */
static void run_all(float *x, int64_t n) {
    uint16_t *packed = pool_halves(n);
    PARITY_RUN(ROUND_BF16, (&(RoundBf16){.y = pool_floats(n), .x = x, .n = n}));
    PARITY_RUN(PACK_BF16, (&(PackBf16){.y = packed, .x = x, .n = n}));
    PARITY_RUN(UNPACK_BF16, (&(UnpackBf16){.y = pool_floats(n), .x = packed, .n = n}));
    PARITY_RUN(ROUND_BF16, (&(RoundBf16){.y = x, .x = x, .n = n}));
}

static void test_any_length_at_any_place(void **state) {
    static const int64_t sizes[] = {0, 1, 31, 32, 33, 1023, 1024, 1025, 100003};
    (void)state;
    parity_restore_faults();
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int special = 0; special <= 1; special++) {
            pool_begin(special != 0);
            run_all(pool_random(sizes[s]), sizes[s]);
        }
}

/* Each bf16 value as the upper half, with lower halves at and beside the ties. */
static void test_around_every_bf16_value(void **state) {
    static const uint32_t lower[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
    enum { VALUES = 1 << 16, NLOWER = sizeof lower / sizeof *lower };
    (void)state;
    parity_restore_faults();
    pool_begin(false);
    float *x = pool_floats(VALUES * NLOWER);
    for (uint32_t i = 0; i < VALUES * NLOWER; i++) {
        const uint32_t bits = i / NLOWER << 16 | lower[i % NLOWER];
        memcpy(&x[i], &bits, sizeof bits);
    }
    run_all(x, VALUES * NLOWER);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_length_at_any_place),
        cmocka_unit_test(test_around_every_bf16_value),
    };
    parity_keep_faults();
    return cmocka_run_group_tests(tests, parity_open, parity_close);
}
