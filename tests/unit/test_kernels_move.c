/* Copy, fill, add, scale and the tree over buffers; and the choice of the table. */
#include "tests/unit/kernel_cases.h"

static const int64_t sizes[] = {0, 1, 15, 16, 33, 511, 513, 40000};
enum { NSIZES = sizeof sizes / sizeof *sizes };

static void test_copy_moves_rows_and_leaves_the_gaps(void **state) {
    (void)state;
    const int64_t shape[][4] = {{3, 5, 5, 5}, {7, 3, 9, 4},         {1, 50, 60, 70},     {0, 4, 4, 4},
                                {4, 0, 1, 1}, {400, 129, 130, 140}, {300, 200, 200, 200}};
    for (size_t s = 0; s < sizeof shape / sizeof *shape; s++) {
        const int64_t rows = shape[s][0], cols = shape[s][1], ldd = shape[s][2], lds = shape[s][3];
        const Copy a = {.dst = cases_random(rows * ldd),
                        .src = cases_random(rows * lds),
                        .rows = rows,
                        .cols = cols,
                        .dst_stride = ldd,
                        .src_stride = lds};
        float *expected = cases_copy(a.dst, rows * ldd);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < cols; c++)
                expected[r * ldd + c] = a.src[r * lds + c];
        CASES_RUN(COPY, &a, CASES_OUTPUT(a.dst, expected, rows * ldd));
        cases_end();
    }
}

static void test_fill_writes_the_value_and_no_more(void **state) {
    (void)state;
    for (int s = 0; s < NSIZES; s++) {
        const Fill a = {.x = cases_random(sizes[s]), .n = sizes[s], .value = -0.0f};
        float *expected = cases_floats(sizes[s]);
        for (int64_t i = 0; i < a.n; i++)
            expected[i] = -0.0f;
        CASES_RUN(FILL, &a, CASES_OUTPUT(a.x, expected, a.n));
        cases_end();
    }
}

static void test_add_is_one_addition_also_in_place(void **state) {
    (void)state;
    for (int s = 0; s < NSIZES; s++) {
        const int64_t n = sizes[s];
        Add a = {.dst = cases_random(n), .a = cases_random(n), .b = cases_random(n), .n = n};
        float *expected = cases_floats(n);
        for (int64_t i = 0; i < n; i++)
            expected[i] = a.a[i] + a.b[i];
        CASES_RUN(ADD, &a, CASES_OUTPUT(a.dst, expected, n));
        a.dst = cases_copy(a.b, n);
        a.b = a.dst;
        CASES_RUN(ADD, &a, CASES_OUTPUT(a.dst, expected, n));
        cases_end();
    }
}

static void test_scale_is_one_multiplication(void **state) {
    (void)state;
    for (int s = 0; s < NSIZES; s++) {
        const Scale a = {.x = cases_random(sizes[s]), .n = sizes[s], .factor = -0.3f};
        float *expected = cases_floats(sizes[s]);
        for (int64_t i = 0; i < a.n; i++)
            expected[i] = a.x[i] * -0.3f;
        CASES_RUN(SCALE, &a, CASES_OUTPUT(a.x, expected, a.n));
        cases_end();
    }
}

static void check_sum_tree(int64_t n, int count, int64_t stride) {
    SumTree a = {.dst = cases_random(n),
                 .src = cases_random(stride * (count - 1) + n),
                 .n = n,
                 .stride = stride,
                 .count = count};
    float *expected = cases_floats(n);
    for (int64_t i = 0; i < n; i++)
        expected[i] = cases_tree(a.src + i, count, stride);
    CASES_RUN(SUM_TREE, &a, CASES_OUTPUT(a.dst, expected, n));
    a.dst = cases_copy(a.src, stride * (count - 1) + n);
    a.src = a.dst;
    CASES_RUN(SUM_TREE, &a, CASES_OUTPUT(a.dst, expected, n));
    cases_end();
}

static void test_sum_tree_splits_at_the_largest_power_of_two_below(void **state) {
    (void)state;
    for (int count = 1; count <= 17; count++) {
        check_sum_tree(37, count, 37);
        check_sum_tree(1100, count, 1111);
    }
    check_sum_tree(3, 1023, 5);
    check_sum_tree(3, 1024, 3);
    check_sum_tree(30000, 7, 30000);
}

/* The table of the environment, or of the processor; a unit that does not exist is refused. */
static void test_the_environment_lowers_the_table(void **state) {
    (void)state;
    const CasesTables tables = cases_tables();
    const char *before = getenv("DMUON_ISA");
    char *kept = before == NULL ? NULL : strdup(before);
    unsetenv("DMUON_ISA");
    assert_ptr_equal(kernels_cpu_select(), tables.table[tables.count - 1]);
    for (int t = 0; t < tables.count; t++) {
        setenv("DMUON_ISA", tables.table[t]->name, 1);
        assert_ptr_equal(kernels_cpu_select(), tables.table[t]);
    }
    setenv("DMUON_ISA", "avx", 1);
    assert_null(kernels_cpu_select());
    if (tables.count < 3) {
        setenv("DMUON_ISA", "avx512", 1);
        assert_null(kernels_cpu_select());
    }
    unsetenv("DMUON_ISA");
    if (kept != NULL)
        setenv("DMUON_ISA", kept, 1);
    free(kept);
}

static void test_every_table_is_whole_and_named(void **state) {
    (void)state;
    assert_string_equal(kernels_cpu_generic.name, "generic");
    assert_string_equal(kernels_cpu_avx2.name, "avx2");
    assert_string_equal(kernels_cpu_avx512.name, "avx512");
    for (int id = 0; id < KERNEL_COUNT; id++) {
        assert_non_null(kernels_cpu_generic.fn[id]);
        assert_non_null(kernels_cpu_avx2.fn[id]);
        assert_non_null(kernels_cpu_avx512.fn[id]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_copy_moves_rows_and_leaves_the_gaps),
        cmocka_unit_test(test_fill_writes_the_value_and_no_more),
        cmocka_unit_test(test_add_is_one_addition_also_in_place),
        cmocka_unit_test(test_scale_is_one_multiplication),
        cmocka_unit_test(test_sum_tree_splits_at_the_largest_power_of_two_below),
        cmocka_unit_test(test_the_environment_lowers_the_table),
        cmocka_unit_test(test_every_table_is_whole_and_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
