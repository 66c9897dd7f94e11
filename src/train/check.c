/* The phases of a start that need no MPI, in their order. */
#include "train/check.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/file.h"
#include "checkpoint/hf.h"
#include "checkpoint/load.h"
#include "checkpoint/run.h"
#include "checkpoint/tensors.h"
#include "comm/world.h"
#include "data/dataset.h"
#include "device/device.h"
#include "optim/schedule.h"
#include "train/memory.h"
#include "train/sample.h"

#define MIB 1048576.0

/* ---- data ---- */

static Status open_set(const Config *c, const char *pattern, const char *key, Dataset **dataset) {
    Str files = {0};
    const DatasetOptions options = {.pattern = pattern,
                                    .key = key,
                                    .format = c->data.format,
                                    .seq_len = c->batch.seq_len,
                                    .vocab_size = c->model.vocab_size};
    Status status = dataset_list(pattern, key, &files);
    if (status == STATUS_OK)
        status = dataset_open(dataset, &options, files.text);
    str_deinit(&files);
    return status;
}

/* What later checks compare with. */
typedef struct Found {
    Str identity;        /* of the training files */
    int64_t total_steps; /* of the run            */
} Found;

/* All token ids, however many: a run checks those beyond 2 GiB as it comes to them. */
static Status check_set(const Config *c, const char *pattern, const char *key, Found *found, Str *out) {
    Dataset *dataset = NULL;
    TRY(open_set(c, pattern, key, &dataset));
    Status status = dataset_check_ids(dataset, 0, 1);
    if (status == STATUS_OK && found)
        status = dataset_identity(dataset, &found->identity);
    if (status == STATUS_OK) {
        str_printf(out, "%-14s %d file%s, %" PRId64 " tokens, %" PRId64 " samples, %" PRId64 " tokens in dropped tails",
                   key, dataset_file_count(dataset), dataset_file_count(dataset) == 1 ? "" : "s",
                   dataset_tokens(dataset), dataset_samples(dataset), dataset_dropped(dataset));
        if (found) {
            found->total_steps = schedule_total_steps(c, dataset_samples(dataset));
            str_printf(out, "; %" PRId64 " steps", found->total_steps);
        }
        str_append(out, "\n");
    }
    dataset_close(dataset);
    return status;
}

/* ---- the device ---- */

/* As on this machine, whatever the node that will run. */
static Status check_device(const Config *c, DeviceChoice *choice, Str *out) {
    const char *transport;
    TRY(device_choose(choice, c->device, 0));
    TRY(transport_choose(c->comm.transport, choice->backend, &transport));
    str_printf(out, "%-14s %s: %s; transport %s\n", "device", choice->backend, choice->why, transport);
    return STATUS_OK;
}

/* ---- memory ---- */

static Status check_memory(const Blueprint *b, const DeviceChoice *choice, Str *out) {
    const int world = mesh_size(b->plan.mesh);
    MemoryLine largest[MEMORY_LINES] = {{0}}, lines[MEMORY_LINES];
    size_t node = 0;
    SetTensors saved;
    set_tensors_create(&saved, &b->plan);
    for (int r = 0; r < world; r++) {
        memory_plan(&b->plan, &b->config, b->config.checkpoint.every > 0 ? &saved : NULL, mesh_coord(b->plan.mesh, r),
                    lines);
        node += memory_total(lines);
        if (memory_total(lines) > memory_total(largest))
            memcpy(largest, lines, sizeof largest);
    }
    set_tensors_destroy(&saved);
    if (choice->gpus > 0) {
        str_printf(out, "%-14s %.1f MiB on a GPU for the largest rank: the start compares with what is free\n",
                   "memory", (double)(memory_total(largest) - memory_total_on_host(largest)) / MIB);
        return STATUS_OK;
    }
    TRY(memory_check(b->config.path, node, world, largest));
    str_printf(out, "%-14s %.1f MiB for %d rank%s on this node, %.1f MiB available\n", "memory", (double)node / MIB,
               world, world == 1 ? "" : "s", (double)memory_available() / MIB);
    return STATUS_OK;
}

/* ---- the run directory ---- */

/* The directory itself, or the nearest one above it that exists. */
static void existing_ancestor(const char *dir, char *buf, size_t capacity) {
    str_format(buf, capacity, "%s", dir);
    while (!file_exists(buf)) {
        char *slash = strrchr(buf, '/');
        if (slash == NULL)
            str_format(buf, capacity, ".");
        else
            slash[slash == buf ? 1 : 0] = '\0';
    }
}

static Status check_writable(const char *dir) {
    char at[CONFIG_PATH];
    struct stat info;
    existing_ancestor(dir, at, sizeof at);
    if (stat(at, &info) != 0)
        return STATUS_FAIL(STATUS_CONFIG, "run directory %s: %s: %s", dir, at, strerror(errno));
    if (!S_ISDIR(info.st_mode))
        return STATUS_FAIL(STATUS_CONFIG, "run directory %s: %s is not a directory: choose another with run.dir=", dir,
                           at);
    if (access(at, W_OK | X_OK) != 0)
        return STATUS_FAIL(STATUS_CONFIG,
                           "run directory %s cannot be written: %s: %s: choose another with run.dir=", dir, at,
                           strerror(errno));
    return STATUS_OK;
}

static Status probe_lock(const char *dir, const char *path, int fd) {
    if (flock(fd, LOCK_SH | LOCK_NB) == 0) /* given back by close */
        return STATUS_OK;
    char holder[256] = "";
    const ssize_t n = pread(fd, holder, sizeof holder - 1, 0);
    holder[n > 0 ? (size_t)n : 0] = '\0';
    holder[strcspn(holder, "\n")] = '\0';
    return STATUS_FAIL(STATUS_CHECKPOINT,
                       "run directory %s is in use by %s (lock %s): wait for it to end or stop it, or "
                       "choose another directory with run.dir=",
                       dir, holder[0] != '\0' ? holder : "another process", path);
}

/* A lock that is held now; one that nobody holds, or none, is free. */
static Status check_lock(const char *dir) {
    char path[CONFIG_PATH + 8];
    str_path_join(path, sizeof path, dir, "lock");
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return STATUS_OK;
    if (fd < 0)
        return STATUS_FAIL(STATUS_CONFIG, "%s: %s: choose another directory with run.dir=", path, strerror(errno));
    const Status status = probe_lock(dir, path, fd);
    (void)close(fd); /* opened for reading only: nothing can be lost */
    return status;
}

static int64_t set_nbytes(const Plan *plan) {
    SetTensors set;
    set_tensors_create(&set, plan);
    int64_t nbytes = 0;
    for (int t = 0; t < set.count; t++)
        nbytes += set.tensor[t].numel * (int64_t)sizeof(float);
    set_tensors_destroy(&set);
    return nbytes;
}

static Status check_run_dir(const Blueprint *b, Str *out) {
    const char *dir = b->config.run.dir;
    TRY(check_writable(dir));
    TRY(check_lock(dir));
    if (b->config.checkpoint.every > 0)
        TRY(set_check_space(dir, set_nbytes(&b->plan)));
    str_printf(out, "%-14s %s: %s\n", "run directory", dir, file_exists(dir) ? "writable" : "can be made");
    return STATUS_OK;
}

/* ---- what it starts from ---- */

static Status check_identity(const Blueprint *b, const RunStart *start, const char *data_identity) {
    Manifest manifest;
    TRY(manifest_read(start->set, &manifest));
    Status status = STATUS_OK;
    if (strcmp(b->config.checkpoint.resume, "auto") != 0) /* auto has read every byte already */
        status = manifest_verify_files(start->set, &manifest);
    if (status == STATUS_OK)
        status = load_check_config(start->set, &manifest, &b->config, b->shape.segments, data_identity);
    manifest_deinit(&manifest);
    return status;
}

static Status check_weight(const char *dir, const Param *row, const StTensor *have) {
    if (!have)
        return STATUS_FAIL(STATUS_CHECKPOINT, "checkpoint.init_from %s: tensor %s is missing", dir, row->name);
    bool same = have->ndim == row->ndim;
    for (int i = 0; i < row->ndim && same; i++)
        same = have->dim[i] == row->dim[i];
    if (!same)
        return STATUS_FAIL(STATUS_CHECKPOINT, "checkpoint.init_from %s: tensor %s has another shape than the model's",
                           dir, row->name);
    return STATUS_OK;
}

static Status check_init_from(const Blueprint *b, const char *dir) {
    HfDir files = {0};
    TRY(hf_check(dir, &b->config.model));
    TRY(hf_open(&files, dir));
    Status status = STATUS_OK;
    for (int i = 0; i < b->params.count && status == STATUS_OK; i++) {
        const StFile *file = NULL;
        status = check_weight(dir, &b->params.row[i], hf_find(&files, b->params.row[i].name, &file));
    }
    hf_close(&files);
    return status;
}

static void print_passed_over(const Str *lines, Str *out) {
    for (const char *line = lines->len > 0 ? lines->text : ""; *line != '\0';) {
        const int n = (int)strcspn(line, "\n");
        str_printf(out, "%-14s %.*s\n", "warning", n, line);
        line += n + (line[n] == '\n');
    }
}

static Status check_state(const Blueprint *b, const Found *found, Str *out) {
    const Config *c = &b->config;
    RunStart start;
    Str passed_over = {0};
    const Status status = run_decide(&start, c->run.dir, c->checkpoint.resume, &passed_over);
    print_passed_over(&passed_over, out);
    str_deinit(&passed_over);
    TRY(status);
    if (start.resume) {
        TRY(check_identity(b, &start, found->identity.text));
        str_printf(out, "%-14s resumes %s, step %" PRId64 " of %" PRId64 "%s\n", "start", start.set, start.step,
                   found->total_steps, start.step >= found->total_steps ? ": the run is finished" : "");
    } else if (c->checkpoint.init_from[0] != '\0') {
        TRY(check_init_from(b, c->checkpoint.init_from));
        str_printf(out, "%-14s a new run with the weights of %s\n", "start", c->checkpoint.init_from);
    } else {
        str_printf(out, "%-14s a new run, seed %" PRId64 "\n", "start", c->seed);
    }
    return STATUS_OK;
}

/* ---- all of it ---- */

/* What is wrong so far: the sentences, one after the other, and whose failure the first one is. */
typedef struct Problems {
    Status first;
    Str text;
} Problems;

/* Takes a failure over from the trail, without the path it took. False when there is none. */
static bool take(Problems *problems, Status status) {
    if (status == STATUS_OK)
        return false;
    if (problems->first == STATUS_OK)
        problems->first = status;
    if (problems->text.len > 0)
        str_append(&problems->text, "\n");
    str_append_n(&problems->text, status_trail(), (size_t)status_sentence());
    status_trail_clear();
    return true;
}

/* A part is left out where it builds on one that failed. */
static void check_parts(const Blueprint *b, Problems *problems, Found *found, Str *out) {
    const Config *c = &b->config;
    DeviceChoice choice;
    take(problems, sample_check(c));
    const bool no_device = take(problems, check_device(c, &choice, out));
    const bool no_data = take(problems, check_set(c, c->data.train, "data.train", found, out));
    if (c->data.val[0] != '\0')
        take(problems, check_set(c, c->data.val, "data.val", NULL, out));
    if (!no_device)
        take(problems, check_memory(b, &choice, out));
    take(problems, check_run_dir(b, out));
    if (!no_data)
        take(problems, check_state(b, found, out));
}

Status check_start(const Blueprint *b, Str *out) {
    Found found = {0};
    Problems problems = {0};
    str_printf(out, "%-14s %s\n", "configuration", b->config.path);
    str_printf(out, "%-14s ", "mesh");
    mesh_print(b->plan.mesh, out);
    str_printf(out, "; %" PRId64 " parameters; plan %016" PRIx64 "\n",
               params_total(&b->params, ROLE_MUON) + params_total(&b->params, ROLE_ADAMW), b->plan.hash);
    check_parts(b, &problems, &found, out);
    str_deinit(&found.identity);
    if (problems.first == STATUS_OK)
        str_append(out, "everything a start checks is in order\n");
    const Status status =
        problems.first == STATUS_OK ? STATUS_OK : STATUS_FAIL(problems.first, "%s", problems.text.text);
    str_deinit(&problems.text);
    return status;
}
