/* The lock of a run directory, its identity, and the decision between a new run and a resume. */
#include "checkpoint/run.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/file.h"
#include "base/json.h"
#include "checkpoint/manifest.h"

#define PATH_BYTES 1200
#define REMEDY "choose another directory with run.dir=, or start afresh in this one with checkpoint.resume=none"

/* ---- the lock ---- */

/* How many of the innermost directories of `path` do not exist yet. */
static int count_missing(const char *path) {
    char at[PATH_BYTES];
    int missing = 0;
    str_format(at, sizeof at, "%s", path);
    while (at[0] != '\0' && !file_exists(at)) {
        missing++;
        char *slash = strrchr(at, '/');
        if (slash == NULL)
            break;
        *slash = '\0';
    }
    return missing;
}

static void read_holder(int fd, char *holder, size_t capacity) {
    const ssize_t n = pread(fd, holder, capacity - 1, 0);
    holder[n > 0 ? (size_t)n : 0] = '\0';
}

static Status held_by_other(const char *dir, const char *path, int fd) {
    char holder[256] = "";
    read_holder(fd, holder, sizeof holder);
    holder[strcspn(holder, "\n")] = '\0';
    return STATUS_FAIL(STATUS_CHECKPOINT,
                       "run directory %s is in use by %s (lock %s): wait for it to end or stop it, or choose another "
                       "directory with run.dir=",
                       dir, holder[0] != '\0' ? holder : "another process", path);
}

static Status write_holder(int fd, const char *path, const char *holder) {
    if (ftruncate(fd, 0) != 0)
        return STATUS_FAIL(STATUS_CONFIG, "%s: %s", path, strerror(errno));
    return file_pwrite(fd, holder, strlen(holder), 0, path, STATUS_CONFIG);
}

static Status take_lock(RunDir *run, const char *host) {
    char path[PATH_BYTES];
    str_path_join(path, sizeof path, run->dir, "lock");
    run->created_lock = !file_exists(path);
    run->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (run->fd < 0)
        return STATUS_FAIL(STATUS_CONFIG,
                           "run directory %s cannot be written: %s: choose another with run.dir=", run->dir,
                           strerror(errno));
    if (flock(run->fd, LOCK_EX | LOCK_NB) == 0) {
        char holder[256];
        str_format(holder, sizeof holder, "pid %ld on host %.128s\n", (long)getpid(), host);
        read_holder(run->fd, run->holder_before, sizeof run->holder_before);
        run->restore = !run->created_lock;
        return write_holder(run->fd, path, holder);
    }
    run->created_lock = false;
    if (errno == EWOULDBLOCK)
        return held_by_other(run->dir, path, run->fd);
    return STATUS_FAIL(STATUS_CHECKPOINT, "%s: flock: %s", path, strerror(errno));
}

Status run_lock(RunDir *run, const char *dir, const char *host) {
    *run = (RunDir){.fd = -1};
    if (strlen(dir) >= sizeof run->dir)
        return STATUS_FAIL(STATUS_CONFIG, "run.dir has more than %zu bytes", sizeof run->dir - 1);
    str_format(run->dir, sizeof run->dir, "%s", dir);
    run->created_dirs = count_missing(dir);
    Status status = file_make_dirs(dir, STATUS_CONFIG);
    if (status != STATUS_OK)
        status = STATUS_FAIL(STATUS_CONFIG, "run directory %s cannot be made: %.*s: choose another with run.dir=", dir,
                             status_sentence(), status_trail());
    else
        status = take_lock(run, host);
    if (status != STATUS_OK)
        run_lock_abandon(run);
    return status;
}

void run_unlock(RunDir *run) {
    if (run->fd >= 0)
        (void)close(run->fd); /* a note of who held it: nothing depends on these bytes */
    run->fd = -1;
}

void run_lock_abandon(RunDir *run) {
    char path[PATH_BYTES];
    str_path_join(path, sizeof path, run->dir, "lock");
    if (run->created_lock)
        (void)unlink(path);
    if (run->restore && write_holder(run->fd, path, run->holder_before) != STATUS_OK)
        status_trail_clear(); /* a note of who held it: nothing depends on it */
    run_unlock(run);
    str_format(path, sizeof path, "%s", run->dir);
    for (int i = 0; i < run->created_dirs; i++) {
        if (rmdir(path) != 0 && errno != ENOENT) /* not empty: somebody else's too; absent: never made */
            break;
        char *slash = strrchr(path, '/');
        if (slash == NULL)
            break;
        *slash = '\0';
    }
    run->created_dirs = 0;
    run->created_lock = false;
}

/* ---- identity ---- */

Status run_draw_id(char run_id[RUN_ID]) {
    unsigned char random[16];
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        return STATUS_FAIL(STATUS_CONFIG, "no random numbers for a run_id: getrandom: %s", strerror(errno));
    for (int i = 0; i < 16; i++)
        str_format(run_id + 2 * i, 3, "%02x", random[i]);
    return STATUS_OK;
}

static bool has_log(const char *dir) {
    char path[PATH_BYTES];
    str_path_join(path, sizeof path, dir, "log.jsonl");
    return file_size(path) > 0;
}

/* The run_id of log.jsonl's first line, or "" when there is none to be read. */
static Status read_log_id(const char *dir, char run_id[RUN_ID]) {
    char path[PATH_BYTES];
    run_id[0] = '\0';
    str_path_join(path, sizeof path, dir, "log.jsonl");
    char *text;
    size_t nbytes;
    TRY(file_read(path, 0, STATUS_CHECKPOINT, &text, &nbytes));
    JsonValue *root = NULL;
    if (json_parse(text, strcspn(text, "\n"), path, STATUS_CHECKPOINT, &root) == STATUS_OK) {
        const char *id = json_as_string(json_get(root, "run_id"));
        if (id != NULL && strlen(id) == RUN_ID - 1)
            str_format(run_id, RUN_ID, "%s", id);
    }
    status_trail_clear();
    json_free(root);
    heap_free(text);
    return STATUS_OK;
}

/* ---- the decision ---- */

static Status decide_set(RunStart *start, const char *dir, const char *set) {
    Manifest manifest;
    if (!file_exists(set))
        return STATUS_FAIL(STATUS_CHECKPOINT, "checkpoint %s does not exist: name a set with checkpoint.resume=", set);
    TRY(manifest_read(set, &manifest));
    str_format(start->set, sizeof start->set, "%s", set);
    str_format(start->run_id, sizeof start->run_id, "%s", manifest.run_id);
    start->step = manifest.step;
    start->resume = true;
    manifest_deinit(&manifest);
    start->keep_log = has_log(dir);
    if (!start->keep_log)
        return STATUS_OK;
    char log_id[RUN_ID];
    TRY(read_log_id(dir, log_id));
    if (strcmp(log_id, start->run_id) != 0)
        return STATUS_FAIL(
            STATUS_CHECKPOINT,
            "run directory %s holds another run: log.jsonl is of run %s, the checkpoint %s of run %s: " REMEDY, dir,
            log_id[0] != '\0' ? log_id : "(unknown)", set, start->run_id);
    return STATUS_OK;
}

static Status decide_auto(RunStart *start, const char *dir, Str *warnings) {
    char log_id[RUN_ID] = "", path[SET_PATH];
    const bool logged = has_log(dir);
    int64_t step;
    if (logged)
        TRY(read_log_id(dir, log_id));
    TRY(set_newest_valid(dir, log_id, &step, warnings));
    if (step >= 0) {
        set_path(path, dir, step);
        return decide_set(start, dir, path);
    }
    SetList list;
    TRY(set_list(dir, &list));
    const int count = list.count;
    set_list_deinit(&list);
    if (logged || count > 0)
        return STATUS_FAIL(
            STATUS_CHECKPOINT,
            "run directory %s holds %s but no usable checkpoint of that run (%d set%s passed over): " REMEDY, dir,
            logged ? "log.jsonl" : "checkpoints", count, count == 1 ? "" : "s");
    return run_draw_id(start->run_id);
}

Status run_decide(RunStart *start, const char *dir, const char *resume, Str *warnings) {
    *start = (RunStart){0};
    if (strcmp(resume, "none") == 0)
        return run_draw_id(start->run_id);
    if (strcmp(resume, "auto") == 0)
        return decide_auto(start, dir, warnings);
    if (strlen(resume) >= sizeof start->set)
        return STATUS_FAIL(STATUS_CHECKPOINT, "checkpoint.resume has more than %zu bytes", sizeof start->set - 1);
    return decide_set(start, dir, resume);
}
