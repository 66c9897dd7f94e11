/* libFuzzer entry: a trainer.json of arbitrary members, with a right hash of its own, and log lines of arbitrary bytes.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fatal.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/str.h"
#include "checkpoint/manifest.h"
#include "checkpoint/run.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes);

static void write_file(const char *dir, const char *name, const Str *text) {
    char path[512];
    str_format(path, sizeof path, "%.400s/%s", dir, name);
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(text->text, 1, text->len, file) != text->len || fclose(file) != 0)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
    static char dir[] = "/tmp/dmuon-fuzz-XXXXXX";
    static int made;
    if (!made && mkdtemp(dir) == NULL)
        abort();
    made = 1;
    Str text = {0};
    char sha256[65];
    str_append_n(&text, (const char *)data, nbytes);
    write_file(dir, "log.jsonl", &text);
    sha256_hex(text.text, text.len, sha256);
    str_printf(&text, ",\"self\":\"%s\"}\n", sha256);
    write_file(dir, MANIFEST_NAME, &text);
    str_deinit(&text);
    Manifest manifest;
    if (manifest_read(dir, &manifest) == STATUS_OK)
        DM_ASSERT(manifest.step >= 0 && manifest.segments >= 1 && strlen(manifest.run_id) == 32);
    manifest_deinit(&manifest);
    const Status first = run_cut_log(dir, 100);
    char path[64];
    str_format(path, sizeof path, "%s/log.jsonl", dir);
    const int64_t kept = file_size(path);
    const Status second = run_cut_log(dir, 100);
    DM_ASSERT(first == STATUS_OK && second == STATUS_OK && file_size(path) == kept); /* cutting twice cuts once */
    return 0;
}
