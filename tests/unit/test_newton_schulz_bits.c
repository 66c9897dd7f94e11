/* Newton-Schulz bit by bit: the sequence of README, "Numerics", written out in scalar binary32, and what must not move
 * a bit. */
#include "optim/newton_schulz.h"

#include "tests/unit/bits.h"

#include "tests/fixtures/newton_schulz.h"

enum { SIDE = 64, AREA = SIDE * SIDE };

static Device *device;
static Stream *stream;

static const int64_t shapes[][2] = {{8, 16}, {16, 8}, {8, 8}, {16, 64}, {64, 16}, {64, 64}, {40, 56}, {56, 40}};
static const int64_t uneven[][2] = {{4, 6}, {1, 1}, {1, 9}, {9, 1}, {33, 47}, {47, 33}, {5, 64}};
enum { NSHAPES = sizeof shapes / sizeof *shapes, NUNEVEN = sizeof uneven / sizeof *uneven };

static void run(const NsPlan *plan, const float *x, float *out) {
    assert_true(ns_run_on_copy(plan, stream, x, out));
}

static NsPlan plan_of(NsAlgorithm algorithm, int64_t out, int64_t in) {
    const NsConfig config = ns_default_config(algorithm);
    return ns_plan(&config, out, in, -1, 1);
}

static void fill(float *x, int64_t out, int64_t in) {
    for (int64_t i = 0; i < out * in; i++)
        x[i] = (float)(ns_input(i / in, i % in, 0) * 0.01);
}

/* ---- the sequence, with matrices transposed in memory ---- */

static double tree_f64(const double *x, int64_t n) {
    int64_t half = 1;
    if (n == 1)
        return x[0];
    while (2 * half < n)
        half *= 2;
    return tree_f64(x, half) + tree_f64(x + half, n - half);
}

static double lane_squares(const float *x, int64_t n) {
    double lane[32] = {0};
    for (int64_t i = 0; i < n; i++)
        lane[i % 32] = fma((double)x[i], (double)x[i], lane[i % 32]);
    for (int width = 16; width >= 1; width /= 2)
        for (int l = 0; l < width; l++)
            lane[l] += lane[l + width];
    return lane[0];
}

static double sum_squares(const NsPlan *plan, const float *x) {
    double sums[64], rows[SIDE];
    const int S = plan->tp_dim < 0 ? 1 : plan->segments;
    const int64_t part = (plan->out + S - 1) / S; /* rows of a segment; the last ones may be short or empty */
    const int64_t width = plan->tp_dim == 1 ? plan->in / S : plan->in;
    for (int s = 0; s < S; s++) {
        const int64_t first = plan->tp_dim == 1 ? 0 : s * part;
        const int64_t last = plan->tp_dim == 1 || first + part > plan->out ? plan->out : first + part;
        for (int64_t r = first; r < last; r++)
            rows[r - first] = lane_squares(x + r * plan->in + (plan->tp_dim == 1 ? s * width : 0), width);
        sums[s] = last > first ? tree_f64(rows, last - first) : 0;
    }
    return tree_f64(sums, S);
}

/* c [m,n]: S chains over k/S each, rounded up, and their tree (S a power of two); `lower`: elements i >= j, the rest
 * copies. */
typedef struct Product {
    int64_t m, n, k;
    int S;
    bool trans_b, lower;
} Product;

static void multiply(float *c, const float *a, const float *b, Product p) {
    float part[64];
    const int64_t segment = (p.k + p.S - 1) / p.S;
    for (int64_t i = 0; i < p.m; i++)
        for (int64_t j = 0; j < (p.lower ? i + 1 : p.n); j++) {
            for (int s = 0; s < p.S; s++) {
                part[s] = 0;
                for (int64_t x = s * segment; x < (s + 1) * segment && x < p.k; x++)
                    part[s] = fmaf(a[i * p.k + x], p.trans_b ? b[j * p.k + x] : b[x * p.n + j], part[s]);
            }
            for (int width = p.S / 2; width >= 1; width /= 2)
                for (int s = 0; s < width; s++)
                    part[s] = part[2 * s] + part[2 * s + 1];
            c[i * p.n + j] = part[0];
            if (p.lower)
                c[j * p.n + i] = part[0];
        }
}

static void spell_gram(const NsPlan *plan, float *x) {
    static float r[AREA], z[AREA], q[AREA], rz[AREA], t[AREA], y[AREA];
    const int64_t m = plan->m, n = plan->n;
    const Product gram = {m, m, n, plan->gram_segmented ? plan->segments : 1, true, true};
    const Product symmetric = {m, m, m, 1, false, true}, full = {m, m, m, 1, false, false};
    for (int i = 0; i <= plan->steps; i++) {
        const bool fresh = i == 0 || plan->restart[i];
        if (i == plan->steps || (i > 0 && fresh)) {
            multiply(y, q, x, (Product){m, n, m, 1, false, false});
            memcpy(x, y, (size_t)(m * n) * sizeof *x);
        }
        if (i == plan->steps)
            return;
        const float a = (float)plan->coef[i][0], b = (float)plan->coef[i][1], c = (float)plan->coef[i][2];
        if (fresh)
            multiply(r, x, x, gram);
        multiply(z, r, r, symmetric);
        for (int64_t e = 0; e < m * m; e++)
            z[e] = fmaf(c, z[e], b * r[e]);
        if (!fresh)
            multiply(t, q, z, full);
        for (int64_t e = 0; e < m * m; e++)
            q[e] = !fresh ? fmaf(a, q[e], t[e]) : e % (m + 1) == 0 ? z[e] + a : z[e];
        multiply(rz, r, z, symmetric);
        for (int64_t e = 0; e < m * m; e++)
            t[e] = fmaf(a, r[e], rz[e]);
        multiply(r, z, t, symmetric);
        for (int64_t e = 0; e < m * m; e++)
            r[e] = fmaf(a, t[e], r[e]);
    }
}

static void spell_direct(const NsPlan *plan, float *x) {
    static float a[AREA], b[AREA], y[AREA];
    const int64_t m = plan->m, n = plan->n;
    for (int i = 0; i < plan->steps; i++) {
        const float *coef = (float[3]){(float)plan->coef[i][0], (float)plan->coef[i][1], (float)plan->coef[i][2]};
        multiply(a, x, x, (Product){m, m, n, plan->gram_segmented ? plan->segments : 1, true, true});
        multiply(b, a, a, (Product){m, m, m, 1, false, true});
        for (int64_t e = 0; e < m * m; e++)
            b[e] = fmaf(coef[2], b[e], coef[1] * a[e]);
        multiply(y, b, x, (Product){m, n, m, 1, false, false});
        for (int64_t e = 0; e < m * n; e++)
            x[e] = fmaf(coef[0], x[e], y[e]);
    }
}

static void spell(const NsPlan *plan, const float *x, float *out) {
    static float y[AREA], oriented[AREA];
    const int64_t n = plan->out * plan->in;
    float largest = 0;
    for (int64_t e = 0; e < n; e++)
        largest = fmaxf(largest, fabsf(x[e]));
    for (int64_t e = 0; e < n; e++)
        y[e] = (float)ldexp((double)x[e], -ilogbf(largest));
    const float norm = (float)sqrt(sum_squares(plan, y));
    for (int64_t e = 0; e < n; e++)
        oriented[plan->transposed ? e % plan->in * plan->n + e / plan->in : e] = y[e] / norm;
    if (plan->gram)
        spell_gram(plan, oriented);
    else
        spell_direct(plan, oriented);
    for (int64_t e = 0; e < n; e++)
        out[e] = oriented[plan->transposed ? e % plan->in * plan->n + e / plan->in : e];
}

/* ---- tests ---- */

static void check_sequence(const NsConfig *config, const int64_t shape[2], int tp_dim, int segments) {
    static float x[AREA], want[AREA], result[AREA];
    const NsPlan plan = ns_plan(config, shape[0], shape[1], tp_dim, segments);
    fill(x, shape[0], shape[1]);
    spell(&plan, x, want);
    run(&plan, x, result);
    assert_bits_equal_f32(result, want, shape[0] * shape[1], plan.gram ? "gram" : "direct");
}

static void test_every_bit_follows_the_sequence(void **state) {
    (void)state;
    for (int gram = 0; gram < 2; gram++) {
        const NsConfig config = ns_default_config(gram ? NS_GRAM : NS_DIRECT);
        for (int i = 0; i < NSHAPES; i++)
            for (int tp_dim = -1; tp_dim <= 1; tp_dim++)
                for (int segments = 1; segments <= 8; segments *= 2)
                    check_sequence(&config, shapes[i], tp_dim, segments);
        for (int i = 0; i < NUNEVEN; i++)
            check_sequence(&config, uneven[i], -1, 1);
    }
}

/* Muon on a vocabulary of 61 rows, stored as 64, or of 33, stored as 40: oriented both ways. */
static void test_short_and_empty_segments_follow_the_sequence(void **state) {
    (void)state;
    for (int gram = 0; gram < 2; gram++) {
        const NsConfig config = ns_default_config(gram ? NS_GRAM : NS_DIRECT);
        check_sequence(&config, (int64_t[2]){61, 16}, 0, 8);
        check_sequence(&config, (int64_t[2]){33, 16}, 0, 8);
        check_sequence(&config, (int64_t[2]){33, 40}, 0, 8);
    }
}

static void test_every_restart_follows_the_sequence(void **state) {
    (void)state;
    const int restarts[][4] = {{0}, {1, 1}, {2, 1, 2}, {2, 3, 4}, {3, 1, 2, 4}}; /* count, then where */
    for (size_t k = 0; k < sizeof restarts / sizeof *restarts; k++) {
        NsConfig config = ns_default_config(NS_GRAM);
        config.restart_count = restarts[k][0];
        for (int i = 0; i < restarts[k][0]; i++)
            config.restarts[i] = restarts[k][1 + i];
        for (config.steps = 1; config.steps <= 6; config.steps++) {
            check_sequence(&config, (int64_t[2]){16, 40}, 1, 4);
            check_sequence(&config, (int64_t[2]){40, 16}, 0, 4);
        }
    }
}

/* Wide spread of magnitudes, so that the order of a sum is visible in its last bits. */
static void test_sums_of_squares_keep_the_stored_orientation(void **state) {
    (void)state;
    static float x[AREA], y[AREA], result[AREA];
    const NsConfig config = ns_default_config(NS_GRAM);
    for (int i = 0; i < NSHAPES; i++)
        for (int tp_dim = -1; tp_dim <= 1; tp_dim++) {
            const NsPlan plan = ns_plan(&config, shapes[i][0], shapes[i][1], tp_dim, 8);
            const int64_t n = plan.out * plan.in;
            float *scratch = ns_floats(ns_scratch_nelem(&plan, 1)), largest = 0;
            for (int64_t e = 0; e < n; e++) {
                x[e] = (float)(ns_input(e / plan.in, e % plan.in, 0) * exp2(-(double)(e * 37 % 11)));
                largest = fmaxf(largest, fabsf(x[e]));
            }
            memcpy(result, x, (size_t)n * sizeof *x);
            ns_run_one(&plan, stream, result, scratch);
            for (int64_t e = 0; e < n; e++)
                y[e] = ldexpf(x[e], -ilogbf(largest));
            const int S = tp_dim < 0 ? 1 : 8;
            const double sum = tree_f64((const double *)(const void *)(scratch + NS_SUMSQ_OFFSET), S);
            const double want = sum_squares(&plan, y);
            assert_bits_equal_f64(&sum, &want, 1, "sum of squares");
            assert_true(scratch[0] == largest);
            free(scratch);
        }
}

/* Matrices of one shape, cut along dimension -1, 0, 1, -1, ..., which lie apart and end in rows of zeros. */
static void check_batch(const NsConfig *config, int64_t out, int64_t in, int count) {
    enum { MOST = 5, PAD = 8 * SIDE };
    NsPlan plan[MOST];
    const NsPlan *plans[MOST];
    float *x[MOST], want[AREA];
    const int64_t n = out * in;
    for (int i = 0; i < count; i++) {
        plan[i] = ns_plan(config, out, in, (i + 1) % 3 - 1, 8);
        plans[i] = &plan[i];
        x[i] = ns_floats(n + PAD);
        for (int64_t e = 0; e < n; e++)
            x[i][e] = (float)(ns_input(e / in, e % in, i) * exp2(3 * i - (double)(e * 37 % 11)));
    }
    const int64_t nscratch = ns_scratch_nelem(&plan[0], count);
    float *scratch = ns_floats(nscratch + 16);
    for (int64_t e = 0; e < nscratch + 16; e++)
        scratch[e] = e < nscratch ? NAN : 12345.0F;
    ns_run(&(NsBatch){.count = count, .plan = plans, .x = x}, stream, scratch);
    for (int64_t e = nscratch; e < nscratch + 16; e++)
        assert_true(scratch[e] == 12345.0F);
    for (int i = 0; i < count; i++) {
        static float alone[AREA];
        for (int64_t e = 0; e < n; e++)
            alone[e] = (float)(ns_input(e / in, e % in, i) * exp2(3 * i - (double)(e * 37 % 11)));
        run(&plan[i], alone, want);
        assert_bits_equal_f32(x[i], want, n, plan[i].gram ? "gram" : "direct");
        for (int64_t e = n; e < n + PAD; e++)
            assert_true(x[i][e] == 0.0F);
        free(x[i]);
    }
    free(scratch);
}

static void test_a_batch_gives_each_matrix_the_bits_that_it_has_alone(void **state) {
    (void)state;
    for (int kind = 0; kind < 6; kind++) {
        NsConfig config = ns_default_config(kind % 2 == 0 ? NS_GRAM : NS_DIRECT);
        config.restart_count = kind / 2; /* the number of factors that are applied: even, odd */
        config.restarts[1] = 4;
        for (int count = 1; count <= 5; count++) {
            for (int i = 0; i < NSHAPES; i++)
                check_batch(&config, shapes[i][0], shapes[i][1], count);
            for (int i = 0; i < NUNEVEN; i++)
                check_batch(&config, uneven[i][0], uneven[i][1], count);
        }
    }
}

static void test_a_single_matrix_takes_no_room_for_a_batch(void **state) {
    (void)state;
    const NsPlan gram = plan_of(NS_GRAM, 16, 64), direct = plan_of(NS_DIRECT, 16, 64);
    const int64_t head = ns_scratch_nelem(&gram, 1) - 4 * 16 * 16 - 16 * 64;
    assert_int_equal(ns_scratch_nelem(&direct, 1), head + 2 * 16 * 16 + 16 * 64);
    assert_int_equal(ns_scratch_nelem(&gram, 3), head + 3 * (4 * 16 * 16 + 2 * 16 * 64));
    assert_int_equal(ns_scratch_nelem(&direct, 3), head + 3 * (2 * 16 * 16 + 2 * 16 * 64));
}

static void test_segments_are_part_of_the_identity(void **state) {
    (void)state;
    static float x[AREA], one[AREA], eight[AREA];
    const NsConfig config = ns_default_config(NS_GRAM);
    const NsPlan plan_1 = ns_plan(&config, 16, 64, 1, 1), plan_8 = ns_plan(&config, 16, 64, 1, 8);
    fill(x, 16, 64);
    run(&plan_1, x, one);
    run(&plan_8, x, eight);
    assert_memory_not_equal(one, eight, 16 * 64 * sizeof *one);
}

static void test_threads_do_not_move_a_bit(void **state) {
    (void)state;
    static float x[AREA], want[AREA], result[AREA];
    Device *many;
    Stream *stream_of_many = ns_stream(&many, 4);
    for (int i = 0; i < NSHAPES; i++)
        for (int gram = 0; gram < 2; gram++) {
            const NsPlan plan = plan_of(gram ? NS_GRAM : NS_DIRECT, shapes[i][0], shapes[i][1]);
            fill(x, plan.out, plan.in);
            run(&plan, x, want);
            assert_true(ns_run_on_copy(&plan, stream_of_many, x, result));
            assert_bits_equal_f32(result, want, plan.out * plan.in, "four threads");
        }
    device_destroy(many);
}

static void test_zero_stays_zero(void **state) {
    (void)state;
    static const float zero[AREA];
    for (int i = 0; i < NSHAPES; i++)
        for (int gram = 0; gram < 2; gram++) {
            static float result[AREA];
            const NsPlan plan = plan_of(gram ? NS_GRAM : NS_DIRECT, shapes[i][0], shapes[i][1]);
            run(&plan, zero, result);
            for (int64_t e = 0; e < plan.out * plan.in; e++)
                assert_true(result[e] == 0.0F);
        }
    const NsPlan empty = plan_of(NS_GRAM, 0, 5);
    ns_run_one(&empty, stream, NULL, NULL);
}

static void test_powers_of_two_do_not_matter(void **state) {
    (void)state;
    static float x[AREA], y[AREA], want[AREA], result[AREA];
    for (int i = 0; i < NSHAPES; i++)
        for (int gram = 0; gram < 2; gram++) {
            const NsPlan plan = plan_of(gram ? NS_GRAM : NS_DIRECT, shapes[i][0], shapes[i][1]);
            const int64_t n = plan.out * plan.in;
            for (int64_t e = 0; e < n; e++) /* 8 bits: exact down to 2^-140 */
                x[e] = (float)((e * 7919 + 13) % 255 - 127);
            run(&plan, x, want);
            const int exponents[] = {1, 20, 100, 120, -20, -100, -140, -149};
            for (size_t k = 0; k < sizeof exponents / sizeof *exponents; k++) {
                for (int64_t e = 0; e < n; e++)
                    y[e] = ldexpf(x[e], exponents[k]);
                run(&plan, y, result);
                assert_bits_equal_f32(result, want, n, "scaled");
            }
        }
}

/* Integers: the sum of squares is exact in either orientation. */
static void test_transposed_input_gives_transposed_output(void **state) {
    (void)state;
    static float x[AREA], xt[AREA], o[AREA], ot[AREA], want[AREA];
    const int64_t pairs[][2] = {{4, 6}, {16, 64}, {33, 47}, {1, 9}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        for (int gram = 0; gram < 2; gram++) {
            const int64_t m = pairs[i][0], n = pairs[i][1];
            const NsPlan plan = plan_of(gram ? NS_GRAM : NS_DIRECT, m, n);
            const NsPlan plan_t = plan_of(gram ? NS_GRAM : NS_DIRECT, n, m);
            for (int64_t e = 0; e < m * n; e++)
                xt[e % n * m + e / n] = x[e] = (float)((e * 7919 + 13) % 255 - 127);
            run(&plan, x, o);
            run(&plan_t, xt, ot);
            for (int64_t e = 0; e < m * n; e++)
                want[e % n * m + e / n] = o[e];
            assert_bits_equal_f32(ot, want, m * n, "transposed");
        }
}

static int open_device(void **state) {
    (void)state;
    stream = ns_stream(&device, 1);
    return 0;
}

static int close_device(void **state) {
    (void)state;
    device_destroy(device);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_bit_follows_the_sequence),
        cmocka_unit_test(test_short_and_empty_segments_follow_the_sequence),
        cmocka_unit_test(test_every_restart_follows_the_sequence),
        cmocka_unit_test(test_sums_of_squares_keep_the_stored_orientation),
        cmocka_unit_test(test_a_batch_gives_each_matrix_the_bits_that_it_has_alone),
        cmocka_unit_test(test_a_single_matrix_takes_no_room_for_a_batch),
        cmocka_unit_test(test_segments_are_part_of_the_identity),
        cmocka_unit_test(test_threads_do_not_move_a_bit),
        cmocka_unit_test(test_zero_stays_zero),
        cmocka_unit_test(test_powers_of_two_do_not_matter),
        cmocka_unit_test(test_transposed_input_gives_transposed_output),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
