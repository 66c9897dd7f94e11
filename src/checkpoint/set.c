/* Names of sets, their list, the newest valid one, retention. */
#include "checkpoint/set.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/file.h"
#include "checkpoint/manifest.h"

#define TEMPORARY ".tmp-"

void set_root(char *buf, const char *run_dir) {
    str_format(buf, SET_PATH, "%s/checkpoints", run_dir);
}

void set_path(char *buf, const char *run_dir, int64_t step) {
    str_format(buf, SET_PATH, "%s/checkpoints/step-%08" PRId64, run_dir, step);
}

void set_temporary_path(char *buf, const char *run_dir, int64_t step) {
    str_format(buf, SET_PATH, "%s/checkpoints/" TEMPORARY "step-%08" PRId64, run_dir, step);
}

/* Where a set goes on its way out, so that a half removed one never looks like a damaged one. */
static void removed_path(char *buf, const char *run_dir, int64_t step) {
    str_format(buf, SET_PATH, "%s/checkpoints/" TEMPORARY "old-%08" PRId64, run_dir, step);
}

bool set_parse_name(const char *name, int64_t *step) {
    if (!str_starts_with(name, "step-"))
        return false;
    const char *digits = name + 5;
    const size_t n = strlen(digits);
    if (n < 8 || n > 18 || strspn(digits, "0123456789") != n || (n > 8 && digits[0] == '0'))
        return false;
    *step = strtoll(digits, NULL, 10);
    return true;
}

static int compare_steps(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

Status set_list(const char *run_dir, SetList *list) {
    char root[SET_PATH];
    *list = (SetList){0};
    set_root(root, run_dir);
    if (!file_exists(root))
        return STATUS_OK;
    char **names;
    int count;
    TRY(file_list(root, STATUS_CHECKPOINT, &names, &count));
    list->step = HEAP_ALLOC(int64_t, count + 1);
    for (int i = 0; i < count; i++)
        if (set_parse_name(names[i], &list->step[list->count]))
            list->count++;
    file_list_free(names, count);
    if (list->count > 0)
        qsort(list->step, (size_t)list->count, sizeof *list->step, compare_steps);
    return STATUS_OK;
}

void set_list_deinit(SetList *list) {
    heap_free(list->step);
    *list = (SetList){0};
}

/* ---- which are valid, which are ours ---- */

static bool same_run(const char *run_id, const Manifest *manifest) {
    return run_id == NULL || run_id[0] == '\0' || strcmp(run_id, manifest->run_id) == 0;
}

/* Whole and of this run; otherwise a line of `warnings` says why not. */
static bool is_valid(const char *run_dir, const char *run_id, int64_t step, Str *warnings) {
    char path[SET_PATH];
    Manifest manifest;
    set_path(path, run_dir, step);
    Status status = manifest_read(path, &manifest);
    if (status == STATUS_OK && !same_run(run_id, &manifest))
        status = STATUS_FAIL(STATUS_CHECKPOINT, "checkpoint %s: belongs to run %s, not to %s", path, manifest.run_id,
                             run_id);
    else if (status == STATUS_OK)
        status = manifest_verify_files(path, &manifest);
    manifest_deinit(&manifest);
    if (status == STATUS_OK)
        return true;
    if (warnings != NULL) {
        const char *trail = status_trail();
        str_append_n(warnings, trail, strcspn(trail, "\n"));
        str_append(warnings, " (passed over)\n");
    }
    status_trail_clear();
    return false;
}

Status set_newest_valid(const char *run_dir, const char *run_id, int64_t *step, Str *warnings) {
    SetList list;
    *step = -1;
    TRY(set_list(run_dir, &list));
    for (int i = list.count - 1; i >= 0 && *step < 0; i--)
        if (is_valid(run_dir, run_id, list.step[i], warnings))
            *step = list.step[i];
    set_list_deinit(&list);
    return STATUS_OK;
}

/* ---- coming and going ---- */

static Status rename_or_fail(const char *from, const char *to) {
    if (rename(from, to) != 0)
        return STATUS_FAIL(STATUS_CHECKPOINT, "%s: cannot be renamed to %s: %s", from, to, strerror(errno));
    return STATUS_OK;
}

static Status remove_set(const char *run_dir, int64_t step) {
    char path[SET_PATH], removed[SET_PATH];
    set_path(path, run_dir, step);
    removed_path(removed, run_dir, step);
    TRY(file_remove_dir(removed, STATUS_CHECKPOINT));
    TRY(rename_or_fail(path, removed));
    return file_remove_dir(removed, STATUS_CHECKPOINT);
}

Status set_begin(const char *run_dir, int64_t step) {
    char path[SET_PATH];
    set_temporary_path(path, run_dir, step);
    TRY(file_remove_dir(path, STATUS_CHECKPOINT));
    return file_make_dirs(path, STATUS_CHECKPOINT);
}

/* The old set of the same step becomes the temporary one. Where the file system cannot exchange two names, it is moved
 * out of the way first: then a crash between the two renames leaves the new set under its temporary name, and the sets
 * before it. */
static Status exchange(const char *run_dir, int64_t step, const char *temporary, const char *path) {
    if (renameat2(AT_FDCWD, temporary, AT_FDCWD, path, RENAME_EXCHANGE) == 0)
        return file_remove_dir(temporary, STATUS_CHECKPOINT);
    if (errno != EINVAL && errno != ENOSYS)
        return STATUS_FAIL(STATUS_CHECKPOINT, "%s: cannot be renamed to %s: %s", temporary, path, strerror(errno));
    TRY(remove_set(run_dir, step));
    return rename_or_fail(temporary, path);
}

Status set_commit(const char *run_dir, int64_t step) {
    char temporary[SET_PATH], path[SET_PATH], root[SET_PATH];
    set_root(root, run_dir);
    set_path(path, run_dir, step);
    set_temporary_path(temporary, run_dir, step);
    TRY(file_sync_dir(temporary, STATUS_CHECKPOINT));
    if (file_exists(path))
        TRY(exchange(run_dir, step, temporary, path));
    else
        TRY(rename_or_fail(temporary, path));
    return file_sync_dir(root, STATUS_CHECKPOINT);
}

static Status remove_temporaries(const char *root, char *const *names, int count) {
    char path[SET_PATH * 2];
    for (int i = 0; i < count; i++) {
        if (!str_starts_with(names[i], TEMPORARY))
            continue;
        str_path_join(path, sizeof path, root, names[i]);
        TRY(file_remove_dir(path, STATUS_CHECKPOINT));
    }
    return STATUS_OK;
}

Status set_remove_stale(const char *run_dir) {
    char root[SET_PATH];
    set_root(root, run_dir);
    if (!file_exists(root))
        return STATUS_OK;
    char **names;
    int count;
    TRY(file_list(root, STATUS_CHECKPOINT, &names, &count));
    const Status status = remove_temporaries(root, names, count);
    file_list_free(names, count);
    return status;
}

/* ---- retention ---- */

/* Leaves the sets whose trainer.json can be read and names this run. */
static void keep_own(const char *run_dir, const char *run_id, SetList *list) {
    int own = 0;
    for (int i = 0; i < list->count; i++) {
        char path[SET_PATH];
        Manifest manifest;
        set_path(path, run_dir, list->step[i]);
        if (manifest_read(path, &manifest) != STATUS_OK) {
            status_trail_clear();
            continue;
        }
        if (same_run(run_id, &manifest))
            list->step[own++] = list->step[i];
        manifest_deinit(&manifest);
    }
    list->count = own;
}

static int64_t newest_valid_of(const char *run_dir, const char *run_id, const SetList *list, int64_t known_valid) {
    for (int i = list->count - 1; i >= 0; i--)
        if (list->step[i] == known_valid || is_valid(run_dir, run_id, list->step[i], NULL))
            return list->step[i];
    return -1;
}

/* A free name for a set that is put aside. */
static void aside_path(char *buf, const char *run_dir, int64_t step) {
    char root[SET_PATH];
    set_root(root, run_dir);
    str_format(buf, SET_PATH, "%s/rewound-%08lld", root, (long long)step);
    for (int i = 1; file_exists(buf); i++)
        str_format(buf, SET_PATH, "%s/rewound-%08lld.%d", root, (long long)step, i);
}

Status set_put_aside(const char *run_dir, const char *run_id, int64_t step, Str *warnings) {
    SetList list;
    TRY(set_list(run_dir, &list));
    if (run_id != NULL)
        keep_own(run_dir, run_id, &list);
    Status status = STATUS_OK;
    for (int i = 0; i < list.count && status == STATUS_OK; i++) {
        char from[SET_PATH], to[SET_PATH];
        if (list.step[i] <= step)
            continue;
        set_path(from, run_dir, list.step[i]);
        aside_path(to, run_dir, list.step[i]);
        if (rename(from, to) != 0)
            status = STATUS_FAIL(STATUS_CHECKPOINT, "checkpoint %s cannot be put aside: %s", from, strerror(errno));
        else if (run_id == NULL)
            str_printf(warnings, "a new run begins: checkpoint %s is now %s\n", from, to);
        else
            str_printf(warnings, "the run goes on from step %lld: checkpoint %s is now %s\n", (long long)step, from,
                       to);
    }
    set_list_deinit(&list);
    return status;
}

Status set_prune(const char *run_dir, const char *run_id, int64_t keep, int64_t known_valid) {
    if (keep <= 0)
        return STATUS_OK;
    SetList list;
    TRY(set_list(run_dir, &list));
    keep_own(run_dir, run_id, &list);
    Status status = STATUS_OK;
    if (list.count > keep) {
        const int64_t newest = newest_valid_of(run_dir, run_id, &list, known_valid);
        for (int i = 0; i < list.count - keep && status == STATUS_OK; i++)
            if (list.step[i] != newest && list.step[i] != known_valid)
                status = remove_set(run_dir, list.step[i]);
    }
    set_list_deinit(&list);
    return status;
}

Status set_check_space(const char *path, int64_t nbytes) {
    char at[SET_PATH];
    str_format(at, sizeof at, "%s", path);
    while (!file_exists(at)) {
        char *slash = strrchr(at, '/');
        if (slash == NULL)
            str_format(at, sizeof at, ".");
        else
            slash[slash == at ? 1 : 0] = '\0'; /* "/" stays */
    }
    struct statvfs info;
    if (statvfs(at, &info) != 0)
        return STATUS_FAIL(STATUS_CHECKPOINT, "%s: %s", at, strerror(errno));
    const uint64_t free_nbytes = (uint64_t)info.f_bavail * info.f_frsize;
    if (nbytes > 0 && free_nbytes < (uint64_t)nbytes)
        return STATUS_FAIL(STATUS_CHECKPOINT,
                           "%s: a checkpoint needs %" PRId64 " bytes, the file system has %" PRIu64
                           " free: make room, lower checkpoint.keep, or choose another run.dir",
                           path, nbytes, free_nbytes);
    return STATUS_OK;
}
