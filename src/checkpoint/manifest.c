/* Reading trainer.json: its own hash first, then every member strictly. */
#include "checkpoint/manifest.h"

#include <inttypes.h>
#include <string.h>

#include "base/arena.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/str.h"

#define SELF_NBYTES 76          /* ,"self":"<64 digits>"}\n */
#define MANIFEST_MAX (1L << 28) /* bytes believed */

/* One pass over the object: what is read, and how many of its members have been asked for. */
typedef struct Reader {
    const char *path;
    const JsonValue *object;
    const char *where; /* "" or "numerics." */
    int asked;
} Reader;

void manifest_deinit(Manifest *manifest) {
    heap_free(manifest->config_yaml);
    heap_free(manifest->data_identity);
    heap_free(manifest->file);
    heap_free(manifest->tensor);
    *manifest = (Manifest){0};
}

uint64_t manifest_tensor_hash(const char *name, int64_t first, const float *x, int64_t n) {
    return hash_elements(hash_bytes(name, strlen(name), 0), first, x, n);
}

bool manifest_find_tensor(const Manifest *manifest, const char *name, uint64_t *hash) {
    for (int i = 0; i < manifest->tensor_count; i++)
        if (strcmp(manifest->tensor[i].name, name) == 0) {
            *hash = manifest->tensor[i].hash;
            return true;
        }
    return false;
}

static Status bad_member(const Reader *r, const char *key, const char *rule) {
    return STATUS_FAIL(STATUS_CHECKPOINT, "%s: member \"%s%s\" %s", r->path, r->where, key, rule);
}

static Status read_int(Reader *r, const char *key, int64_t least, int64_t *out) {
    r->asked++;
    if (!json_as_int(json_get(r->object, key), out) || *out < least)
        return bad_member(r, key, "is missing or out of bounds");
    return STATUS_OK;
}

static Status read_int32(Reader *r, const char *key, int *out) {
    int64_t value;
    TRY(read_int(r, key, 1, &value));
    if (value > INT32_MAX)
        return bad_member(r, key, "is out of bounds");
    *out = (int)value;
    return STATUS_OK;
}

/* Borrowed from the document. */
static Status read_string(Reader *r, const char *key, const char **out) {
    r->asked++;
    *out = json_as_string(json_get(r->object, key));
    return *out != NULL ? STATUS_OK : bad_member(r, key, "is missing or no string");
}

static Status read_text(Reader *r, const char *key, char *buf, size_t capacity) {
    const char *text;
    TRY(read_string(r, key, &text));
    if (strlen(text) >= capacity)
        return bad_member(r, key, "is too long");
    memcpy(buf, text, strlen(text) + 1);
    return STATUS_OK;
}

/* Exactly `digits` lower-case hex digits. */
static Status read_hex(Reader *r, const char *key, char *buf, size_t digits) {
    TRY(read_text(r, key, buf, digits + 1));
    if (strspn(buf, "0123456789abcdef") != digits)
        return bad_member(r, key, "is no lower-case hex number of the right length");
    return STATUS_OK;
}

/* One of two words; `second` is true for the second. */
static Status read_choice(Reader *r, const char *key, const char *const words[2], bool *second) {
    const char *text;
    TRY(read_string(r, key, &text));
    *second = strcmp(text, words[1]) == 0;
    if (!*second && strcmp(text, words[0]) != 0)
        return bad_member(r, key, "has an unknown value");
    return STATUS_OK;
}

/* Nothing but what was asked for: the parser has refused duplicates, so counting is enough. */
static Status read_end(const Reader *r) {
    if (json_count(r->object) != r->asked)
        return STATUS_FAIL(STATUS_CHECKPOINT, "%s: unknown members besides the %d known ones in \"%s\"", r->path,
                           r->asked, r->where);
    return STATUS_OK;
}

static Status read_seed(Reader *r, int64_t *seed) {
    const char *digits = json_as_string(json_get(r->object, "seed"));
    if (digits == NULL)
        return read_int(r, "seed", INT64_MIN, seed);
    r->asked++;
    return str_parse_int(digits, seed) ? STATUS_OK : bad_member(r, "seed", "is no number");
}

static Status read_position(Reader *r, Manifest *m) {
    int64_t format;
    TRY(read_int(r, "format", 1, &format));
    if (format != MANIFEST_FORMAT)
        return STATUS_FAIL(STATUS_CHECKPOINT, "%s: format %" PRId64 "; this program reads format %d", r->path, format,
                           MANIFEST_FORMAT);
    TRY(read_text(r, "version", m->version, sizeof m->version));
    TRY(read_hex(r, "run_id", m->run_id, 32));
    TRY(read_int(r, "step", 0, &m->step));
    TRY(read_int(r, "samples", 0, &m->samples));
    TRY(read_int(r, "adamw_t", 0, &m->adamw_t));
    TRY(read_int(r, "tokens_total", 0, &m->tokens_total));
    return read_seed(r, &m->seed);
}

static Status read_numerics(Reader *r, Manifest *m) {
    Reader in = {r->path, json_get(r->object, "numerics"), "numerics.", 0};
    r->asked++;
    TRY(read_choice(&in, "mode", (const char *const[2]){"exact", "fast"}, &m->fast));
    TRY(read_int32(&in, "segments", &m->segments));
    if (json_get(in.object, "products") != NULL)
        TRY(read_text(&in, "products", m->products, sizeof m->products));
    return read_end(&in);
}

static Status read_mesh(Reader *r, Manifest *m) {
    Reader in = {r->path, json_get(r->object, "mesh"), "mesh.", 0};
    r->asked++;
    TRY(read_int32(&in, "replicate", &m->mesh.replicate));
    TRY(read_int32(&in, "shard", &m->mesh.shard));
    TRY(read_int32(&in, "tp", &m->mesh.tp));
    return read_end(&in);
}

static Status read_setting(Reader *r, Manifest *m) {
    bool ddp;
    const char *text;
    TRY(read_numerics(r, m));
    TRY(read_mesh(r, m));
    TRY(read_choice(r, "data_parallel", (const char *const[2]){"fsdp", "ddp"}, &ddp));
    m->data_parallel = ddp ? DATA_DDP : DATA_FSDP;
    TRY(read_string(r, "config", &text));
    m->config_yaml = heap_strdup(text);
    TRY(read_string(r, "data", &text));
    m->data_identity = heap_strdup(text);
    return STATUS_OK;
}

/* A name that could lead out of the directory is damage, whatever its hash says. */
static bool plain_name(const char *name) {
    return name[0] != '\0' && name[0] != '.' && strchr(name, '/') == NULL && strcmp(name, MANIFEST_NAME) != 0;
}

static Status read_file(const char *path, const JsonValue *value, ManifestFile *file) {
    Reader in = {path, value, "files[].", 0};
    TRY(read_text(&in, "name", file->name, sizeof file->name));
    if (!plain_name(file->name))
        return STATUS_FAIL(STATUS_CHECKPOINT, "%s: \"%s\" is no name for a file of a set", path, file->name);
    TRY(read_int(&in, "bytes", 0, &file->nbytes));
    TRY(read_hex(&in, "sha256", file->sha256, 64));
    return read_end(&in);
}

static Status read_tensor(const char *path, const JsonValue *value, ManifestTensor *tensor) {
    Reader in = {path, value, "tensors[].", 0};
    char digits[17];
    TRY(read_text(&in, "name", tensor->name, sizeof tensor->name));
    TRY(read_hex(&in, "hash", digits, 16));
    for (const char *c = digits; *c != '\0'; c++)
        tensor->hash = tensor->hash << 4 | (uint64_t)(*c <= '9' ? *c - '0' : *c - 'a' + 10);
    return read_end(&in);
}

static Status read_contents(Reader *r, Manifest *m) {
    const JsonValue *files = json_get(r->object, "files"), *tensors = json_get(r->object, "tensors");
    r->asked += 2;
    if (!json_is_array(files) || !json_is_array(tensors))
        return STATUS_FAIL(STATUS_CHECKPOINT, "%s: \"files\" or \"tensors\" is missing or no list", r->path);
    m->file_count = json_count(files);
    m->file = HEAP_ALLOC(ManifestFile, m->file_count + 1);
    for (int i = 0; i < m->file_count; i++)
        TRY(read_file(r->path, json_at(files, i), &m->file[i]));
    m->tensor_count = json_count(tensors);
    m->tensor = HEAP_ALLOC(ManifestTensor, m->tensor_count + 1);
    for (int i = 0; i < m->tensor_count; i++)
        TRY(read_tensor(r->path, json_at(tensors, i), &m->tensor[i]));
    return STATUS_OK;
}

static Status read_members(const char *path, const JsonValue *root, Manifest *m) {
    Reader r = {path, root, "", 0};
    TRY(read_position(&r, m));
    TRY(read_setting(&r, m));
    TRY(read_contents(&r, m));
    r.asked++; /* "self" */
    return read_end(&r);
}

static Status check_self(const char *path, const char *text, size_t nbytes) {
    if (nbytes < SELF_NBYTES)
        return STATUS_FAIL(STATUS_CHECKPOINT, "%s: %zu bytes are too short (truncated)", path, nbytes);
    const size_t body = nbytes - SELF_NBYTES;
    char tail[SELF_NBYTES + 1], sha256[65];
    sha256_hex(text, body, sha256);
    str_format(tail, sizeof tail, ",\"self\":\"%s\"}\n", sha256);
    if (memcmp(text + body, tail, SELF_NBYTES) != 0)
        return STATUS_FAIL(STATUS_CHECKPOINT,
                           "%s: its last member is not the SHA-256 of the bytes before it (%s): truncated or changed",
                           path, sha256);
    return STATUS_OK;
}

static Status read_checked(const char *path, const char *text, size_t nbytes, Manifest *manifest) {
    TRY(check_self(path, text, nbytes));
    JsonValue *root = NULL;
    TRY(json_parse(text, nbytes, path, STATUS_CHECKPOINT, &root));
    const Status status = read_members(path, root, manifest);
    json_free(root);
    return status;
}

Status manifest_read(const char *dir, Manifest *manifest) {
    char path[CONFIG_PATH * 2];
    *manifest = (Manifest){0};
    str_path_join(path, sizeof path, dir, MANIFEST_NAME);
    char *text;
    size_t nbytes;
    if (!file_exists(path))
        return STATUS_FAIL(
            STATUS_CHECKPOINT,
            "%s is no checkpoint set: it has no %s (the sets of a run are RUN_DIR/checkpoints/step-...; an "
            "exported or foreign directory is for checkpoint.init_from)",
            dir, MANIFEST_NAME);
    TRY(file_read(path, MANIFEST_MAX, STATUS_CHECKPOINT, &text, &nbytes));
    const Status status = read_checked(path, text, nbytes, manifest);
    heap_free(text);
    if (status != STATUS_OK)
        manifest_deinit(manifest);
    return status;
}
