/* Text and token files as one sequence of samples: windows of seq_len + 1 tokens at stride seq_len inside one file.
 * File formats are specified in data/shard.h. */
#ifndef DMUON_DATA_DATASET_H
#define DMUON_DATA_DATASET_H

#include "base/str.h"
#include "config/config.h"

typedef struct Dataset Dataset; /* opaque */

typedef struct DatasetOptions {
    const char *pattern; /* path or glob                     */
    const char *key;     /* "data.train": named in messages  */
    DataFormat format;
    int64_t seq_len, vocab_size;
} DatasetOptions;

/* The sorted list of files that match, newline separated, for rank 0 to share. STATUS_DATA when there is none. */
DM_NODISCARD Status dataset_list(const char *pattern, const char *key, Str *files);
/* Opens and maps all files of the list, checks headers and sizes (magic, version, length, a window at least). */
DM_NODISCARD Status dataset_open(Dataset **dataset, const DatasetOptions *options, const char *files);
void dataset_close(Dataset *dataset);
int64_t dataset_samples(const Dataset *dataset); /* windows in all files: E     */
int64_t dataset_tokens(const Dataset *dataset);
int64_t dataset_dropped(const Dataset *dataset); /* tokens in dropped tails     */
int dataset_file_count(const Dataset *dataset);
/* One text line per file: "name bytes hash", hash over header and 64 sampled blocks: the identity of the data set. */
DM_NODISCARD Status dataset_identity(const Dataset *dataset, Str *out);
/* Checks token ids of part `part` of `parts` of all files against vocab_size; names file, position and id. Text has
 * nothing to check unless vocab_size < 256. */
DM_NODISCARD Status dataset_check_ids(const Dataset *dataset, int part, int parts);
int64_t dataset_id_bytes(const Dataset *dataset); /* bytes of ids, to decide whether all are checked at start (2 GiB) */
/* Window `sample` (0..E-1, file order): tokens [seq_len], targets [seq_len] shifted by one. STATUS_DATA on an id beyond
 * the vocabulary. */
DM_NODISCARD Status dataset_window(const Dataset *dataset, int64_t sample, int32_t *tokens, int32_t *targets);

#endif
