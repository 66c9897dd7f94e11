/* Small valid checkpoint sets in a scratch run directory. */
#ifndef DMUON_TESTS_UNIT_RUN_FIXTURE_H
#define DMUON_TESTS_UNIT_RUN_FIXTURE_H

#include "base/file.h"
#include "base/str.h"
#include "checkpoint/manifest.h"
#include "checkpoint/set.h"
#include "tests/unit/scratch.h"

#define RUN_A "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define RUN_B "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"

/* Fills a temporary set with one file of 64 bytes and its manifest. */
static inline void fixture_fill_set(const char *run_dir, int64_t step, const char *run_id) {
    char path[SET_PATH], file_path[SET_PATH * 2], data[64];
    set_temporary_path(path, run_dir, step);
    if (set_begin(run_dir, step) != STATUS_OK)
        abort();
    str_path_join(file_path, sizeof file_path, path, "data.bin");
    memset(data, (int)(step % 100), sizeof data);
    scratch_write_bytes(file_path, data, sizeof data);
    ManifestFile file = {.name = "data.bin"};
    if (manifest_hash_file(file_path, file.sha256, &file.nbytes) != STATUS_OK)
        abort();
    Manifest manifest = {.step = step, .segments = 8, .mesh = {1, 1, 1}, .file = &file, .file_count = 1};
    manifest.config_yaml = (char *)(uintptr_t) "model: x\n";
    manifest.data_identity = (char *)(uintptr_t) "";
    str_format(manifest.run_id, sizeof manifest.run_id, "%s", run_id);
    if (manifest_write(path, &manifest) != STATUS_OK)
        abort();
}

static inline void fixture_set(const char *run_dir, int64_t step, const char *run_id) {
    fixture_fill_set(run_dir, step, run_id);
    if (set_commit(run_dir, step) != STATUS_OK)
        abort();
}

/* Changes one byte of the set's file. */
static inline void fixture_damage(const char *run_dir, int64_t step) {
    char path[SET_PATH], file_path[SET_PATH * 2], data[64] = {1, 2, 3};
    set_path(path, run_dir, step);
    str_path_join(file_path, sizeof file_path, path, "data.bin");
    scratch_write_bytes(file_path, data, sizeof data);
}

/* "100 200 " */
static inline const char *fixture_steps(const char *run_dir) {
    static char text[256];
    SetList list;
    if (set_list(run_dir, &list) != STATUS_OK)
        abort();
    text[0] = '\0';
    for (int i = 0; i < list.count; i++)
        (void)snprintf(text + strlen(text), sizeof text - strlen(text), "%lld ", (long long)list.step[i]);
    set_list_deinit(&list);
    return text;
}

#endif
