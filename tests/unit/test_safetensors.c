/* Safetensors: what is written reads back, what is malformed is refused with file and tensor named. */
#include "checkpoint/safetensors.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/arena.h"
#include "tests/unit/scratch_dir.h"

static StTensor tensor_of(const char *name, StDtype dtype, int ndim, int64_t d0, int64_t d1) {
    StTensor tensor = {.dtype = dtype, .ndim = ndim, .dim = {d0, d1}};
    (void)snprintf(tensor.name, sizeof tensor.name, "%s", name);
    return tensor;
}

/* Writes tensors whose element i is i * 0.5 + 1 (exact in all three dtypes for the sizes used here). */
static const char *write_sample(StTensor *tensors, int count) {
    const char *path = scratch_path(dir, "a.safetensors");
    char *header;
    int64_t header_nbytes, file_nbytes;
    assert_int_equal(st_layout(tensors, count, &header, &header_nbytes, &file_nbytes), STATUS_OK);
    FILE *file = fopen(path, "wb");
    assert_int_equal(fwrite(header, 1, (size_t)header_nbytes, file), (size_t)header_nbytes);
    for (int t = 0; t < count; t++)
        for (int64_t i = 0; i < st_numel(&tensors[t]); i++) {
            const float x = (float)i * 0.5f + 1.0f;
            unsigned char bytes[4];
            st_encode(tensors[t].dtype, &x, 1, bytes);
            const size_t size = (size_t)st_dtype_nbytes(tensors[t].dtype);
            assert_int_equal(fwrite(bytes, 1, size, file), size);
        }
    assert_int_equal(ftell(file), file_nbytes);
    fclose(file);
    heap_free(header);
    return path;
}

static void test_what_is_written_reads_back(void **state) {
    (void)state;
    StTensor tensors[] = {tensor_of("w", ST_F32, 2, 3, 5), tensor_of("empty", ST_F32, 2, 0, 7),
                          tensor_of("half \"quoted\"", ST_BF16, 1, 9, 0), tensor_of("scalar", ST_F32, 0, 0, 0)};
    const char *path = write_sample(tensors, 4);
    StFile file;
    assert_int_equal(st_open(&file, path), STATUS_OK);
    assert_int_equal(file.count, 4);
    for (int t = 0; t < 4; t++) {
        const StTensor *found = st_find(&file, tensors[t].name);
        assert_non_null(found);
        assert_int_equal(found->begin, tensors[t].begin);
        assert_int_equal(found->end, tensors[t].end);
        assert_int_equal(found->ndim, tensors[t].ndim);
        assert_int_equal(found->dtype, tensors[t].dtype);
        float value[16] = {0};
        assert_int_equal(st_read_f32(&file, found, 0, st_numel(found), value), STATUS_OK);
        for (int64_t i = 0; i < st_numel(found); i++)
            assert_true(value[i] == (float)i * 0.5f + 1.0f);
    }
    assert_null(st_find(&file, "absent"));
    assert_int_equal(st_find(&file, "w")->begin % 8, 0);
    st_close(&file);
}

static void test_a_range_reads_exactly_its_elements(void **state) {
    (void)state;
    StTensor tensors[] = {tensor_of("a", ST_BF16, 1, 100, 0), tensor_of("b", ST_F32, 2, 10, 10)};
    StFile file;
    assert_int_equal(st_open(&file, write_sample(tensors, 2)), STATUS_OK);
    for (int t = 0; t < 2; t++) {
        float value[5] = {-1, -1, -1, -1, -1};
        assert_int_equal(st_read_f32(&file, &file.tensor[t], 97, 3, value), STATUS_OK);
        assert_true(value[0] == 49.5f && value[2] == 50.5f && value[3] == -1.0f);
        assert_int_equal(st_read_f32(&file, &file.tensor[t], 100, 0, value), STATUS_OK);
    }
    st_close(&file);
}

static void test_long_half_tensors_cross_chunks(void **state) {
    (void)state;
    enum { N = 10001 };
    StTensor tensors[] = {tensor_of("long", ST_BF16, 1, N, 0)};
    char *header;
    int64_t header_nbytes, file_nbytes;
    assert_int_equal(st_layout(tensors, 1, &header, &header_nbytes, &file_nbytes), STATUS_OK);
    FILE *out = fopen(scratch_path(dir, "long.safetensors"), "wb");
    assert_int_equal(fwrite(header, 1, (size_t)header_nbytes, out), (size_t)header_nbytes);
    for (uint16_t i = 0; i < N; i++)
        assert_int_equal(fwrite(&i, 2, 1, out), 1);
    fclose(out);
    heap_free(header);
    StFile file;
    assert_int_equal(st_open(&file, scratch_path(dir, "long.safetensors")), STATUS_OK);
    static float value[N];
    assert_int_equal(st_read_f32(&file, &file.tensor[0], 0, N, value), STATUS_OK);
    for (uint16_t i = 0; i < N; i++) {
        const float expected = st_bf16_to_f32(i);
        assert_memory_equal(&value[i], &expected, 4);
    }
    st_close(&file);
}

static void test_the_header_is_the_documented_bytes(void **state) {
    (void)state;
    StTensor tensors[] = {tensor_of("w", ST_F32, 2, 2, 3)};
    char *header;
    int64_t header_nbytes, file_nbytes;
    assert_int_equal(st_layout(tensors, 1, &header, &header_nbytes, &file_nbytes), STATUS_OK);
    const char *json =
        "{\"w\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},\"__metadata__\":{\"format\":\"pt\"}}";
    uint64_t length;
    memcpy(&length, header, 8);
    assert_int_equal(length + 8, header_nbytes);
    assert_int_equal(header_nbytes % 8, 0);
    assert_memory_equal(header + 8, json, strlen(json));
    for (int64_t i = 8 + (int64_t)strlen(json); i < header_nbytes; i++)
        assert_int_equal(header[i], ' ');
    assert_int_equal(file_nbytes, header_nbytes + 24);
    heap_free(header);
}

static void test_tensors_beyond_63_bits_are_not_laid_out(void **state) {
    (void)state;
    StTensor tensors[] = {tensor_of("huge", ST_F32, 2, INT64_C(1) << 31, INT64_C(1) << 31)};
    char *header;
    int64_t header_nbytes, file_nbytes;
    assert_int_equal(st_layout(tensors, 1, &header, &header_nbytes, &file_nbytes), STATUS_CHECKPOINT);
    assert_non_null(strstr(status_trail(), "huge"));
}

/* A header text against 16 bytes of data. */
static Status parse(const char *header, int64_t data_nbytes) {
    StFile file = {.path = "dir/x.safetensors", .fd = -1};
    const Status status = st_parse(&file, header, strlen(header), 8 + (int64_t)strlen(header) + data_nbytes);
    st_close(&file);
    return status;
}

#define T(name, rest) "\"" name "\":{" rest "}"
#define GOOD T("w", "\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]")

static void test_malformed_headers_are_refused_by_name(void **state) {
    (void)state;
    const struct {
        const char *header, *names, *says;
    } cases[] = {
        {"", "x.safetensors", "'{'"},
        {" {" GOOD "}", "x.safetensors", "'{'"},
        {"{" GOOD "", "x.safetensors", ""},
        {"{" GOOD "}{", "x.safetensors", ""},
        {"{" GOOD "," GOOD "}", "x.safetensors", "w"},
        {"{\"w\":3}", "w", "no object"},
        {"{" T("w", "\"shape\":[4],\"data_offsets\":[0,16]") "}", "w", "missing"},
        {"{" T("w", "\"dtype\":\"I64\",\"shape\":[2],\"data_offsets\":[0,16]") "}", "w", "I64"},
        {"{" T("w", "\"dtype\":7,\"shape\":[4],\"data_offsets\":[0,16]") "}", "w", "dtype"},
        {"{" T("w", "\"dtype\":\"F32\",\"data_offsets\":[0,16]") "}", "w", "shape"},
        {"{" T("w", "\"dtype\":\"F32\",\"shape\":4,\"data_offsets\":[0,16]") "}", "w", "shape"},
        {"{" T("w", "\"dtype\":\"F32\",\"shape\":[-4],\"data_offsets\":[0,16]") "}", "w", "dimension 0"},
        {"{" T("w", "\"dtype\":\"F32\",\"shape\":[4.5],\"data_offsets\":[0,16]") "}", "w", "dimension 0"},
        {"{" T("w", "\"dtype\":\"F32\",\"shape\":[1,1e300],\"data_offsets\":[0,16]") "}", "w", "dimension 1"},
        {"{" T("w", "\"dtype\":\"F32\",\"shape\":[\"4\"],\"data_offsets\":[0,16]") "}", "w", "dimension 0"},
        {"{" T("w", "\"dtype\":\"F32\",\"shape\":[1,1,1,1,4],\"data_offsets\":[0,16]") "}", "w", "5 dimensions"},
        {"{" T("w", "\"dtype\":\"F32\",\"shape\":[4]") "}", "w", "data_offsets"},
        {"{" T("w", "\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0]") "}", "w", "pair"},
        {"{" T("w", "\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16,16]") "}", "w", "pair"},
        {"{" T("w", "\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[-16,0]") "}", "w", "outside"},
        {"{" T("w", "\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[16,0]") "}", "w", "outside"},
        {"{" T("w", "\"dtype\":\"F32\",\"shape\":[5],\"data_offsets\":[0,20]") "}", "w", "outside"},
        {"{" T("w", "\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,1e18]") "}", "w", "pair"},
        {"{" T("w", "\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,16]") "}", "w", "need 12 bytes"},
        {"{" T("w", "\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[0,16]") "}", "w", "need 8 bytes"},
        {"{" T("w", "\"dtype\":\"F32\",\"shape\":[2147483648,2147483648],\"data_offsets\":[0,0]") "}", "w",
         "overflows"},
        {"{" T("w", "\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16],\"more\":1") "}", "w", "besides"},
        {"{" T("w", "\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]") "}", "x.safetensors", "end at byte 12"},
        {"{" T("w", "\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[4,16]") "}", "w", "gap"},
        {"{" T("v", "\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]") "," T(
             "w", "\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]") "}",
         "w", "overlap"},
        {"{" T("", "\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]") "}", "x.safetensors", "empty name"},
        {"{" GOOD ",\"__metadata__\":3}", "x.safetensors", "__metadata__"},
        {"{" GOOD ",\"__metadata__\":{\"a\":1}}", "x.safetensors", "__metadata__"},
        {"["
         "]",
         "x.safetensors", "'{'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (parse(cases[i].header, 16) != STATUS_CHECKPOINT)
            fail_msg("accepted: %s", cases[i].header);
        if (strstr(status_trail(), "dir/x.safetensors") == NULL || strstr(status_trail(), cases[i].names) == NULL ||
            strstr(status_trail(), cases[i].says) == NULL)
            fail_msg("header %s\nmessage %s\nlacks %s or %s", cases[i].header, status_trail(), cases[i].names,
                     cases[i].says);
    }
    assert_int_equal(parse("{" GOOD "}   ", 16), STATUS_OK);
    assert_int_equal(parse("{" GOOD ",\"__metadata__\":{\"format\":\"pt\"}}", 16), STATUS_OK);
    assert_int_equal(parse("{}", 0), STATUS_OK);
}

static void test_header_order_need_not_be_data_order(void **state) {
    (void)state;
    const char *header = "{" T("b", "\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]") "," T(
        "a", "\"dtype\":\"F16\",\"shape\":[4],\"data_offsets\":[0,8]") "," T("z", "\"dtype\":\"F16\",\"shape\":[0],"
                                                                                  "\"data_offsets\":[8,8]") "}";
    StFile file = {.path = "x", .fd = -1};
    assert_int_equal(st_parse(&file, header, strlen(header), 8 + (int64_t)strlen(header) + 16), STATUS_OK);
    assert_string_equal(file.tensor[0].name, "a");
    assert_string_equal(file.tensor[2].name, "b");
    assert_int_equal(file.tensor[2].begin, 8 + (int64_t)strlen(header) + 8);
    st_close(&file);
}

static void test_a_name_of_160_bytes_is_refused_and_159_is_not(void **state) {
    (void)state;
    for (int n = 159; n <= 160; n++) {
        char name[161] = {0}, header[400];
        memset(name, 'n', (size_t)n);
        (void)snprintf(header, sizeof header, "{\"%s\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}",
                       name);
        assert_int_equal(parse(header, 16), n == 159 ? STATUS_OK : STATUS_CHECKPOINT);
    }
}

static void test_lengths_that_lie_are_refused(void **state) {
    (void)state;
    const uint64_t lengths[] = {0, 1, 9, 1u << 30, UINT64_C(1) << 63, UINT64_MAX, UINT64_MAX - 7};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        unsigned char bytes[16] = {0};
        memcpy(bytes, &lengths[i], 8);
        memcpy(bytes + 8, "{}      ", 8);
        const char *path = scratch_path(dir, "lie.safetensors");
        scratch_write_bytes(path, bytes, 16);
        StFile file;
        assert_int_equal(st_open(&file, path), STATUS_CHECKPOINT);
        assert_non_null(strstr(status_trail(), "lie.safetensors"));
        assert_int_equal(file.fd, -1);
    }
    StFile file = {.path = "x", .fd = -1};
    assert_int_equal(st_parse(&file, "{}", 2, 9), STATUS_CHECKPOINT);
    assert_non_null(strstr(status_trail(), "the header claims 2 bytes"));
    scratch_write_bytes(scratch_path(dir, "short"), "1234567", 7);
    assert_int_equal(st_open(&file, scratch_path(dir, "short")), STATUS_CHECKPOINT);
    assert_int_equal(st_open(&file, scratch_path(dir, "nowhere")), STATUS_CHECKPOINT);
    assert_non_null(strstr(status_trail(), "No such file"));
    assert_int_equal(st_open(&file, dir), STATUS_CHECKPOINT);
}

static void test_a_truncated_file_is_refused(void **state) {
    (void)state;
    StTensor tensors[] = {tensor_of("w", ST_F32, 2, 3, 5)};
    const char *path = write_sample(tensors, 1);
    for (int64_t cut = 1; cut <= tensors[0].end; cut += 7) {
        assert_int_equal(truncate(path, tensors[0].end - cut), 0);
        StFile file;
        assert_int_equal(st_open(&file, path), STATUS_CHECKPOINT);
    }
}

static void test_mutated_headers_never_break_the_reader(void **state) {
    (void)state;
    const char *good = "{" GOOD "," T("v", "\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[16,24]") "}";
    char header[256];
    uint32_t random = 12345;
    for (int trial = 0; trial < 20000; trial++) {
        size_t n = strlen(good);
        memcpy(header, good, n + 1);
        for (int k = 0; k < 1 + trial % 3; k++) {
            random = random * 1664525u + 1013904223u;
            header[(random >> 8) % n] = "0123456789,:[]{}\"eE+-.\\u \x80"[(random >> 24) % 26];
        }
        StFile file = {.path = "x", .fd = -1};
        if (st_parse(&file, header, n, 8 + (int64_t)n + 24) == STATUS_OK)
            for (int t = 0; t < file.count; t++)
                assert_true(file.tensor[t].begin >= 8 && file.tensor[t].end <= 8 + (int64_t)n + 24 &&
                            st_numel(&file.tensor[t]) >= 0);
        st_close(&file);
    }
}

static uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

static void test_every_f16_value_is_exact(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        const float got = st_f16_to_f32((uint16_t)h);
        const int exponent = (int)(h >> 10 & 0x1f), mantissa = (int)(h & 0x3ff);
        double expected; /* the definition of binary16, in binary64 */
        if (exponent == 0x1f)
            expected = mantissa != 0 ? (double)NAN : (double)INFINITY;
        else if (exponent == 0)
            expected = ldexp(mantissa, -24);
        else
            expected = ldexp(1024 + mantissa, exponent - 25);
        if (h & 0x8000)
            expected = -expected;
        if (isnan(expected))
            assert_true(isnan(got));
        else
            assert_int_equal(bits_of(got), bits_of((float)expected));
        assert_int_equal(bits_of(got) >> 31, h >> 15);
    }
    assert_int_equal(bits_of(st_f16_to_f32(0x0001)), 0x33800000u); /* 2^-24  */
    assert_int_equal(bits_of(st_f16_to_f32(0x3c00)), 0x3f800000u); /* 1      */
    assert_int_equal(bits_of(st_f16_to_f32(0x7bff)), 0x477fe000u); /* 65504  */
}

static void test_every_bf16_value_survives_f32(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        const float x = st_bf16_to_f32((uint16_t)h);
        assert_int_equal(bits_of(x), h << 16);
        const uint16_t back = st_f32_to_bf16(x);
        assert_int_equal(back, (h & 0x7fff) > 0x7f80 ? (h | 0x40) : h); /* a NaN becomes quiet */
    }
}

static void test_bf16_rounds_to_nearest_even(void **state) {
    (void)state;
    const struct {
        uint32_t bits;
        uint16_t expected;
    } cases[] = {
        {0x3f800000u, 0x3f80}, {0x3f807fffu, 0x3f80}, {0x3f808000u, 0x3f80}, /* a tie, even below */
        {0x3f808001u, 0x3f81}, {0x3f818000u, 0x3f82},                        /* a tie, even above */
        {0x3f817fffu, 0x3f81}, {0x7f7fffffu, 0x7f80},                        /* overflows to infinity */
        {0xff7f7fffu, 0xff7f}, {0x00008000u, 0x0000}, {0x00008001u, 0x0001},
        {0x80000000u, 0x8000}, {0x7f800001u, 0x7fc0}, {0xffffffffu, 0xffff},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        float x;
        memcpy(&x, &cases[i].bits, 4);
        assert_int_equal(st_f32_to_bf16(x), cases[i].expected);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_what_is_written_reads_back, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_a_range_reads_exactly_its_elements, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_long_half_tensors_cross_chunks, make_dir, remove_dir),
        cmocka_unit_test(test_the_header_is_the_documented_bytes),
        cmocka_unit_test(test_tensors_beyond_63_bits_are_not_laid_out),
        cmocka_unit_test(test_malformed_headers_are_refused_by_name),
        cmocka_unit_test(test_header_order_need_not_be_data_order),
        cmocka_unit_test(test_a_name_of_160_bytes_is_refused_and_159_is_not),
        cmocka_unit_test_setup_teardown(test_lengths_that_lie_are_refused, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_a_truncated_file_is_refused, make_dir, remove_dir),
        cmocka_unit_test(test_mutated_headers_never_break_the_reader),
        cmocka_unit_test(test_every_f16_value_is_exact),
        cmocka_unit_test(test_every_bf16_value_survives_f32),
        cmocka_unit_test(test_bf16_rounds_to_nearest_even),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
