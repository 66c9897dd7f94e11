/* Writing trainer.json: the members and their order. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/str.h"
#include "checkpoint/manifest.h"

/* JSON numbers are exact up to 2^53 only; a larger seed is a string. */
static void write_seed(JsonWriter *w, int64_t seed) {
    const int64_t exact = INT64_C(1) << 53;
    char digits[32];
    if (seed >= -exact && seed <= exact) {
        json_int(w, "seed", seed);
        return;
    }
    str_format(digits, sizeof digits, "%lld", (long long)seed);
    json_string(w, "seed", digits);
}

void manifest_write_head(JsonWriter *w, const Manifest *m) {
    json_int(w, "format", MANIFEST_FORMAT);
    json_string(w, "version", m->version);
    json_string(w, "run_id", m->run_id);
    json_int(w, "step", m->step);
    json_int(w, "samples", m->samples);
    json_int(w, "adamw_t", m->adamw_t);
    json_int(w, "tokens_total", m->tokens_total);
    write_seed(w, m->seed);
    json_begin_object(w, "numerics");
    json_string(w, "mode", m->fast ? "fast" : "exact");
    json_int(w, "segments", m->segments);
    if (m->products[0] != '\0')
        json_string(w, "products", m->products);
    json_end_object(w);
    mesh_write(m->mesh, w);
    json_string(w, "data_parallel", m->data_parallel == DATA_DDP ? "ddp" : "fsdp");
}

static void write_contents(JsonWriter *w, const Manifest *m) {
    json_begin_array(w, "files");
    for (int i = 0; i < m->file_count; i++) {
        json_begin_object(w, NULL);
        json_string(w, "name", m->file[i].name);
        json_int(w, "bytes", m->file[i].nbytes);
        json_string(w, "sha256", m->file[i].sha256);
        json_end_object(w);
    }
    json_end_array(w);
    json_begin_array(w, "tensors");
    for (int i = 0; i < m->tensor_count; i++) {
        json_begin_object(w, NULL);
        json_string(w, "name", m->tensor[i].name);
        json_hex64(w, "hash", m->tensor[i].hash);
        json_end_object(w);
    }
    json_end_array(w);
}

static Status write_synced(const char *path, const Str *text) {
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        return STATUS_FAIL(STATUS_CHECKPOINT, "%s: cannot be written: %s", path, strerror(errno));
    Status status = file_pwrite(fd, text->text, text->len, 0, path, STATUS_CHECKPOINT);
    if (status == STATUS_OK && fsync(fd) != 0)
        status = STATUS_FAIL(STATUS_CHECKPOINT, "%s: fsync: %s", path, strerror(errno));
    if (close(fd) != 0 && status == STATUS_OK)
        status = STATUS_FAIL(STATUS_CHECKPOINT, "%s: close: %s", path, strerror(errno));
    return status;
}

Status manifest_write(const char *dir, const Manifest *manifest) {
    char path[CONFIG_PATH * 2], sha256[65];
    str_path_join(path, sizeof path, dir, MANIFEST_NAME);
    Str text = {0};
    JsonWriter w = json_writer(&text);
    json_begin_object(&w, NULL);
    manifest_write_head(&w, manifest);
    json_string(&w, "config", manifest->config_yaml);
    json_string(&w, "data", manifest->data_identity);
    write_contents(&w, manifest);
    sha256_hex(text.text, text.len, sha256); /* the object is still open: all bytes before the comma */
    str_printf(&text, ",\"self\":\"%s\"}\n", sha256);
    const Status status = write_synced(path, &text);
    str_deinit(&text);
    return status;
}
