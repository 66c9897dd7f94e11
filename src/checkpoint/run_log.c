/* log.jsonl of a run directory: moved aside for a new run, cut back for a resumed one. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/file.h"
#include "base/json.h"
#include "checkpoint/run.h"

#define PATH_BYTES 1200

Status run_move_log(const char *dir) {
    char path[PATH_BYTES], moved[PATH_BYTES];
    str_path_join(path, sizeof path, dir, "log.jsonl");
    if (!file_exists(path))
        return STATUS_OK;
    int number = 1;
    do
        str_format(moved, sizeof moved, "%s/log.jsonl.%d", dir, number++);
    while (file_exists(moved));
    if (rename(path, moved) != 0)
        return STATUS_FAIL(STATUS_CHECKPOINT, "%s: cannot be renamed to %s: %s", path, moved, strerror(errno));
    return file_sync_dir(dir, STATUS_CHECKPOINT);
}

typedef enum LineKind { LINE_KEEP, LINE_DROP, LINE_LATER } LineKind;

static LineKind judge_line(const char *line, size_t nbytes, int64_t step) {
    JsonValue *root = NULL;
    int64_t line_step;
    LineKind kind = LINE_KEEP;
    if (json_parse(line, nbytes, "log.jsonl", STATUS_CHECKPOINT, &root) != STATUS_OK || !json_is_object(root))
        kind = LINE_DROP;
    else if (json_as_int(json_get(root, "step"), &line_step) && line_step > step)
        kind = LINE_LATER;
    status_trail_clear();
    json_free(root);
    return kind;
}

static void keep_lines(const char *text, size_t nbytes, int64_t step, Str *kept) {
    const char *line = text, *end = text + nbytes, *newline;
    /* What follows the last newline is half a line. */
    for (; (newline = memchr(line, '\n', (size_t)(end - line))) != NULL; line = newline + 1) {
        const LineKind kind = judge_line(line, (size_t)(newline - line), step);
        if (kind == LINE_LATER)
            return;
        if (kind == LINE_KEEP)
            str_append_n(kept, line, (size_t)(newline - line) + 1);
    }
}

Status run_cut_log(const char *dir, int64_t step) {
    char path[PATH_BYTES];
    str_path_join(path, sizeof path, dir, "log.jsonl");
    if (!file_exists(path))
        return STATUS_OK;
    char *text;
    size_t nbytes;
    TRY(file_read(path, 0, STATUS_CHECKPOINT, &text, &nbytes));
    Str kept = {0};
    str_append(&kept, "");
    keep_lines(text, nbytes, step, &kept);
    Status status = STATUS_OK;
    if (kept.len != nbytes) /* lines are only ever left out, so equal length means equal bytes */
        status = file_write_atomic(path, kept.text, kept.len, STATUS_CHECKPOINT);
    str_deinit(&kept);
    heap_free(text);
    return status;
}
