/* Files as one sequence of windows. */
#include "data/dataset.h"

#include <glob.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/arena.h"
#include "base/fatal.h"
#include "data/shard.h"

struct Dataset {
    Shard *shards;         /* [nfiles] owned                                         */
    int64_t *first_window; /* [nfiles + 1] owned: windows in all files before this one */
    int nfiles, nopen;
    int64_t seq_len, vocab_size;
    int64_t ntokens, ndropped, id_nbytes;
};

static int compare_paths(const void *left, const void *right) {
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

static Status append_path(Str *files, const char *path, const char *key) {
    if (strchr(path, '\n'))
        return STATUS_FAIL(STATUS_DATA, "%s: the file name '%s' contains a line break; rename it", key, path);
    str_printf(files, "%s\n", path);
    return STATUS_OK;
}

static Status append_matches(Str *files, glob_t *matches, const char *key) {
    /* glob's own order follows the locale */
    qsort(matches->gl_pathv, matches->gl_pathc, sizeof *matches->gl_pathv, compare_paths);
    for (size_t i = 0; i < matches->gl_pathc; i++)
        TRY(append_path(files, matches->gl_pathv[i], key));
    return STATUS_OK;
}

Status dataset_list(const char *pattern, const char *key, Str *files) {
    struct stat info;
    str_clear(files);
    if (pattern[0] == '\0')
        return STATUS_FAIL(STATUS_DATA, "%s is empty; give it a file or a glob", key);
    if (stat(pattern, &info) == 0) /* a name may contain the signs of a glob */
        return append_path(files, pattern, key);
    glob_t matches = {0};
    const int rc = glob(pattern, GLOB_NOSORT, NULL, &matches);
    Status status = STATUS_OK;
    if (rc == GLOB_NOMATCH)
        status = STATUS_FAIL(STATUS_DATA, "%s: no file matches '%s'; relative paths start at the current directory",
                             key, pattern);
    else if (rc != 0)
        status = STATUS_FAIL(STATUS_DATA, "%s: cannot list '%s': %s", key, pattern,
                             rc == GLOB_NOSPACE ? "out of memory" : "a directory cannot be read");
    else
        status = append_matches(files, &matches, key);
    globfree(&matches);
    return status;
}

/* Adds the shard just opened to the totals. */
static Status count_windows(Dataset *dataset, const DatasetOptions *options) {
    const Shard *shard = &dataset->shards[dataset->nopen - 1];
    if (shard->ntokens <= options->seq_len)
        return STATUS_FAIL(STATUS_DATA,
                           "%s: %s has %" PRId64 " tokens, a window needs batch.seq_len + 1 = %" PRId64
                           "; lower batch.seq_len or leave the file out",
                           options->key, shard->path, shard->ntokens, options->seq_len + 1);
    const int64_t windows = (shard->ntokens - 1) / options->seq_len;
    int64_t *total = &dataset->first_window[dataset->nopen];
    const int64_t before = dataset->first_window[dataset->nopen - 1];
    if (__builtin_add_overflow(before, windows, total) ||
        __builtin_add_overflow(dataset->ntokens, shard->ntokens, &dataset->ntokens) ||
        __builtin_add_overflow(dataset->id_nbytes, shard->ntokens * shard->id_nbytes, &dataset->id_nbytes))
        return STATUS_FAIL(STATUS_DATA, "%s: more than 2^63 bytes of data up to %s", options->key, shard->path);
    dataset->ndropped += shard->ntokens - (windows * options->seq_len + 1);
    return STATUS_OK;
}

/* `list` is cut up in place. */
static Status open_files(Dataset *dataset, const DatasetOptions *options, char *list) {
    char *rest = NULL;
    for (char *path = strtok_r(list, "\n", &rest); path; path = strtok_r(NULL, "\n", &rest)) {
        TRY(shard_open(&dataset->shards[dataset->nopen], path, options->key, options->format));
        dataset->nopen++;
        TRY(count_windows(dataset, options));
    }
    return STATUS_OK;
}

Status dataset_open(Dataset **dataset, const DatasetOptions *options, const char *files) {
    DM_ASSERT(options->seq_len >= 1 && options->seq_len < INT64_MAX && options->vocab_size >= 1);
    Dataset *opened = HEAP_ALLOC(Dataset, 1);
    *dataset = NULL;
    for (const char *at = files; *at; at++)
        opened->nfiles += *at == '\n' || at[1] == '\0';
    opened->shards = HEAP_ALLOC(Shard, opened->nfiles);
    opened->first_window = HEAP_ALLOC(int64_t, opened->nfiles + 1);
    opened->seq_len = options->seq_len;
    opened->vocab_size = options->vocab_size;
    char *list = heap_strdup(files);
    Status status = open_files(opened, options, list);
    heap_free(list);
    if (status == STATUS_OK && opened->nopen == 0)
        status = STATUS_FAIL(STATUS_DATA, "%s: no file to read", options->key);
    if (status != STATUS_OK) {
        dataset_close(opened);
        return status;
    }
    opened->nfiles = opened->nopen;
    *dataset = opened;
    return STATUS_OK;
}

void dataset_close(Dataset *dataset) {
    if (!dataset)
        return;
    for (int i = 0; i < dataset->nopen; i++)
        shard_close(&dataset->shards[i]);
    heap_free(dataset->shards);
    heap_free(dataset->first_window);
    heap_free(dataset);
}

int64_t dataset_samples(const Dataset *dataset) {
    return dataset->first_window[dataset->nfiles];
}

int64_t dataset_tokens(const Dataset *dataset) {
    return dataset->ntokens;
}

int64_t dataset_dropped(const Dataset *dataset) {
    return dataset->ndropped;
}

int dataset_file_count(const Dataset *dataset) {
    return dataset->nfiles;
}

int64_t dataset_id_bytes(const Dataset *dataset) {
    return dataset->id_nbytes;
}

Status dataset_identity(const Dataset *dataset, Str *out) {
    for (int i = 0; i < dataset->nfiles; i++)
        TRY(shard_identity(&dataset->shards[i], out));
    return STATUS_OK;
}

Status dataset_check_ids(const Dataset *dataset, int part, int parts) {
    DM_ASSERT(parts >= 1 && part >= 0 && part < parts);
    for (int i = 0; i < dataset->nfiles; i++) {
        const Shard *shard = &dataset->shards[i];
        if (shard->id_nbytes == 1 && dataset->vocab_size >= 256)
            continue;
        const int64_t each = shard->ntokens / parts, extra = shard->ntokens % parts;
        const int64_t first = each * part + (part < extra ? part : extra);
        TRY(shard_check_ids(shard, first, each + (part < extra), dataset->vocab_size));
    }
    return STATUS_OK;
}

/* The file that holds the window: the last one that starts at or before it. */
static int find_file(const Dataset *dataset, int64_t window) {
    int low = 0, high = dataset->nfiles;
    while (high - low > 1) {
        const int middle = low + (high - low) / 2;
        if (dataset->first_window[middle] <= window)
            low = middle;
        else
            high = middle;
    }
    return low;
}

Status dataset_window(const Dataset *dataset, int64_t sample, int32_t *tokens, int32_t *targets) {
    DM_ASSERT(sample >= 0 && sample < dataset_samples(dataset));
    const int file = find_file(dataset, sample);
    const Shard *shard = &dataset->shards[file];
    const int64_t first = (sample - dataset->first_window[file]) * dataset->seq_len;
    TRY(shard_read(shard, first, dataset->seq_len, dataset->vocab_size, tokens));
    memcpy(targets, tokens + 1, (size_t)(dataset->seq_len - 1) * sizeof *targets);
    return shard_read(shard, first + dataset->seq_len, 1, dataset->vocab_size, &targets[dataset->seq_len - 1]);
}
