/* The checks before kernels: legal arguments pass and reach the kernel, illegal ones are a bug. Element types. */
#include "tensor/ops.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "tensor/dtype.h"
#include "tests/unit/death.h"

static Device *device;
static Stream *compute;
static float x[64], y[64], z[64];

static int open_device(void **state) {
    (void)state;
    if (device_create(&device, &(DeviceOptions){.name = "cpu", .threads = 1}) != STATUS_OK)
        return -1;
    compute = device_stream(device, STREAM_COMPUTE);
    return 0;
}

static int close_device(void **state) {
    (void)state;
    device_destroy(device);
    return 0;
}

static void test_a_checked_launch_runs_the_kernel(void **state) {
    (void)state;
    ops_fill(compute, (Fill){.x = x, .n = 64, .value = 3.0f});
    ops_fill(compute, (Fill){.x = y, .n = 64, .value = 4.0f});
    ops_add(compute, (Add){.dst = z, .a = x, .b = y, .n = 64});
    for (int i = 0; i < 64; i++)
        assert_true(z[i] == 7.0f);
}

static void test_a_checked_product_is_the_product(void **state) {
    (void)state;
    for (int i = 0; i < 6; i++) {
        x[i] = (float)(i + 1);
        y[i] = (float)(2 * i);
    }
    /* [2,3] times [3,2] */
    ops_gemm(compute, (Gemm){.m = 2,
                             .n = 2,
                             .nparts = 1,
                             .nsegments = 1,
                             .c = z,
                             .ldc = 2,
                             .part[0] = {.a = x, .b = y, .lda = 3, .ldb = 2, .k = 3}});
    assert_true(z[0] == 32.0f && z[1] == 44.0f && z[2] == 68.0f && z[3] == 98.0f);
}

static void test_nothing_is_legal_without_pointers(void **state) {
    (void)state;
    ops_fill(compute, (Fill){.n = 0});
    ops_add(compute, (Add){.n = 0});
    ops_gemm(compute, (Gemm){.m = 0, .n = 4, .nparts = 1, .nsegments = 1, .ldc = 4, .part[0] = {.k = 0}});
}

static void fill_without_pointer(void *arg) {
    (void)arg;
    ops_fill(compute, (Fill){.n = 1});
}

static void negative_length(void *arg) {
    (void)arg;
    ops_scale(compute, (Scale){.x = x, .n = -1});
}

static void narrow_leading_dimension(void *arg) {
    (void)arg;
    ops_gemm(compute, (Gemm){.m = 2,
                             .n = 2,
                             .nparts = 1,
                             .nsegments = 1,
                             .c = z,
                             .ldc = 2,
                             .part[0] = {.a = x, .b = y, .lda = 2, .ldb = 2, .k = 3}});
}

static void three_segments(void *arg) {
    (void)arg;
    ops_gemm(compute, (Gemm){.m = 2,
                             .n = 2,
                             .nparts = 1,
                             .nsegments = 3,
                             .c = z,
                             .ldc = 2,
                             .part[0] = {.a = x, .b = y, .lda = 3, .ldb = 2, .k = 3, .segment = 1}});
}

static void odd_heads(void *arg) {
    (void)arg;
    ops_attention_forward(compute, (AttentionForward){.B = 1,
                                                      .T = 1,
                                                      .H = 3,
                                                      .K = 2,
                                                      .D = 2,
                                                      .q_stride = 6,
                                                      .o_stride = 6,
                                                      .kv_stride = 4,
                                                      .q = x,
                                                      .k = x,
                                                      .v = x,
                                                      .o = y,
                                                      .max = z,
                                                      .sum = z});
}

static void test_illegal_arguments_are_a_bug(void **state) {
    (void)state;
    static const struct {
        void (*body)(void *arg);
        const char *says;
    } row[] = {{fill_without_pointer, "given(a->x"},
               {negative_length, "a->n >= 0"},
               {narrow_leading_dimension, "p->lda"},
               {three_segments, "nsegments"},
               {odd_heads, "a->H % a->K"}};
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        char text[512];
        assert_int_equal(death_run(row[i].body, NULL, text, sizeof text), 6);
        if (strstr(text, row[i].says) == NULL)
            fail_msg("'%s' does not say '%s'", text, row[i].says);
    }
}

static void test_element_types_know_their_size_and_name(void **state) {
    (void)state;
    static const struct {
        Dtype dtype;
        size_t nbytes;
        const char *name;
    } row[] = {{DTYPE_F32, 4, "f32"}, {DTYPE_F64, 8, "f64"}, {DTYPE_U64, 8, "u64"},
               {DTYPE_I32, 4, "i32"}, {DTYPE_U8, 1, "u8"},   {DTYPE_BF16, 2, "bf16"}};
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        assert_int_equal(dtype_nbytes(row[i].dtype), row[i].nbytes);
        assert_string_equal(dtype_name(row[i].dtype), row[i].name);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_checked_launch_runs_the_kernel),
        cmocka_unit_test(test_a_checked_product_is_the_product),
        cmocka_unit_test(test_nothing_is_legal_without_pointers),
        cmocka_unit_test(test_illegal_arguments_are_a_bug),
        cmocka_unit_test(test_element_types_know_their_size_and_name),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
