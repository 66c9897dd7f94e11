/* Reading safetensors files: the header is distrusted until every size in it has been checked. */
#include "checkpoint/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/fatal.h"
#include "base/file.h"
#include "base/json.h"

#define ST_CHUNK 4096 /* elements converted at a time */

/* Bytes of the tensor's data; false when they do not fit in 63 bits. */
static bool nbytes_checked(const StTensor *tensor, int64_t *nbytes) {
    *nbytes = st_dtype_nbytes(tensor->dtype);
    for (int i = 0; i < tensor->ndim; i++)
        if (__builtin_mul_overflow(*nbytes, tensor->dim[i], nbytes))
            return false;
    return true;
}

static Status parse_dtype(const StFile *file, StTensor *tensor, const JsonValue *value) {
    const char *name = json_as_string(value);
    for (int i = 0; name != NULL && i < ST_DTYPE_COUNT; i++)
        if (strcmp(name, st_dtype_name((StDtype)i)) == 0) {
            tensor->dtype = (StDtype)i;
            return STATUS_OK;
        }
    return STATUS_FAIL(STATUS_CHECKPOINT, "%s: tensor %s: dtype %s is not one of F32, BF16, F16", file->path,
                       tensor->name, name != NULL ? name : "(missing)");
}

static Status parse_shape(const StFile *file, StTensor *tensor, const JsonValue *shape) {
    if (!json_is_array(shape))
        return STATUS_FAIL(STATUS_CHECKPOINT, "%s: tensor %s: \"shape\" is missing or no list", file->path,
                           tensor->name);
    const int ndim = json_count(shape);
    if (ndim > 4)
        return STATUS_FAIL(STATUS_CHECKPOINT, "%s: tensor %s: %d dimensions; at most 4 are supported", file->path,
                           tensor->name, ndim);
    tensor->ndim = ndim;
    for (int i = 0; i < ndim; i++)
        if (!json_as_int(json_at(shape, i), &tensor->dim[i]) || tensor->dim[i] < 0)
            return STATUS_FAIL(STATUS_CHECKPOINT, "%s: tensor %s: dimension %d is no whole number from 0 to 2^53",
                               file->path, tensor->name, i);
    return STATUS_OK;
}

/* Offsets relative to the data, and their agreement with dtype and shape. */
static Status parse_offsets(const StFile *file, StTensor *tensor, const JsonValue *offsets, int64_t data_nbytes) {
    if (!json_is_array(offsets) || json_count(offsets) != 2 || !json_as_int(json_at(offsets, 0), &tensor->begin) ||
        !json_as_int(json_at(offsets, 1), &tensor->end))
        return STATUS_FAIL(STATUS_CHECKPOINT, "%s: tensor %s: \"data_offsets\" is no pair of whole numbers", file->path,
                           tensor->name);
    if (tensor->begin < 0 || tensor->begin > tensor->end || tensor->end > data_nbytes)
        return STATUS_FAIL(STATUS_CHECKPOINT,
                           "%s: tensor %s: data_offsets [%" PRId64 ", %" PRId64 "] lie outside the %" PRId64
                           " bytes of data",
                           file->path, tensor->name, tensor->begin, tensor->end, data_nbytes);
    int64_t need;
    if (!nbytes_checked(tensor, &need))
        return STATUS_FAIL(STATUS_CHECKPOINT, "%s: tensor %s: the product of its dimensions overflows", file->path,
                           tensor->name);
    if (need != tensor->end - tensor->begin)
        return STATUS_FAIL(STATUS_CHECKPOINT,
                           "%s: tensor %s: dtype and shape need %" PRId64 " bytes, data_offsets span %" PRId64,
                           file->path, tensor->name, need, tensor->end - tensor->begin);
    return STATUS_OK;
}

static Status parse_tensor(const StFile *file, StTensor *tensor, const JsonValue *value, int64_t data_nbytes) {
    const char *name = json_key(value);
    if (name == NULL || name[0] == '\0')
        return STATUS_FAIL(STATUS_CHECKPOINT, "%s: a tensor has an empty name", file->path);
    if (strlen(name) >= sizeof tensor->name)
        return STATUS_FAIL(STATUS_CHECKPOINT, "%s: tensor %.40s...: its name has %zu bytes, at most %zu are supported",
                           file->path, name, strlen(name), sizeof tensor->name - 1);
    memcpy(tensor->name, name, strlen(name) + 1);
    if (!json_is_object(value))
        return STATUS_FAIL(STATUS_CHECKPOINT, "%s: tensor %s: its entry is no object", file->path, name);
    TRY(parse_dtype(file, tensor, json_get(value, "dtype")));
    TRY(parse_shape(file, tensor, json_get(value, "shape")));
    TRY(parse_offsets(file, tensor, json_get(value, "data_offsets"), data_nbytes));
    if (json_count(value) != 3)
        return STATUS_FAIL(STATUS_CHECKPOINT, "%s: tensor %s: its entry has members besides dtype, shape, data_offsets",
                           file->path, name);
    return STATUS_OK;
}

/* Optional; only its form matters: a map from strings to strings. */
static Status check_metadata(const StFile *file, const JsonValue *metadata) {
    bool good = json_is_object(metadata);
    for (int i = 0; good && i < json_count(metadata); i++)
        good = json_as_string(json_at(metadata, i)) != NULL;
    if (!good)
        return STATUS_FAIL(STATUS_CHECKPOINT, "%s: __metadata__ is no map from strings to strings", file->path);
    return STATUS_OK;
}

static int compare_begin(const void *a, const void *b) {
    const StTensor *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    /* Empty tensors share the begin of their successor and come before it. */
    if (x->end != y->end)
        return x->end < y->end ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* Sorts by position and checks that the tensors tile the data; then makes the offsets those of the file. */
static Status check_tiling(StFile *file, int64_t data_begin, int64_t data_nbytes) {
    if (file->count > 0)
        qsort(file->tensor, (size_t)file->count, sizeof *file->tensor, compare_begin);
    int64_t at = 0;
    for (int i = 0; i < file->count; i++) {
        StTensor *tensor = &file->tensor[i];
        if (tensor->begin != at)
            return STATUS_FAIL(
                STATUS_CHECKPOINT,
                "%s: tensor %s: its data begins at %" PRId64 ", but the tensor before it ends at %" PRId64 " (%s)",
                file->path, tensor->name, tensor->begin, at, tensor->begin > at ? "a gap" : "an overlap");
        at = tensor->end;
        tensor->begin += data_begin;
        tensor->end += data_begin;
    }
    if (at != data_nbytes)
        return STATUS_FAIL(STATUS_CHECKPOINT,
                           "%s: the tensors end at byte %" PRId64 " of the data, the file at %" PRId64, file->path, at,
                           data_nbytes);
    return STATUS_OK;
}

static Status parse_root(StFile *file, const JsonValue *root, int64_t data_nbytes) {
    if (!json_is_object(root))
        return STATUS_FAIL(STATUS_CHECKPOINT, "%s: the header is no JSON object", file->path);
    const int members = json_count(root);
    file->tensor = HEAP_ALLOC(StTensor, members + 1);
    for (int i = 0; i < members; i++) {
        const JsonValue *value = json_at(root, i);
        const char *name = json_key(value);
        if (name != NULL && strcmp(name, "__metadata__") == 0)
            TRY(check_metadata(file, value));
        else
            TRY(parse_tensor(file, &file->tensor[file->count++], value, data_nbytes));
    }
    return STATUS_OK;
}

static Status parse_checked(StFile *file, const JsonValue *root, uint64_t header_nbytes, int64_t file_nbytes) {
    const int64_t data_begin = ST_PREFIX + (int64_t)header_nbytes;
    TRY(parse_root(file, root, file_nbytes - data_begin));
    return check_tiling(file, data_begin, file_nbytes - data_begin);
}

static Status check_header_size(const StFile *file, uint64_t header_nbytes, int64_t file_nbytes) {
    if (file_nbytes < ST_PREFIX || header_nbytes > (uint64_t)(file_nbytes - ST_PREFIX))
        return STATUS_FAIL(STATUS_CHECKPOINT,
                           "%s: the header claims %" PRIu64 " bytes, the file has %" PRId64 " in all (truncated, or no "
                           "safetensors file)",
                           file->path, header_nbytes, file_nbytes);
    if (header_nbytes > ST_HEADER_MAX)
        return STATUS_FAIL(STATUS_CHECKPOINT, "%s: the header claims %" PRIu64 " bytes; at most %ld are supported",
                           file->path, header_nbytes, ST_HEADER_MAX);
    return STATUS_OK;
}

Status st_parse(StFile *file, const char *header, uint64_t header_nbytes, int64_t file_nbytes) {
    file->tensor = NULL;
    file->count = 0;
    file->nbytes = file_nbytes;
    TRY(check_header_size(file, header_nbytes, file_nbytes));
    /* A file that begins with anything else is not ours to guess at; the format asks for the brace as well. */
    if (header_nbytes == 0 || header[0] != '{')
        return STATUS_FAIL(STATUS_CHECKPOINT, "%s: the header does not begin with '{' (no safetensors file)",
                           file->path);
    JsonValue *root = NULL;
    TRY(json_parse(header, (size_t)header_nbytes, file->path, STATUS_CHECKPOINT, &root));
    const Status status = parse_checked(file, root, header_nbytes, file_nbytes);
    json_free(root);
    if (status != STATUS_OK) {
        heap_free(file->tensor);
        file->tensor = NULL;
        file->count = 0;
    }
    return status;
}

static Status open_checked(StFile *file) {
    struct stat info;
    if (fstat(file->fd, &info) != 0)
        return STATUS_FAIL(STATUS_CHECKPOINT, "%s: %s", file->path, strerror(errno));
    if (!S_ISREG(info.st_mode))
        return STATUS_FAIL(STATUS_CHECKPOINT, "%s: not a regular file", file->path);
    if (info.st_size < ST_PREFIX)
        return STATUS_FAIL(STATUS_CHECKPOINT, "%s: %" PRId64 " bytes are too short for a safetensors file", file->path,
                           (int64_t)info.st_size);
    uint64_t header_nbytes;
    TRY(file_pread(file->fd, &header_nbytes, ST_PREFIX, 0, file->path, STATUS_CHECKPOINT));
    TRY(check_header_size(file, header_nbytes, info.st_size));
    char *header = heap_alloc((size_t)header_nbytes + 1);
    Status status = file_pread(file->fd, header, (size_t)header_nbytes, ST_PREFIX, file->path, STATUS_CHECKPOINT);
    if (status == STATUS_OK)
        status = st_parse(file, header, header_nbytes, info.st_size);
    heap_free(header);
    return status;
}

Status st_open(StFile *file, const char *path) {
    *file = (StFile){.fd = -1};
    if (strlen(path) >= sizeof file->path)
        return STATUS_FAIL(STATUS_CHECKPOINT, "%.60s...: the path has more than %zu bytes", path,
                           sizeof file->path - 1);
    memcpy(file->path, path, strlen(path) + 1);
    file->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (file->fd < 0)
        return STATUS_FAIL(STATUS_CHECKPOINT, "%s: %s", path, strerror(errno));
    const Status status = open_checked(file);
    if (status != STATUS_OK)
        st_close(file);
    return status;
}

void st_close(StFile *file) {
    if (file->fd >= 0)
        (void)close(file->fd); /* opened for reading only: nothing can be lost */
    heap_free(file->tensor);
    file->fd = -1;
    file->tensor = NULL;
    file->count = 0;
}

const StTensor *st_find(const StFile *file, const char *name) {
    for (int i = 0; i < file->count; i++)
        if (strcmp(file->tensor[i].name, name) == 0)
            return &file->tensor[i];
    return NULL;
}

static Status read_half(const StFile *file, const StTensor *tensor, int64_t offset, int64_t count, float *dst) {
    uint16_t half[ST_CHUNK];
    float (*const decode)(uint16_t) = tensor->dtype == ST_BF16 ? st_bf16_to_f32 : st_f16_to_f32;
    for (int64_t done = 0; done < count;) {
        const int64_t n = count - done < ST_CHUNK ? count - done : ST_CHUNK;
        TRY(file_pread(file->fd, half, (size_t)n * 2, offset + done * 2, file->path, STATUS_CHECKPOINT));
        for (int64_t i = 0; i < n; i++)
            dst[done + i] = decode(half[i]);
        done += n;
    }
    return STATUS_OK;
}

Status st_read_f32(const StFile *file, const StTensor *tensor, int64_t first, int64_t count, float *dst) {
    const int64_t size = st_dtype_nbytes(tensor->dtype), numel = (tensor->end - tensor->begin) / size;
    DM_ASSERT(first >= 0 && count >= 0 && first <= numel && count <= numel - first);
    const int64_t offset = tensor->begin + first * size;
    if (tensor->dtype != ST_F32)
        return read_half(file, tensor, offset, count, dst);
    if (count == 0)
        return STATUS_OK;
    return file_pread(file->fd, dst, (size_t)count * sizeof *dst, offset, file->path, STATUS_CHECKPOINT);
}
