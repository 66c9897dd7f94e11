/* dmuon-ckpt export: the weights of a set as a Hugging Face directory. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/file.h"
#include "checkpoint/hf.h"
#include "checkpoint/manifest.h"
#include "checkpoint/tool.h"

#define PIECE 65536 /* elements converted at a time */
#define PATH_BYTES 2048

/* One tensor on its way: where it is, where it goes. */
typedef struct Item {
    const StFile *file;
    const StTensor *source;
    const char *out_file; /* base name */
} Item;

typedef struct Export {
    const ExportOptions *options;
    char temporary[PATH_BYTES];
    HfDir files;
    Item *item; /* owned, by file */
    int count;
    float *values; /* owned [PIECE]: as read     */
    void *bytes;   /* owned [PIECE]: as written  */
} Export;

/* Weights by file: the files of the set named model*, or all in one. */
static void list_items(Export *e) {
    e->item = HEAP_ALLOC(Item, hf_count(&e->files) + 1);
    for (int f = 0; f < e->files.count; f++) {
        const StFile *file = &e->files.file[f];
        const char *name = str_base_name(file->path);
        if (!str_starts_with(name, "model"))
            continue;
        for (int t = 0; t < file->count; t++)
            e->item[e->count++] = (Item){file, &file->tensor[t], e->options->single_file ? HF_SINGLE_NAME : name};
    }
}

static Status write_tensor(const Export *e, const Item *item, int fd, const char *path, int64_t offset) {
    const int64_t numel = st_numel(item->source), size = st_dtype_nbytes(e->options->dtype);
    for (int64_t first = 0; first < numel; first += PIECE) {
        const int64_t n = numel - first < PIECE ? numel - first : PIECE;
        TRY(st_read_f32(item->file, item->source, first, n, e->values));
        st_encode(e->options->dtype, e->values, n, e->bytes);
        TRY(file_pwrite(fd, e->bytes, (size_t)(n * size), offset + first * size, path, STATUS_CHECKPOINT));
    }
    return STATUS_OK;
}

static Status write_tensors(const Export *e, const Item *items, const StTensor *layout, int count, int fd,
                            const char *path) {
    for (int i = 0; i < count; i++)
        TRY(write_tensor(e, &items[i], fd, path, layout[i].begin));
    if (fsync(fd) != 0)
        return STATUS_FAIL(STATUS_CHECKPOINT, "%s: fsync: %s", path, strerror(errno));
    return STATUS_OK;
}

static Status write_laid_out(const Export *e, const Item *items, StTensor *layout, int count) {
    char path[PATH_BYTES], *header;
    int64_t header_nbytes, file_nbytes;
    str_path_join(path, sizeof path, e->temporary, items[0].out_file);
    TRY(st_layout(layout, count, &header, &header_nbytes, &file_nbytes));
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    Status status = fd >= 0 ? file_pwrite(fd, header, (size_t)header_nbytes, 0, path, STATUS_CHECKPOINT)
                            : STATUS_FAIL(STATUS_CHECKPOINT, "%s: cannot be written: %s", path, strerror(errno));
    heap_free(header);
    if (status == STATUS_OK)
        status = write_tensors(e, items, layout, count, fd, path);
    if (fd >= 0 && close(fd) != 0 && status == STATUS_OK)
        status = STATUS_FAIL(STATUS_CHECKPOINT, "%s: close: %s", path, strerror(errno));
    return status;
}

/* The items that go into one file. */
static Status write_file(const Export *e, const Item *items, int count) {
    StTensor *layout = HEAP_ALLOC(StTensor, count);
    for (int i = 0; i < count; i++) {
        layout[i] = *items[i].source;
        layout[i].dtype = e->options->dtype;
    }
    const Status status = write_laid_out(e, items, layout, count);
    heap_free(layout);
    return status;
}

static Status write_files(const Export *e) {
    for (int first = 0, end; first < e->count; first = end) {
        for (end = first + 1; end < e->count && strcmp(e->item[end].out_file, e->item[first].out_file) == 0; end++) {
        }
        TRY(write_file(e, e->item + first, end - first));
    }
    return STATUS_OK;
}

static Status write_index(const Export *e) {
    if (e->options->single_file)
        return STATUS_OK;
    HfIndexEntry *entry = HEAP_ALLOC(HfIndexEntry, e->count);
    for (int i = 0; i < e->count; i++) {
        str_format(entry[i].tensor, sizeof entry[i].tensor, "%s", e->item[i].source->name);
        str_format(entry[i].file, sizeof entry[i].file, "%.127s", e->item[i].out_file);
        entry[i].nbytes = st_numel(e->item[i].source) * st_dtype_nbytes(e->options->dtype);
    }
    const Status status = hf_write_index(e->temporary, entry, e->count);
    heap_free(entry);
    return status;
}

static Status write_config(const Export *e, const Manifest *manifest) {
    Config *config = HEAP_ALLOC(Config, 1);
    char path[PATH_BYTES];
    Str text = {0};
    str_path_join(path, sizeof path, e->temporary, HF_CONFIG_NAME);
    Status status = config_load_text(config, manifest->config_yaml, strlen(manifest->config_yaml), e->options->dir);
    if (status == STATUS_OK) {
        hf_config_text(&config->model, e->options->dtype, &text);
        status = file_write_atomic(path, text.text, text.len, STATUS_CHECKPOINT);
    }
    str_deinit(&text);
    heap_free(config);
    return status;
}

static Status export_all(Export *e, const Manifest *manifest) {
    TRY(hf_open_set(&e->files, e->options->dir));
    list_items(e);
    if (e->count == 0)
        return STATUS_FAIL(STATUS_CHECKPOINT, "checkpoint %s: holds no weights (no model*.safetensors)",
                           e->options->dir);
    TRY(file_remove_dir(e->temporary, STATUS_CHECKPOINT));
    TRY(file_make_dirs(e->temporary, STATUS_CHECKPOINT));
    TRY(write_files(e));
    TRY(write_index(e));
    TRY(write_config(e, manifest));
    TRY(file_sync_dir(e->temporary, STATUS_CHECKPOINT));
    if (rename(e->temporary, e->options->out) != 0)
        return STATUS_FAIL(STATUS_CHECKPOINT, "%s: cannot be renamed to %s: %s", e->temporary, e->options->out,
                           strerror(errno));
    return STATUS_OK;
}

static Status export_verified(const ExportOptions *options, const Manifest *manifest, Str *out) {
    TRY(manifest_verify_files(options->dir, manifest));
    Export e = {.options = options, .values = HEAP_ALLOC(float, PIECE), .bytes = heap_alloc(PIECE * sizeof(float))};
    str_format(e.temporary, sizeof e.temporary, "%.2000s.tmp", options->out);
    const Status status = export_all(&e, manifest);
    if (status == STATUS_OK)
        str_printf(out, "%s: %d tensors of step %" PRId64 " as %s\n", options->out, e.count, manifest->step,
                   st_dtype_name(options->dtype));
    heap_free(e.bytes);
    heap_free(e.values);
    heap_free(e.item);
    hf_close(&e.files);
    return status;
}

Status tool_export(const ExportOptions *options, Str *out) {
    if (file_exists(options->out))
        return STATUS_FAIL(STATUS_CONFIG, "%s exists already: name a directory that does not", options->out);
    Manifest manifest;
    TRY(manifest_read(options->dir, &manifest));
    const Status status = export_verified(options, &manifest, out);
    manifest_deinit(&manifest);
    return status;
}
