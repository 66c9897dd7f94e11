/* The elementary functions against binary64 (binary32 functions) and long double (binary64 functions) of the C library.
 * DM_SLOW=1 in the environment walks all 2^32 inputs of exp and log instead of a fixed sample of four million. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "kernels/exact_math.h"

/* The distance of y from the exact value in units of the last place of binary32 at the exact value. */
static double ulps32(float y, double exact) {
    if ((double)y == exact)
        return 0.0;
    if (fabs(exact) >= 0x1.ffffffp+127) /* rounds to infinity */
        return isinf(y) && (y > 0) == (exact > 0) ? 0.0 : (double)INFINITY;
    const int exponent = exact == 0.0 ? -149 : ilogb(exact) - 23;
    return fabs((double)y - exact) * ldexp(1.0, -(exponent < -149 ? -149 : exponent));
}

typedef struct Worst {
    double ulps;
    float x;
} Worst;

static void worst_add(Worst *worst, float x, double ulps) {
    if (ulps > worst->ulps || isnan(ulps))
        *worst = (Worst){.ulps = ulps, .x = x};
}

/* Every input of the slow mode; in the fast one every 1021st (a prime), so that all exponents and signs are met. */
static void check_range(float (*ours)(float), double (*theirs)(double), const char *name) {
    const uint64_t step = getenv("DM_SLOW") != NULL ? 1 : 1021;
    Worst worst = {0};
    for (uint64_t bits = 0; bits <= UINT32_MAX; bits += step) {
        const float x = exact_from_bits((uint32_t)bits);
        const float y = ours(x);
        const double exact = theirs((double)x);
        if (isnan(exact))
            assert_true(isnan(y));
        else
            worst_add(&worst, x, ulps32(y, exact));
    }
    if (!(worst.ulps <= 1.0))
        fail_msg("%s(%a) is off by %.4f ulp", name, (double)worst.x, worst.ulps);
    print_message("%s: at most %.4f ulp, at %a\n", name, worst.ulps, (double)worst.x);
}

static float our_exp(float x) {
    return exact_exp(x);
}

static float our_log(float x) {
    return exact_log(x);
}

static void test_exp_is_within_one_ulp_of_every_value(void **state) {
    (void)state;
    check_range(our_exp, exp, "exp");
}

static void test_log_is_within_one_ulp_of_every_value(void **state) {
    (void)state;
    check_range(our_log, log, "log");
}

static void assert_bits(float y, float expected) {
    if (exact_bits(y) != exact_bits(expected))
        fail_msg("%08x is not %08x", exact_bits(y), exact_bits(expected));
}

static void test_exp_overflows_to_infinity_and_underflows_gradually(void **state) {
    (void)state;
    assert_bits(exact_exp(0.0f), 1.0f);
    assert_bits(exact_exp(-0.0f), 1.0f);
    assert_bits(exact_exp(0x1.62e42ep+6f), 0x1.ffff08p+127f);
    assert_bits(exact_exp(0x1.62e430p+6f), INFINITY);
    assert_bits(exact_exp(INFINITY), INFINITY);
    assert_bits(exact_exp(-INFINITY), 0.0f);
    assert_bits(exact_exp(-104.0f), 0.0f);
    assert_bits(exact_exp(-103.9f), 0x1p-149f);
    assert_true(exact_exp(-88.0f) > 0.0f && exact_exp(-88.0f) < 0x1p-126f);
    assert_true(isnan(exact_exp(NAN)));
}

static void test_the_short_form_of_exp_has_the_bits_of_the_long_one(void **state) {
    (void)state;
    const uint32_t limit = exact_bits(EXACT_EXP_NEAR);
    for (uint32_t bits = 0; bits <= limit; bits += 997) {
        const float x = exact_from_bits(bits);
        assert_bits(exact_exp_near(x), exact_exp(x));
        assert_bits(exact_exp_near(-x), exact_exp(-x));
    }
    assert_bits(exact_exp_near(EXACT_EXP_NEAR), exact_exp(EXACT_EXP_NEAR));
    assert_bits(exact_exp_near(-EXACT_EXP_NEAR), exact_exp(-EXACT_EXP_NEAR));
}

static void test_log_of_the_special_values(void **state) {
    (void)state;
    assert_bits(exact_log(1.0f), 0.0f);
    assert_bits(exact_log(0.0f), -INFINITY);
    assert_bits(exact_log(-0.0f), -INFINITY);
    assert_bits(exact_log(INFINITY), INFINITY);
    assert_true(isnan(exact_log(-1.0f)) && isnan(exact_log(-INFINITY)) && isnan(exact_log(NAN)));
}

/* Some bits that must not move: a change of the polynomials is a change of every trajectory. */
static void test_the_bits_of_fixed_values_stand(void **state) {
    (void)state;
    uint64_t hash = 0xcbf29ce484222325u;
    for (uint32_t i = 0; i < 4096; i++) {
        const float x = (float)i * 0.04f - 100.0f;
        hash = (hash ^ exact_bits(exact_exp(x))) * 0x100000001b3u;
        hash = (hash ^ exact_bits(exact_log(fabsf(x) + 0x1p-20f))) * 0x100000001b3u;
        hash = (hash ^ exact_bits64(exact_exp64((double)x))) * 0x100000001b3u;
        hash = (hash ^ exact_bits64(exact_log64(fabs((double)x) + 0x1p-20))) * 0x100000001b3u;
        hash = (hash ^ exact_bits64(exact_sin64((double)x * 1000.0))) * 0x100000001b3u;
        hash = (hash ^ exact_bits64(exact_cos64((double)x * 1000.0))) * 0x100000001b3u;
    }
    assert_int_equal(hash, 0x5e0fbd503155fb3au);
}

static long double ulps64(double y, long double exact) {
    if (y == (double)exact)
        return 0.0L;
    const int exponent = exact == 0.0L ? -1074 : ilogbl(exact) - 52;
    return fabsl((long double)y - exact) * ldexpl(1.0L, -(exponent < -1074 ? -1074 : exponent));
}

static uint64_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 11;
}

static double uniform(uint64_t *state, double low, double high) {
    return low + (high - low) * (double)next_random(state) * 0x1p-53;
}

static void check_range64(double (*ours)(double), long double (*theirs)(long double), double low, double high,
                          long double limit) {
    uint64_t random = 1;
    long double worst = 0.0L;
    double where = 0.0;
    for (int i = 0; i < 200000; i++) {
        const double x = uniform(&random, low, high);
        const long double ulps = ulps64(ours(x), theirs((long double)x));
        if (ulps > worst) {
            worst = ulps;
            where = x;
        }
    }
    if (!(worst <= limit))
        fail_msg("off by %.3Lf ulp at %a", worst, where);
    print_message("[%g, %g]: at most %.3Lf ulp\n", low, high, worst);
}

static double our_exp64(double x) {
    return exact_exp64(x);
}

static double our_log64(double x) {
    return exact_log64(x);
}

static double our_sin64(double x) {
    return exact_sin64(x);
}

static double our_cos64(double x) {
    return exact_cos64(x);
}

static void test_exp64_is_within_two_ulp(void **state) {
    (void)state;
    check_range64(our_exp64, expl, -1.0, 1.0, 2.0L);
    check_range64(our_exp64, expl, -745.0, 709.0, 2.0L);
    assert_true(exact_exp64(1000.0) == (double)INFINITY && exact_exp64(-1000.0) == 0.0);
    assert_true(isnan(exact_exp64((double)NAN)));
}

static void test_log64_is_within_two_ulp(void **state) {
    (void)state;
    check_range64(our_log64, logl, 0.5, 2.0, 2.0L);
    check_range64(our_log64, logl, 0.0, 1.0, 2.0L);
    check_range64(our_log64, logl, 1.0, 1e7, 2.0L);
    check_range64(our_log64, logl, 0x1p-1070, 0x1p-1021, 2.0L);
    assert_true(exact_log64(0.0) == -(double)INFINITY && exact_log64(1.0) == 0.0 && isnan(exact_log64(-1.0)));
}

/* Also at the doubles next to multiples of pi/2, where the reduction cancels most. */
static void check_near_multiples(double (*ours)(double), long double (*theirs)(long double)) {
    for (int n = -500000; n <= 500000; n += 37) {
        const double x = (double)((long double)n * 1.57079632679489661923132169163975144L);
        const long double ulps = ulps64(ours(x), theirs((long double)x));
        if (!(ulps <= 2.0L))
            fail_msg("off by %.3Lf ulp at %a", ulps, x);
    }
}

static void test_sin64_and_cos64_are_within_two_ulp(void **state) {
    (void)state;
    const double range[] = {1.0, 100.0, 131072.0, 1e6};
    for (size_t i = 0; i < sizeof range / sizeof *range; i++) {
        check_range64(our_sin64, sinl, -range[i], range[i], 2.0L);
        check_range64(our_cos64, cosl, -range[i], range[i], 2.0L);
    }
    check_near_multiples(our_sin64, sinl);
    check_near_multiples(our_cos64, cosl);
    assert_true(exact_sin64(0.0) == 0.0 && exact_cos64(0.0) == 1.0);
}

static void test_scaling_by_a_power_of_two_brings_the_largest_to_one_two(void **state) {
    (void)state;
    for (uint32_t exponent = 0; exponent < 255; exponent++) {
        const float x = exact_from_bits(exponent << 23 | 0x200001u);
        const ExactPow2 factor = exact_ns_scale(x);
        const float y = x * factor.first * factor.second;
        assert_true(y >= 1.0f && y < 2.0f);
        assert_true((double)y == ldexp((double)x, -ilogb((double)x)));
        assert_true(fpclassify(factor.first) == FP_NORMAL && fpclassify(factor.second) == FP_NORMAL);
    }
    const ExactPow2 factor = exact_ns_scale(0x1p-149f);
    assert_bits(0x1p-149f * factor.first * factor.second, 1.0f);
}

/* For every matrix whose factor is no normal binary32, each element is rounded once, as by ldexp. */
static void test_scaling_down_by_two_factors_rounds_once(void **state) {
    (void)state;
    uint64_t random = 7;
    const ExactPow2 factor = exact_ns_scale(0x1.8p+127f);
    for (int i = 0; i < 1000000; i++) {
        const float x = exact_from_bits((uint32_t)next_random(&random));
        if (!isfinite(x))
            continue;
        assert_bits(x * factor.first * factor.second, (float)ldexp((double)x, -127));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exp_is_within_one_ulp_of_every_value),
        cmocka_unit_test(test_log_is_within_one_ulp_of_every_value),
        cmocka_unit_test(test_exp_overflows_to_infinity_and_underflows_gradually),
        cmocka_unit_test(test_the_short_form_of_exp_has_the_bits_of_the_long_one),
        cmocka_unit_test(test_log_of_the_special_values),
        cmocka_unit_test(test_the_bits_of_fixed_values_stand),
        cmocka_unit_test(test_exp64_is_within_two_ulp),
        cmocka_unit_test(test_log64_is_within_two_ulp),
        cmocka_unit_test(test_sin64_and_cos64_are_within_two_ulp),
        cmocka_unit_test(test_scaling_by_a_power_of_two_brings_the_largest_to_one_two),
        cmocka_unit_test(test_scaling_down_by_two_factors_rounds_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
