/* Reading a set, or foreign weights, piece by piece. */
#include "checkpoint/load.h"

#include <string.h>

#include "base/arena.h"
#include "base/fatal.h"
#include "base/file.h"
#include "base/str.h"
#include "checkpoint/hf.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/set.h"
#include "checkpoint/tensors.h"

#define BOUNCE 65536 /* elements that pass through the host at a time */

Status load_open(const char *dir, Comm *world, Manifest *manifest) {
    TRY(comm_agree(world, manifest_read(dir, manifest)));
    Status status = comm_agree(world, manifest_verify_listing(dir, manifest));
    if (status == STATUS_OK) {
        for (int f = comm_rank(world); f < manifest->file_count && status == STATUS_OK; f += comm_size(world))
            status = manifest_verify_file(dir, manifest, f);
        status = comm_agree(world, status);
    }
    if (status == STATUS_OK)
        status = comm_agree(world, manifest_verify_tensors(dir, manifest));
    if (status != STATUS_OK)
        manifest_deinit(manifest);
    return status;
}

typedef struct Differences {
    const Config *config;
    bool look;      /* only what can never change */
    bool may_allow; /* a key among them may be named in checkpoint.allow_changes */
    Str lines;
} Differences;

static bool allowed(const Config *config, const char *key) {
    for (int i = 0; i < config->checkpoint.allow_count; i++)
        if (strcmp(config->checkpoint.allow_changes[i], key) == 0)
            return true;
    return false;
}

static void note_difference(void *arg, const char *key, const char *saved, const char *now, int identity) {
    Differences *d = arg;
    if (identity == 0 || (identity == 1 && (d->look || allowed(d->config, key))))
        return;
    d->may_allow = d->may_allow || identity == 1;
    str_printf(&d->lines, "\n    %s: saved %s, now %s%s", key, saved, now,
               identity == 2 ? " (can never change on resume)" : "");
}

Status load_check_config(const char *dir, const Manifest *manifest, const Config *config, int segments,
                         const char *data_identity) {
    Config saved;
    TRY(config_load_text(&saved, manifest->config_yaml, strlen(manifest->config_yaml), dir));
    Differences d = {.config = config, .look = data_identity == NULL};
    config_diff(&saved, config, note_difference, &d);
    if (manifest->segments != segments)
        str_printf(&d.lines, "\n    segments after lowering: saved %d, now %d (can never change on resume)",
                   manifest->segments, segments);
    if (data_identity && strcmp(manifest->data_identity, data_identity) != 0 && !allowed(config, "data.train")) {
        d.may_allow = true;
        str_printf(&d.lines,
                   "\n    data.train: the files differ in name, size or contents from those of the saved run");
    }
    Status status = STATUS_OK;
    if (d.lines.len > 0)
        status = STATUS_FAIL(STATUS_CHECKPOINT, "checkpoint %s belongs to a run with another identity:%s%s", dir,
                             d.lines.text,
                             d.look        ? ""
                             : d.may_allow ? "\n  to continue with the change on purpose name the key in "
                                             "checkpoint.allow_changes; to start anew set "
                                             "run.dir or checkpoint.resume=none"
                                           : "\n  to start anew set run.dir or checkpoint.resume=none");
    str_deinit(&d.lines);
    return status;
}

/* Walking this rank's pieces: first checking that each can be read, then reading. */
typedef struct Reader {
    const HfDir *files;
    const Plan *plan;
    const char *dir;
    Stream *compute;
    bool weights_only;
    float *bounce;
    Status status;
} Reader;

static const StTensor *find(const Reader *r, const StatePiece *piece, const StFile **file) {
    char name[160];
    str_format(name, sizeof name, "%s%s", state_prefix(piece->kind), r->plan->params->row[piece->param].name);
    return hf_find(r->files, name, file);
}

static Status read_piece(const Reader *r, const StatePiece *piece) {
    const bool zero = r->weights_only && piece->kind != STATE_WEIGHT;
    const StFile *file = NULL;
    const StTensor *tensor = zero ? NULL : find(r, piece, &file);
    for (int64_t at = 0; at < piece->count; at += BOUNCE) {
        const int64_t n = piece->count - at < BOUNCE ? piece->count - at : BOUNCE;
        if (zero)
            memset(r->bounce, 0, (size_t)n * sizeof(float));
        else
            TRY(st_read_f32(file, tensor, piece->first + at, n, r->bounce));
        device_copy_from_host(r->compute, piece->ptr + at, r->bounce, (size_t)n * sizeof(float));
    }
    return STATUS_OK;
}

static void visit_read(void *arg, const StatePiece *piece) {
    Reader *r = arg;
    if (r->status == STATUS_OK)
        r->status = read_piece(r, piece);
}

static Status check_shape(const char *dir, const SetTensor *want, const StTensor *have) {
    if (!have)
        return STATUS_FAIL(STATUS_CHECKPOINT, "checkpoint %s: tensor %s is missing", dir, want->name);
    bool same = have->ndim == want->ndim;
    for (int i = 0; i < want->ndim && same; i++)
        same = have->dim[i] == want->dim[i];
    if (!same)
        return STATUS_FAIL(STATUS_CHECKPOINT,
                           "checkpoint %s: tensor %s has %d dims starting [%lld, %lld], the model wants [%lld, %lld]",
                           dir, want->name, have->ndim, (long long)have->dim[0], (long long)have->dim[1],
                           (long long)want->dim[0], (long long)want->dim[1]);
    return STATUS_OK;
}

/* Every tensor of the plan is there with its shape, and (whole sets) nothing else. */
static Status check_tensors(const char *dir, const HfDir *files, const Plan *plan, bool weights_only) {
    SetTensors set;
    set_tensors_create(&set, plan);
    Status status = STATUS_OK;
    int wanted = 0;
    for (int t = 0; t < set.count && status == STATUS_OK; t++) {
        if (weights_only && set.tensor[t].kind != STATE_WEIGHT)
            continue;
        const StFile *file = NULL;
        wanted++;
        status = check_shape(dir, &set.tensor[t], hf_find(files, set.tensor[t].name, &file));
    }
    if (status == STATUS_OK && !weights_only && hf_count(files) != wanted)
        status = STATUS_FAIL(STATUS_CHECKPOINT, "checkpoint %s holds %d tensors, the model has %d", dir,
                             hf_count(files), wanted);
    set_tensors_destroy(&set);
    return status;
}

static Status read_all(const char *dir, const HfDir *files, Parallel *parallel, const Plan *plan, Device *device,
                       Comm *world, bool weights_only) {
    TRY(comm_agree(world, check_tensors(dir, files, plan, weights_only)));
    Reader reader = {.files = files,
                     .plan = plan,
                     .dir = dir,
                     .compute = device_stream(device, STREAM_COMPUTE),
                     .weights_only = weights_only,
                     .bounce = HEAP_ALLOC(float, BOUNCE)};
    parallel_drain(parallel);
    store_visit(parallel_store(parallel), visit_read, &reader);
    heap_free(reader.bounce);
    return comm_agree(world, reader.status);
}

Status load_state(const char *dir, Parallel *parallel, const Plan *plan, Device *device, Comm *world,
                  bool weights_only) {
    HfDir files = {0};
    TRY(comm_agree(world, hf_open_set(&files, dir)));
    const Status status = read_all(dir, &files, parallel, plan, device, world, weights_only);
    hf_close(&files);
    return status;
}

static bool is_set(const char *dir) {
    char path[SET_PATH + 32];
    str_path_join(path, sizeof path, dir, MANIFEST_NAME);
    return file_exists(path);
}

Status load_init_from(const char *dir, const ModelConfig *model, Parallel *parallel, const Plan *plan, Device *device,
                      Comm *world) {
    if (is_set(dir)) { /* one of our own: its bytes are known */
        Manifest manifest;
        TRY(load_open(dir, world, &manifest));
        manifest_deinit(&manifest);
    }
    TRY(comm_agree(world, hf_check(dir, model)));
    HfDir files = {0};
    TRY(comm_agree(world, hf_open(&files, dir)));
    const Status status = read_all(dir, &files, parallel, plan, device, world, true);
    hf_close(&files);
    return status;
}
