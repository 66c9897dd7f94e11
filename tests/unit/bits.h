/* Comparisons of float arrays for cmocka that say where they differ, with both values and their bits. */
#ifndef DMUON_TESTS_BITS_H
#define DMUON_TESTS_BITS_H

/* cmocka.h wants these before it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

/* Every bit of a [n] is that of b [n]; -0 is not +0, and a NaN equals the same NaN. Prints up to 8 differences. */
#define assert_bits_equal_f32(a, b, n, what) bits_equal_f32((a), (b), (size_t)(n), (what), __FILE__, __LINE__)
#define assert_bits_equal_f64(a, b, n, what) bits_equal_f64((a), (b), (size_t)(n), (what), __FILE__, __LINE__)
/* ||a - b|| <= tol * ||b|| in binary64 over [n] f32, b the reference; everything finite. */
#define assert_near_norm(a, b, n, tol, what) near_norm((a), (b), (size_t)(n), (tol), (what), __FILE__, __LINE__)

enum { BITS_SHOWN = 8 };

static inline uint32_t bits_of_f32(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline uint64_t bits_of_f64(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* Prints how many differ and fails the test, if any do. */
static inline void bits_verdict(size_t wrong, size_t n, const char *what, const char *file, int line) {
    if (wrong == 0)
        return;
    print_error("%s: %zu of %zu elements differ\n", what, wrong, n);
    _fail(file, line);
}

static inline void bits_equal_f32(const float *a, const float *b, size_t n, const char *what, const char *file,
                                  int line) {
    size_t wrong = 0;
    for (size_t i = 0; i < n; i++) {
        if (bits_of_f32(a[i]) == bits_of_f32(b[i]))
            continue;
        if (wrong++ < BITS_SHOWN)
            print_error("%s[%zu]: %.9g (%08" PRIx32 ") is not %.9g (%08" PRIx32 ")\n", what, i, (double)a[i],
                        bits_of_f32(a[i]), (double)b[i], bits_of_f32(b[i]));
    }
    bits_verdict(wrong, n, what, file, line);
}

static inline void bits_equal_f64(const double *a, const double *b, size_t n, const char *what, const char *file,
                                  int line) {
    size_t wrong = 0;
    for (size_t i = 0; i < n; i++) {
        if (bits_of_f64(a[i]) == bits_of_f64(b[i]))
            continue;
        if (wrong++ < BITS_SHOWN)
            print_error("%s[%zu]: %.17g (%016" PRIx64 ") is not %.17g (%016" PRIx64 ")\n", what, i, a[i],
                        bits_of_f64(a[i]), b[i], bits_of_f64(b[i]));
    }
    bits_verdict(wrong, n, what, file, line);
}

static inline void near_norm(const float *a, const float *b, size_t n, double tol, const char *what, const char *file,
                             int line) {
    double difference = 0;
    double reference = 0;
    double largest = 0;
    size_t worst = 0;
    for (size_t i = 0; i < n; i++) {
        const double d = (double)a[i] - (double)b[i];
        difference += d * d;
        reference += (double)b[i] * (double)b[i];
        if (fabs(d) > largest || (isnan(d) && !isnan(largest))) {
            worst = i;
            largest = fabs(d);
        }
    }
    if (sqrt(difference) <= tol * sqrt(reference))
        return;
    print_error("%s: relative error %.3g in norm is above %.3g (n %zu, norm %.9g); worst [%zu]: %.9g (%08" PRIx32
                ") against %.9g (%08" PRIx32 ")\n",
                what, sqrt(difference) / sqrt(reference), tol, n, sqrt(reference), worst, (double)a[worst],
                bits_of_f32(a[worst]), (double)b[worst], bits_of_f32(b[worst]));
    _fail(file, line);
}

#endif
