/* Writing safetensors files, and the element types: conversions between them work on bits, so that no rounding mode or
 * flush-to-zero setting can touch them. */
#include "checkpoint/safetensors.h"

#include <stdbool.h>
#include <string.h>

#include "base/fatal.h"
#include "base/json.h"
#include "base/str.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files are little-endian and read without swapping");

static const struct {
    const char *name;
    int64_t nbytes;
} st_dtypes[] = {[ST_F32] = {"F32", 4}, [ST_BF16] = {"BF16", 2}, [ST_F16] = {"F16", 2}};

const char *st_dtype_name(StDtype dtype) {
    return st_dtypes[dtype].name;
}

int64_t st_dtype_nbytes(StDtype dtype) {
    return st_dtypes[dtype].nbytes;
}

int64_t st_numel(const StTensor *tensor) {
    return (tensor->end - tensor->begin) / st_dtype_nbytes(tensor->dtype);
}

static void header_entry(JsonWriter *w, const StTensor *tensor) {
    json_begin_object(w, tensor->name);
    json_string(w, "dtype", st_dtype_name(tensor->dtype));
    json_begin_array(w, "shape");
    for (int i = 0; i < tensor->ndim; i++)
        json_int(w, NULL, tensor->dim[i]);
    json_end_array(w);
    json_begin_array(w, "data_offsets");
    json_int(w, NULL, tensor->begin);
    json_int(w, NULL, tensor->end);
    json_end_array(w);
    json_end_object(w);
}

static void header_text(Str *text, const StTensor *tensors, int count) {
    str_append_n(text, "\0\0\0\0\0\0\0\0", ST_PREFIX); /* the length, filled in below */
    JsonWriter w = json_writer(text);
    json_begin_object(&w, NULL);
    for (int i = 0; i < count; i++)
        header_entry(&w, &tensors[i]);
    json_begin_object(&w, "__metadata__");
    json_string(&w, "format", "pt");
    json_end_object(&w);
    json_end_object(&w);
    while (text->len % 8 != 0)
        str_append(text, " ");
    const uint64_t length = text->len - ST_PREFIX;
    memcpy(text->text, &length, ST_PREFIX);
}

Status st_layout(StTensor *tensors, int count, char **header, int64_t *header_nbytes, int64_t *file_nbytes) {
    int64_t at = 0;
    for (int i = 0; i < count; i++) {
        StTensor *tensor = &tensors[i];
        DM_ASSERT(tensor->name[0] != '\0' && tensor->ndim >= 0 && tensor->ndim <= 4);
        int64_t nbytes = st_dtype_nbytes(tensor->dtype);
        bool fits = true;
        for (int d = 0; d < tensor->ndim; d++)
            fits = fits && !__builtin_mul_overflow(nbytes, tensor->dim[d], &nbytes);
        tensor->begin = at;
        if (!fits || __builtin_add_overflow(at, nbytes, &at) || at > INT64_MAX - ST_HEADER_MAX - ST_PREFIX)
            return STATUS_FAIL(STATUS_CHECKPOINT, "tensor %s does not fit in a file of 2^63 bytes", tensor->name);
        tensor->end = at;
    }
    Str text = {0};
    header_text(&text, tensors, count);
    *header = text.text;
    *header_nbytes = (int64_t)text.len;
    *file_nbytes = *header_nbytes + at;
    for (int i = 0; i < count; i++) {
        tensors[i].begin += *header_nbytes;
        tensors[i].end += *header_nbytes;
    }
    return STATUS_OK;
}

void st_encode(StDtype dtype, const float *src, int64_t n, void *dst) {
    DM_ASSERT(dtype == ST_F32 || dtype == ST_BF16);
    if (dtype == ST_F32) {
        memcpy(dst, src, (size_t)n * sizeof *src);
        return;
    }
    uint16_t *half = dst;
    for (int64_t i = 0; i < n; i++)
        half[i] = st_f32_to_bf16(src[i]);
}

static float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

float st_bf16_to_f32(uint16_t x) {
    return float_of((uint32_t)x << 16);
}

uint16_t st_f32_to_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) /* quiet, so that a payload in the low half does not become infinity */
        return (uint16_t)((bits >> 16) | 0x40u);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float st_f16_to_f32(uint16_t x) {
    const uint32_t sign = (uint32_t)(x & 0x8000u) << 16, exponent = (x >> 10) & 0x1fu;
    uint32_t mantissa = x & 0x3ffu;
    if (exponent == 0x1f)
        return float_of(sign | 0x7f800000u | mantissa << 13);
    if (exponent != 0)
        return float_of(sign | (exponent + 112u) << 23 | mantissa << 13);
    if (mantissa == 0)
        return float_of(sign);
    uint32_t shift = 0; /* a subnormal half is a normal float: bring its leading bit to the hidden one's place */
    for (; (mantissa & 0x400u) == 0; shift++)
        mantissa <<= 1;
    return float_of(sign | (113u - shift) << 23 | (mantissa & 0x3ffu) << 13);
}
