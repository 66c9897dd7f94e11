/* The files of a set, in parallel; the manifest last. */
#include "checkpoint/writer.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/str.h"
#include "checkpoint/hf.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/set.h"
#include "device/products.h"

#define TAG_LISTS 12

/* What a rank has written, for the manifest. */
typedef struct Written {
    ManifestFile file[2];
    int file_count;
    ManifestTensor *tensor; /* owned */
    int tensor_count;
} Written;

/* Bytes at `offset` of an open file, and into its hash: files are written from front to back. */
typedef struct Output {
    int fd;
    int64_t offset;
    Sha256 sha;
    char path[SET_PATH + 128];
} Output;

static Status output_write(Output *out, const void *data, size_t nbytes) {
    TRY(file_pwrite(out->fd, data, nbytes, out->offset, out->path, STATUS_CHECKPOINT));
    sha256_update(&out->sha, data, nbytes);
    out->offset += (int64_t)nbytes;
    return STATUS_OK;
}

static Status output_close(Output *out, Status status) {
    if (status == STATUS_OK && fsync(out->fd) != 0)
        status = STATUS_FAIL(STATUS_CHECKPOINT, "checkpoint file %s: fsync: %s", out->path, strerror(errno));
    if (close(out->fd) != 0 && status == STATUS_OK)
        status = STATUS_FAIL(STATUS_CHECKPOINT, "checkpoint file %s: close: %s", out->path, strerror(errno));
    return status;
}

static Status write_contents(Output *out, const Snapshot *snapshot, const int *which, int count, const char *header,
                             int64_t header_nbytes) {
    TRY(output_write(out, header, (size_t)header_nbytes));
    for (int i = 0; i < count; i++)
        TRY(output_write(out, snapshot->data[which[i]], (size_t)snapshot->set->tensor[which[i]].numel * sizeof(float)));
    return STATUS_OK;
}

/* One safetensors file with this rank's weights, or with its optimizer state. */
static Status write_file(const Snapshot *snapshot, const char *dir, int rank, bool weights, Written *written) {
    const SetTensors *set = snapshot->set;
    StTensor *layout = HEAP_ALLOC(StTensor, set->count);
    int *which = HEAP_ALLOC(int, set->count), count = 0;
    for (int t = 0; t < set->count; t++) {
        const SetTensor *tensor = &set->tensor[t];
        if (tensor->writer != rank || (tensor->kind == STATE_WEIGHT) != weights)
            continue;
        StTensor *st = &layout[count];
        *st = (StTensor){.dtype = ST_F32, .ndim = tensor->ndim, .dim = {tensor->dim[0], tensor->dim[1]}};
        str_format(st->name, sizeof st->name, "%s", tensor->name);
        ManifestTensor *listed = &written->tensor[written->tensor_count++];
        str_format(listed->name, sizeof listed->name, "%s", tensor->name);
        listed->hash = manifest_tensor_hash(tensor->name, 0, snapshot->data[t], tensor->numel);
        which[count++] = t;
    }
    Status status = STATUS_OK;
    char *header = NULL;
    int64_t header_nbytes = 0, file_nbytes = 0;
    if (count > 0) {
        ManifestFile *file = &written->file[written->file_count];
        set_file_name(set, weights, rank, file->name, sizeof file->name);
        Output out = {.fd = -1};
        str_path_join(out.path, sizeof out.path, dir, file->name);
        sha256_begin(&out.sha);
        status = st_layout(layout, count, &header, &header_nbytes, &file_nbytes);
        if (status == STATUS_OK) {
            out.fd = open(out.path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
            if (out.fd < 0)
                status = STATUS_FAIL(STATUS_CHECKPOINT, "checkpoint file %s: %s", out.path, strerror(errno));
        }
        if (status == STATUS_OK)
            status = output_close(&out, write_contents(&out, snapshot, which, count, header, header_nbytes));
        sha256_end(&out.sha, file->sha256);
        file->nbytes = file_nbytes;
        written->file_count += status == STATUS_OK;
    }
    heap_free(header);
    heap_free(which);
    heap_free(layout);
    return status;
}

/* All ranks' lists, in rank order, at rank 0. */
static void collect(Comm *comm, const Written *mine, Manifest *manifest) {
    const int size = comm_size(comm), rank = comm_rank(comm);
    const int counts[2] = {mine->file_count, mine->tensor_count};
    int(*all)[2] = heap_alloc((size_t)size * sizeof *all);
    host_all_gather(comm, counts, all, sizeof counts);
    if (rank != 0) {
        host_send(comm, mine->file, (int64_t)sizeof(ManifestFile) * counts[0], 0, TAG_LISTS);
        host_send(comm, mine->tensor, (int64_t)sizeof(ManifestTensor) * counts[1], 0, TAG_LISTS + 1);
        heap_free(all);
        return;
    }
    int files = 2, tensors = 0; /* config.json and the index come from rank 0 */
    for (int r = 0; r < size; r++) {
        files += all[r][0];
        tensors += all[r][1];
    }
    manifest->file = HEAP_ALLOC(ManifestFile, files);
    manifest->tensor = HEAP_ALLOC(ManifestTensor, tensors);
    memcpy(manifest->file, mine->file, sizeof(ManifestFile) * (size_t)counts[0]);
    memcpy(manifest->tensor, mine->tensor, sizeof(ManifestTensor) * (size_t)counts[1]);
    manifest->file_count = counts[0];
    manifest->tensor_count = counts[1];
    for (int r = 1; r < size; r++) {
        host_recv(comm, manifest->file + manifest->file_count, (int64_t)sizeof(ManifestFile) * all[r][0], r, TAG_LISTS);
        host_recv(comm, manifest->tensor + manifest->tensor_count, (int64_t)sizeof(ManifestTensor) * all[r][1], r,
                  TAG_LISTS + 1);
        manifest->file_count += all[r][0];
        manifest->tensor_count += all[r][1];
    }
    heap_free(all);
}

static Status list_small_file(const char *dir, const char *name, Manifest *manifest) {
    ManifestFile *file = &manifest->file[manifest->file_count++];
    char path[SET_PATH + 128];
    str_format(file->name, sizeof file->name, "%s", name);
    str_path_join(path, sizeof path, dir, name);
    return manifest_hash_file(path, file->sha256, &file->nbytes);
}

/* Weights by file, for model.safetensors.index.json. */
static Status write_index(const char *dir, const SetTensors *set) {
    HfIndexEntry *entry = HEAP_ALLOC(HfIndexEntry, set->count);
    int count = 0;
    for (int t = 0; t < set->count; t++) {
        if (set->tensor[t].kind != STATE_WEIGHT)
            continue;
        HfIndexEntry *e = &entry[count++];
        str_format(e->tensor, sizeof e->tensor, "%s", set->tensor[t].name);
        set_file_name(set, true, set->tensor[t].writer, e->file, sizeof e->file);
        e->nbytes = set->tensor[t].numel * (int64_t)sizeof(float);
    }
    const Status status = hf_write_index(dir, entry, count);
    heap_free(entry);
    return status;
}

/* Rank 0: the small files, the manifest, the rename. */
static Status complete(const SaverOptions *options, const char *dir, const SetTensors *set, const SaveState *state,
                       Manifest *manifest) {
    const Config *config = options->config;
    TRY(hf_write_config(dir, &config->model));
    TRY(list_small_file(dir, HF_CONFIG_NAME, manifest));
    TRY(write_index(dir, set));
    TRY(list_small_file(dir, HF_INDEX_NAME, manifest));
    Str yaml = {0};
    config_dump_yaml(config, &yaml);
    manifest->step = state->step;
    manifest->samples = state->samples;
    manifest->adamw_t = state->adamw_t;
    manifest->tokens_total = state->tokens_total;
    manifest->seed = config->seed;
    manifest->fast = config->numerics.fast;
    manifest->segments = options->segments;
    str_format(manifest->products, sizeof manifest->products, "%s", device_products(options->device));
    manifest->mesh = options->plan->mesh;
    manifest->data_parallel = config->parallel.data;
    str_format(manifest->run_id, sizeof manifest->run_id, "%s", options->run_id);
    str_format(manifest->version, sizeof manifest->version, "%s", options->version);
    manifest->config_yaml = yaml.text;
    manifest->data_identity = heap_strdup(options->data_identity);
    TRY(manifest_write(dir, manifest));
    return set_commit(options->run_dir, state->step);
}

/* Rank 0: the new set is there, whatever becomes of the older ones. */
static void prune(const SaverOptions *options, SaveReport *report) {
    if (set_prune(options->run_dir, options->run_id, options->config->checkpoint.keep, report->state.step) != STATUS_OK)
        str_format(report->unpruned, sizeof report->unpruned, "%.1100s", status_trail());
    status_trail_clear();
}

static Status begin_set(const SaverOptions *options, const Snapshot *snapshot, const SaveState *state) {
    int64_t nbytes = 0;
    for (int t = 0; t < snapshot->set->count; t++)
        nbytes += snapshot->set->tensor[t].numel * (int64_t)sizeof(float);
    TRY(set_check_space(options->run_dir, nbytes));
    return set_begin(options->run_dir, state->step);
}

/* Rank 0: half a set would only take room. The reason of the failure stays the trail. */
static void discard(const SaverOptions *options) {
    char *why = heap_strdup(status_trail());
    if (set_remove_stale(options->run_dir) != STATUS_OK)
        status_trail_set(why);
    heap_free(why);
}

Status writer_run(const SaverOptions *options, Comm *comm, const Snapshot *snapshot, SaveReport *report) {
    const int rank = comm_rank(comm);
    const SaveState *state = &report->state;
    char dir[SET_PATH];
    set_temporary_path(dir, options->run_dir, state->step);
    TRY(comm_agree(comm, rank == 0 ? begin_set(options, snapshot, state) : STATUS_OK));
    Written written = {.tensor = HEAP_ALLOC(ManifestTensor, snapshot->set->count)};
    Status status = write_file(snapshot, dir, rank, true, &written);
    if (status == STATUS_OK)
        status = write_file(snapshot, dir, rank, false, &written);
    status = comm_agree(comm, status);
    Manifest manifest = {0};
    if (status == STATUS_OK) {
        collect(comm, &written, &manifest);
        if (rank == 0)
            status = complete(options, dir, snapshot->set, state, &manifest);
        status = comm_agree(comm, status);
    }
    if (rank == 0 && status != STATUS_OK)
        discard(options);
    else if (rank == 0)
        prune(options, report);
    for (int f = 0; f < manifest.file_count; f++)
        report->nbytes += manifest.file[f].nbytes;
    manifest_deinit(&manifest);
    heap_free(written.tensor);
    return status;
}
