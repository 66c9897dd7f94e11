/* dmuon-ckpt diff: two directories, tensor by tensor, bit by bit. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/arena.h"
#include "base/file.h"
#include "base/json.h"
#include "checkpoint/hf.h"
#include "checkpoint/manifest.h"
#include "checkpoint/tool.h"

#define PIECE 65536 /* elements compared at a time */

typedef struct Diff {
    HfDir a, b;
    float *piece_a, *piece_b; /* owned [PIECE] */
    ToolFormat format;
    JsonWriter w; /* TOOL_JSON */
    Str *out;
    bool equal;
} Diff;

/* How two tensors of the same dtype and shape differ. */
typedef struct Difference {
    int64_t index; /* of the first, in the flattened tensor; -1: none */
    int64_t differing;
    uint32_t a_bits, b_bits;
} Difference;

static uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Binary32 values in their order as whole numbers: neighbours differ by one, both zeros are 0. */
static int64_t rank_of(uint32_t bits) {
    const int64_t magnitude = bits & 0x7fffffffu;
    return bits >> 31 != 0 ? -magnitude : magnitude;
}

static void compare_piece(const Diff *d, int64_t first, int64_t n, Difference *difference) {
    for (int64_t i = 0; i < n; i++) {
        const uint32_t a = bits_of(d->piece_a[i]), b = bits_of(d->piece_b[i]);
        if (a == b)
            continue;
        if (difference->differing++ == 0) {
            difference->index = first + i;
            difference->a_bits = a;
            difference->b_bits = b;
        }
    }
}

static Status compare_values(const Diff *d, const StFile *fa, const StTensor *a, const StFile *fb, const StTensor *b,
                             Difference *difference) {
    const int64_t numel = st_numel(a);
    *difference = (Difference){.index = -1};
    for (int64_t first = 0; first < numel; first += PIECE) {
        const int64_t n = numel - first < PIECE ? numel - first : PIECE;
        TRY(st_read_f32(fa, a, first, n, d->piece_a));
        TRY(st_read_f32(fb, b, first, n, d->piece_b));
        compare_piece(d, first, n, difference);
    }
    return STATUS_OK;
}

/* ---- reporting ---- */

/* missing_in_a, missing_in_b, dtype, shape. */
static void report_kind(Diff *d, const char *name, const char *kind, const char *text) {
    d->equal = false;
    if (d->format == TOOL_TEXT) {
        str_printf(d->out, "%s: %s\n", name, text);
        return;
    }
    json_begin_object(&d->w, NULL);
    json_string(&d->w, "name", name);
    json_string(&d->w, "difference", kind);
    json_end_object(&d->w);
}

/* The position along each dim, outermost first. */
static void position_of(const StTensor *tensor, int64_t index, int64_t position[4]) {
    for (int i = tensor->ndim - 1; i >= 0; i--) {
        position[i] = index % tensor->dim[i];
        index /= tensor->dim[i];
    }
}

static void values_text(const Diff *d, const StTensor *tensor, const Difference *difference, bool numbers,
                        int64_t ulp) {
    int64_t position[4];
    position_of(tensor, difference->index, position);
    str_printf(d->out, "%s: first difference at [", tensor->name);
    for (int i = 0; i < tensor->ndim; i++)
        str_printf(d->out, "%s%" PRId64, i > 0 ? ", " : "", position[i]);
    str_printf(d->out, "] (index %" PRId64 "): %08" PRIx32 " (%.9g) against %08" PRIx32 " (%.9g), ", difference->index,
               difference->a_bits, (double)float_of(difference->a_bits), difference->b_bits,
               (double)float_of(difference->b_bits));
    if (numbers)
        str_printf(d->out, "%" PRId64 " ulp", ulp);
    else
        str_append(d->out, "not both numbers");
    str_printf(d->out, "; %" PRId64 " of %" PRId64 " elements differ\n", difference->differing, st_numel(tensor));
}

static void report_values(Diff *d, const StTensor *tensor, const Difference *difference) {
    const bool numbers = !isnan(float_of(difference->a_bits)) && !isnan(float_of(difference->b_bits));
    const int64_t distance = rank_of(difference->a_bits) - rank_of(difference->b_bits),
                  ulp = distance < 0 ? -distance : distance;
    d->equal = false;
    if (d->format == TOOL_TEXT) {
        values_text(d, tensor, difference, numbers, ulp);
        return;
    }
    int64_t position[4];
    position_of(tensor, difference->index, position);
    json_begin_object(&d->w, NULL);
    json_string(&d->w, "name", tensor->name);
    json_string(&d->w, "difference", "values");
    json_int(&d->w, "index", difference->index);
    json_begin_array(&d->w, "position");
    for (int i = 0; i < tensor->ndim; i++)
        json_int(&d->w, NULL, position[i]);
    json_end_array(&d->w);
    json_hex32(&d->w, "a_bits", difference->a_bits);
    json_hex32(&d->w, "b_bits", difference->b_bits);
    if (numbers)
        json_int(&d->w, "ulp", ulp);
    else
        json_null(&d->w, "ulp");
    json_int(&d->w, "differing", difference->differing);
    json_int(&d->w, "elements", st_numel(tensor));
    json_end_object(&d->w);
}

/* ---- walking ---- */

static Status diff_tensor(Diff *d, const StFile *fa, const StTensor *a) {
    const StFile *fb;
    const StTensor *b = hf_find(&d->b, a->name, &fb);
    if (b == NULL) {
        report_kind(d, a->name, "missing_in_b", "only in the first");
        return STATUS_OK;
    }
    if (a->ndim != b->ndim || memcmp(a->dim, b->dim, (size_t)a->ndim * sizeof a->dim[0]) != 0) {
        report_kind(d, a->name, "shape", "another shape");
        return STATUS_OK;
    }
    if (a->dtype != b->dtype) {
        char text[64];
        str_format(text, sizeof text, "%s against %s", st_dtype_name(a->dtype), st_dtype_name(b->dtype));
        report_kind(d, a->name, "dtype", text);
        return STATUS_OK;
    }
    Difference difference;
    TRY(compare_values(d, fa, a, fb, b, &difference));
    if (difference.differing > 0)
        report_values(d, a, &difference);
    return STATUS_OK;
}

static Status diff_tensors(Diff *d) {
    for (int f = 0; f < d->a.count; f++)
        for (int t = 0; t < d->a.file[f].count; t++)
            TRY(diff_tensor(d, &d->a.file[f], &d->a.file[f].tensor[t]));
    const StFile *file;
    for (int f = 0; f < d->b.count; f++)
        for (int t = 0; t < d->b.file[f].count; t++)
            if (hf_find(&d->a, d->b.file[f].tensor[t].name, &file) == NULL)
                report_kind(d, d->b.file[f].tensor[t].name, "missing_in_a", "only in the second");
    return STATUS_OK;
}

static void diff_number(Diff *d, const char *key, int64_t a, int64_t b) {
    if (a == b)
        return;
    d->equal = false;
    if (d->format == TOOL_TEXT) {
        str_printf(d->out, "%s: %" PRId64 " against %" PRId64 "\n", key, a, b);
        return;
    }
    json_begin_object(&d->w, NULL);
    json_string(&d->w, "key", key);
    json_int(&d->w, "a", a);
    json_int(&d->w, "b", b);
    json_end_object(&d->w);
}

/* Exports and foreign directories have no trainer.json: then only the tensors count. */
static Status diff_state(Diff *d, const char *a, const char *b) {
    char path_a[2048], path_b[2048];
    str_path_join(path_a, sizeof path_a, a, MANIFEST_NAME);
    str_path_join(path_b, sizeof path_b, b, MANIFEST_NAME);
    if (!file_exists(path_a) || !file_exists(path_b))
        return STATUS_OK;
    Manifest x, y;
    TRY(manifest_read(a, &x));
    const Status status = manifest_read(b, &y);
    if (status == STATUS_OK) {
        diff_number(d, "step", x.step, y.step);
        diff_number(d, "samples", x.samples, y.samples);
        diff_number(d, "adamw_t", x.adamw_t, y.adamw_t);
    }
    manifest_deinit(&x);
    manifest_deinit(&y);
    return status;
}

static Status diff_json(Diff *d, const char *a, const char *b) {
    d->w = json_writer(d->out);
    json_begin_object(&d->w, NULL);
    json_begin_array(&d->w, "state");
    TRY(diff_state(d, a, b));
    json_end_array(&d->w);
    json_begin_array(&d->w, "tensors");
    TRY(diff_tensors(d));
    json_end_array(&d->w);
    json_bool(&d->w, "equal", d->equal);
    json_end_object(&d->w);
    str_append(d->out, "\n");
    return STATUS_OK;
}

static Status diff_text(Diff *d, const char *a, const char *b) {
    TRY(diff_state(d, a, b));
    TRY(diff_tensors(d));
    if (d->equal)
        str_printf(d->out, "equal: %d tensors, bit for bit\n", hf_count(&d->a));
    return STATUS_OK;
}

static Status diff_opened(Diff *d, const char *a, const char *b) {
    TRY(hf_open_set(&d->a, a));
    TRY(hf_open_set(&d->b, b));
    return d->format == TOOL_JSON ? diff_json(d, a, b) : diff_text(d, a, b);
}

Status tool_diff(const char *a, const char *b, ToolFormat format, Str *out, bool *equal) {
    Diff d = {.piece_a = HEAP_ALLOC(float, PIECE),
              .piece_b = HEAP_ALLOC(float, PIECE),
              .format = format,
              .out = out,
              .equal = true};
    const Status status = diff_opened(&d, a, b);
    *equal = d.equal;
    hf_close(&d.a);
    hf_close(&d.b);
    heap_free(d.piece_a);
    heap_free(d.piece_b);
    if (status != STATUS_OK)
        str_clear(out);
    return status;
}
