/* libFuzzer entry: a token shard of arbitrary bytes. Windows of what is accepted must lie inside it. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include "base/fatal.h"
#include "data/dataset.h"

#define SEQ_LEN 7
#define VOCAB 300

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes);

static void write_shard(const char *path, const uint8_t *data, size_t nbytes) {
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    DM_ASSERT(fd >= 0 && write(fd, data, nbytes) == (ssize_t)nbytes && close(fd) == 0);
}

static void read_windows(const Dataset *dataset) {
    int32_t tokens[SEQ_LEN], targets[SEQ_LEN];
    const bool checked = dataset_check_ids(dataset, 0, 1) == STATUS_OK;
    for (int64_t w = 0; w < dataset_samples(dataset) && w < 1000; w++) {
        const bool good = dataset_window(dataset, w, tokens, targets) == STATUS_OK;
        DM_ASSERT(good || !checked);
        for (int i = 0; i < SEQ_LEN && good; i++)
            DM_ASSERT(tokens[i] >= 0 && tokens[i] < VOCAB && targets[i] >= 0 && targets[i] < VOCAB);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
    char path[64];
    snprintf(path, sizeof path, "/tmp/dmuon-fuzz-%d.bin", (int)getpid());
    write_shard(path, data, nbytes);
    const DatasetOptions options = {
        .pattern = path, .key = "data.train", .format = FORMAT_TOKENS, .seq_len = SEQ_LEN, .vocab_size = VOCAB};
    Dataset *dataset = NULL;
    if (dataset_open(&dataset, &options, path) == STATUS_OK) {
        read_windows(dataset);
        dataset_close(dataset);
    }
    unlink(path);
    return 0;
}
