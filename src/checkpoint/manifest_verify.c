/* A set against its table of contents: which files there are, their sizes, their SHA-256. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/str.h"
#include "checkpoint/hf.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"

#define PIECE (1L << 20) /* bytes read at a time */

static Status hash_pieces(int fd, const char *path, char *piece, char sha256[65], int64_t *nbytes) {
    Sha256 sha;
    sha256_begin(&sha);
    *nbytes = 0;
    for (;;) {
        const ssize_t got = read(fd, piece, PIECE);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return STATUS_FAIL(STATUS_CHECKPOINT, "%s: read at byte %" PRId64 ": %s", path, *nbytes, strerror(errno));
        if (got == 0)
            break;
        sha256_update(&sha, piece, (size_t)got);
        *nbytes += got;
    }
    sha256_end(&sha, sha256);
    return STATUS_OK;
}

Status manifest_hash_file(const char *path, char sha256[65], int64_t *nbytes) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return STATUS_FAIL(STATUS_CHECKPOINT, "%s: %s", path, strerror(errno));
    char *piece = heap_alloc(PIECE);
    const Status status = hash_pieces(fd, path, piece, sha256, nbytes);
    heap_free(piece);
    (void)close(fd); /* opened for reading only: nothing can be lost */
    return status;
}

static const ManifestFile *find_file(const Manifest *manifest, const char *name) {
    for (int i = 0; i < manifest->file_count; i++)
        if (strcmp(manifest->file[i].name, name) == 0)
            return &manifest->file[i];
    return NULL;
}

static Status check_names(const char *dir, const Manifest *manifest, char *const *names, int count) {
    for (int i = 0; i < count; i++)
        if (strcmp(names[i], MANIFEST_NAME) != 0 && find_file(manifest, names[i]) == NULL)
            return STATUS_FAIL(STATUS_CHECKPOINT,
                               "checkpoint %s: %s is not listed in " MANIFEST_NAME ": it does not belong to the set",
                               dir, names[i]);
    return STATUS_OK;
}

static Status check_size(const char *dir, const ManifestFile *file) {
    char path[CONFIG_PATH * 2];
    str_path_join(path, sizeof path, dir, file->name);
    const int64_t nbytes = file_size(path);
    if (nbytes < 0)
        return STATUS_FAIL(STATUS_CHECKPOINT, "checkpoint %s: %s is missing", dir, file->name);
    if (nbytes != file->nbytes)
        return STATUS_FAIL(STATUS_CHECKPOINT,
                           "checkpoint %s: %s has %" PRId64 " bytes, " MANIFEST_NAME " says %" PRId64, dir, file->name,
                           nbytes, file->nbytes);
    return STATUS_OK;
}

Status manifest_verify_listing(const char *dir, const Manifest *manifest) {
    char **names;
    int count;
    TRY(file_list(dir, STATUS_CHECKPOINT, &names, &count));
    const Status status = check_names(dir, manifest, names, count);
    file_list_free(names, count);
    TRY(status);
    for (int i = 0; i < manifest->file_count; i++)
        TRY(check_size(dir, &manifest->file[i]));
    return STATUS_OK;
}

static Status hash_tensor(const StFile *file, const StTensor *tensor, uint64_t *hash) {
    float piece[4096];
    const int64_t numel = st_numel(tensor);
    *hash = 0;
    for (int64_t first = 0; first < numel;) {
        const int64_t left = numel - first, n = left < 4096 ? left : 4096;
        TRY(st_read_f32(file, tensor, first, n, piece));
        *hash += manifest_tensor_hash(tensor->name, first, piece, n);
        first += n;
    }
    return STATUS_OK;
}

/* The first tensor of a damaged file whose own hash tells, or NULL: then the damage is in the header or not to be
 * located. */
static const StTensor *damaged_tensor(const StFile *file, const Manifest *manifest) {
    for (int i = 0; i < file->count; i++) {
        uint64_t listed, actual;
        if (manifest_find_tensor(manifest, file->tensor[i].name, &listed) &&
            hash_tensor(file, &file->tensor[i], &actual) == STATUS_OK && actual != listed)
            return &file->tensor[i];
    }
    return NULL;
}

static Status describe_damage(const char *dir, const Manifest *manifest, const ManifestFile *listed,
                              const char *sha256) {
    char path[CONFIG_PATH * 2];
    str_path_join(path, sizeof path, dir, listed->name);
    StFile file = {.fd = -1};
    const StTensor *tensor = NULL;
    const char *where = "";
    if (str_ends_with(listed->name, ".safetensors")) {
        if (st_open(&file, path) == STATUS_OK)
            tensor = damaged_tensor(&file, manifest);
        if (tensor == NULL)
            where = ": its header is damaged";
    }
    Status status;
    if (tensor != NULL)
        status = STATUS_FAIL(STATUS_CHECKPOINT,
                             "checkpoint %s: %s is damaged: SHA-256 %s, " MANIFEST_NAME
                             " says %s: tensor %s differs (bytes %" PRId64 " to %" PRId64 ")",
                             dir, listed->name, sha256, listed->sha256, tensor->name, tensor->begin, tensor->end);
    else
        status = STATUS_FAIL(STATUS_CHECKPOINT, "checkpoint %s: %s is damaged: SHA-256 %s, " MANIFEST_NAME " says %s%s",
                             dir, listed->name, sha256, listed->sha256, where);
    st_close(&file);
    return status;
}

Status manifest_verify_file(const char *dir, const Manifest *manifest, int index) {
    const ManifestFile *file = &manifest->file[index];
    char path[CONFIG_PATH * 2], sha256[65];
    int64_t nbytes;
    str_path_join(path, sizeof path, dir, file->name);
    TRY(manifest_hash_file(path, sha256, &nbytes));
    if (nbytes != file->nbytes)
        TRY(check_size(dir, file));
    if (strcmp(sha256, file->sha256) != 0)
        return describe_damage(dir, manifest, file, sha256);
    return STATUS_OK;
}

static Status check_listed(const char *dir, const Manifest *manifest, const StFile *file) {
    for (int t = 0; t < file->count; t++) {
        uint64_t hash;
        if (!manifest_find_tensor(manifest, file->tensor[t].name, &hash))
            return STATUS_FAIL(STATUS_CHECKPOINT, "checkpoint %s: tensor %s is not listed in " MANIFEST_NAME, dir,
                               file->tensor[t].name);
    }
    return STATUS_OK;
}

static bool lists_safetensors(const Manifest *manifest) {
    for (int f = 0; f < manifest->file_count; f++)
        if (str_ends_with(manifest->file[f].name, ".safetensors"))
            return true;
    return false;
}

Status manifest_verify_tensors(const char *dir, const Manifest *manifest) {
    HfDir files = {0};
    if (lists_safetensors(manifest))
        TRY(hf_open_set(&files, dir));
    Status status = STATUS_OK;
    for (int f = 0; f < files.count && status == STATUS_OK; f++)
        status = check_listed(dir, manifest, &files.file[f]);
    const int count = hf_count(&files);
    hf_close(&files);
    if (status == STATUS_OK && count != manifest->tensor_count)
        status = STATUS_FAIL(STATUS_CHECKPOINT, "checkpoint %s: " MANIFEST_NAME " lists %d tensors, the files hold %d",
                             dir, manifest->tensor_count, count);
    return status;
}

Status manifest_verify_files(const char *dir, const Manifest *manifest) {
    TRY(manifest_verify_listing(dir, manifest));
    for (int i = 0; i < manifest->file_count; i++)
        TRY(manifest_verify_file(dir, manifest, i));
    return manifest_verify_tensors(dir, manifest);
}
