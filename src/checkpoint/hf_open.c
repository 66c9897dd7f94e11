/* Finding and opening the safetensors files of a directory. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/file.h"
#include "base/json.h"
#include "checkpoint/hf.h"

#define HF_PATH 2048
#define INDEX_MAX (1L << 27) /* bytes believed */

static int compare_names(const void *a, const void *b) {
    return strcmp((*(const StTensor *const *)a)->name, (*(const StTensor *const *)b)->name);
}

/* No tensor in two files. */
static Status check_unique(const HfDir *files, const char *dir) {
    const int count = hf_count(files);
    const StTensor **all = HEAP_ALLOC(const StTensor *, count + 1);
    int n = 0;
    for (int f = 0; f < files->count; f++)
        for (int t = 0; t < files->file[f].count; t++)
            all[n++] = &files->file[f].tensor[t];
    qsort(all, (size_t)n, sizeof *all, compare_names);
    Status status = STATUS_OK;
    for (int i = 1; i < n && status == STATUS_OK; i++)
        if (strcmp(all[i - 1]->name, all[i]->name) == 0)
            status = STATUS_FAIL(STATUS_CHECKPOINT, "%s: tensor %s is in two files", dir, all[i]->name);
    heap_free(all);
    return status;
}

/* Appends a file; files->file has room. */
static Status open_one(HfDir *files, const char *dir, const char *name) {
    char path[HF_PATH];
    str_path_join(path, sizeof path, dir, name);
    TRY(st_open(&files->file[files->count], path));
    files->count++;
    return STATUS_OK;
}

static const StFile *opened_as(const HfDir *files, const char *name) {
    for (int f = 0; f < files->count; f++)
        if (strcmp(str_base_name(files->file[f].path), name) == 0)
            return &files->file[f];
    return NULL;
}

/* One member of weight_map: its file is opened once, and has the tensor. */
static Status open_mapped(HfDir *files, const char *dir, const char *tensor, const char *name) {
    if (name == NULL || name[0] == '\0' || name[0] == '.' || strchr(name, '/') != NULL)
        return STATUS_FAIL(STATUS_CHECKPOINT, "%s/" HF_INDEX_NAME ": tensor %s is mapped to no plain file name", dir,
                           tensor);
    if (opened_as(files, name) == NULL)
        TRY(open_one(files, dir, name));
    if (st_find(opened_as(files, name), tensor) == NULL)
        return STATUS_FAIL(STATUS_CHECKPOINT, "%s/" HF_INDEX_NAME ": tensor %s is not in %s", dir, tensor, name);
    return STATUS_OK;
}

static Status open_map(HfDir *files, const char *dir, const JsonValue *root) {
    const JsonValue *map = json_get(root, "weight_map");
    if (!json_is_object(map))
        return STATUS_FAIL(STATUS_CHECKPOINT, "%s/" HF_INDEX_NAME ": \"weight_map\" is missing or no object", dir);
    files->file = HEAP_ALLOC(StFile, json_count(map) + 1);
    for (int i = 0; i < json_count(map); i++) {
        const JsonValue *member = json_at(map, i);
        TRY(open_mapped(files, dir, json_key(member), json_as_string(member)));
    }
    return check_unique(files, dir);
}

static Status open_indexed(HfDir *files, const char *dir, const char *index_path) {
    char *text;
    size_t nbytes;
    TRY(file_read(index_path, INDEX_MAX, STATUS_CHECKPOINT, &text, &nbytes));
    JsonValue *root = NULL;
    Status status = json_parse(text, nbytes, index_path, STATUS_CHECKPOINT, &root);
    if (status == STATUS_OK)
        status = open_map(files, dir, root);
    json_free(root);
    heap_free(text);
    return status;
}

static Status open_single(HfDir *files, const char *dir) {
    files->file = HEAP_ALLOC(StFile, 1);
    return open_one(files, dir, HF_SINGLE_NAME);
}

Status hf_open(HfDir *files, const char *dir) {
    char index[HF_PATH], single[HF_PATH];
    *files = (HfDir){0};
    str_path_join(index, sizeof index, dir, HF_INDEX_NAME);
    str_path_join(single, sizeof single, dir, HF_SINGLE_NAME);
    if (!file_exists(index) && !file_exists(single))
        return STATUS_FAIL(STATUS_CHECKPOINT, "%s: holds neither " HF_SINGLE_NAME " nor " HF_INDEX_NAME, dir);
    const Status status = file_exists(index) ? open_indexed(files, dir, index) : open_single(files, dir);
    if (status != STATUS_OK)
        hf_close(files);
    return status;
}

static Status open_listed(HfDir *files, const char *dir, char *const *names, int count) {
    files->file = HEAP_ALLOC(StFile, count + 1);
    for (int i = 0; i < count; i++)
        if (str_ends_with(names[i], ".safetensors"))
            TRY(open_one(files, dir, names[i]));
    if (files->count == 0)
        return STATUS_FAIL(STATUS_CHECKPOINT, "%s: holds no safetensors file", dir);
    return check_unique(files, dir);
}

Status hf_open_set(HfDir *files, const char *dir) {
    char **names;
    int count;
    *files = (HfDir){0};
    TRY(file_list(dir, STATUS_CHECKPOINT, &names, &count));
    const Status status = open_listed(files, dir, names, count);
    file_list_free(names, count);
    if (status != STATUS_OK)
        hf_close(files);
    return status;
}

void hf_close(HfDir *files) {
    for (int f = 0; f < files->count; f++)
        st_close(&files->file[f]);
    heap_free(files->file);
    *files = (HfDir){0};
}

const StTensor *hf_find(const HfDir *files, const char *name, const StFile **file) {
    for (int f = 0; f < files->count; f++) {
        const StTensor *tensor = st_find(&files->file[f], name);
        if (tensor != NULL) {
            *file = &files->file[f];
            return tensor;
        }
    }
    return NULL;
}

int hf_count(const HfDir *files) {
    int count = 0;
    for (int f = 0; f < files->count; f++)
        count += files->file[f].count;
    return count;
}
