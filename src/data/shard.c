/* One file of text or tokens, mapped and checked. */
#include "data/shard.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/fatal.h"
#include "base/hash.h"

#define MAGIC_U16 20240520
#define VERSION_U16 1
#define MAGIC_U32 20240801
#define VERSION_U32 7
#define SAMPLE_BLOCKS 64
#define SAMPLE_NBYTES 4096

static uint32_t load_u32(const unsigned char *bytes) {
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

static int32_t header_word(const Shard *shard, int index) {
    return (int32_t)load_u32(shard->map + 4 * index);
}

static uint32_t load_id(const Shard *shard, int64_t index) {
    const unsigned char *at = shard->ids + index * shard->id_nbytes;
    if (shard->id_nbytes == 1)
        return at[0];
    if (shard->id_nbytes == 2)
        return (uint32_t)at[0] | (uint32_t)at[1] << 8;
    return load_u32(at);
}

static Status check_file(int fd, const char *path, const char *key, int64_t *nbytes) {
    struct stat info;
    if (fstat(fd, &info) != 0)
        return STATUS_FAIL(STATUS_DATA, "%s: %s: %s", key, path, strerror(errno));
    if (S_ISDIR(info.st_mode))
        return STATUS_FAIL(STATUS_DATA, "%s: %s is a directory; name a file, or its files by a glob such as %s/*.bin",
                           key, path, path);
    if (!S_ISREG(info.st_mode))
        return STATUS_FAIL(STATUS_DATA, "%s: %s is not a regular file; only those can be mapped", key, path);
    if (info.st_size == 0)
        return STATUS_FAIL(STATUS_DATA, "%s: %s is empty; remove it from the data set or write it again", key, path);
    *nbytes = info.st_size;
    return STATUS_OK;
}

static Status map_file(Shard *shard, const char *key) {
    const int fd = open(shard->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return STATUS_FAIL(STATUS_DATA, "%s: %s: %s", key, shard->path, strerror(errno));
    Status status = check_file(fd, shard->path, key, &shard->nbytes);
    if (status == STATUS_OK) {
        void *map = mmap(NULL, (size_t)shard->nbytes, PROT_READ, MAP_PRIVATE, fd, 0);
        if (map == MAP_FAILED)
            status = STATUS_FAIL(STATUS_DATA, "%s: cannot map %s (%" PRId64 " bytes): %s", key, shard->path,
                                 shard->nbytes, strerror(errno));
        else
            shard->map = map;
    }
    close(fd);
    return status;
}

/* The size of an id by magic and version. */
static Status check_kind(Shard *shard, const char *key) {
    const int32_t magic = header_word(shard, 0), version = header_word(shard, 1);
    if (magic != MAGIC_U16 && magic != MAGIC_U32)
        return STATUS_FAIL(STATUS_DATA,
                           "%s: %s: magic number %" PRId32 " at byte 0 is neither %d (uint16 ids) nor %d (uint32 ids); "
                           "write it as a token shard, or set data.format=text",
                           key, shard->path, magic, MAGIC_U16, MAGIC_U32);
    const int32_t expected = magic == MAGIC_U16 ? VERSION_U16 : VERSION_U32;
    if (version != expected)
        return STATUS_FAIL(STATUS_DATA,
                           "%s: %s: version %" PRId32 " at byte 4, but magic number %" PRId32
                           " goes with version %" PRId32 "; write the shard again in that version",
                           key, shard->path, version, magic, expected);
    shard->id_nbytes = magic == MAGIC_U16 ? 2 : 4;
    return STATUS_OK;
}

static Status check_header(Shard *shard, const char *key) {
    if (shard->nbytes < SHARD_HEADER_NBYTES)
        return STATUS_FAIL(STATUS_DATA,
                           "%s: %s has %" PRId64 " bytes, a token shard starts with a header of %d; write it again, or "
                           "set data.format=text",
                           key, shard->path, shard->nbytes, SHARD_HEADER_NBYTES);
    TRY(check_kind(shard, key));
    const int64_t count = header_word(shard, 2);
    const int64_t expected = SHARD_HEADER_NBYTES + count * shard->id_nbytes; /* count has 32 bits */
    if (count < 0)
        return STATUS_FAIL(STATUS_DATA, "%s: %s: token count %" PRId64 " at byte 8 is negative; write the shard again",
                           key, shard->path, count);
    if (shard->nbytes != expected)
        return STATUS_FAIL(STATUS_DATA,
                           "%s: %s has %" PRId64 " bytes, but its header promises %" PRId64 " (%" PRId64
                           " ids of %d bytes "
                           "after %d); it was cut off or damaged: copy or write it again",
                           key, shard->path, shard->nbytes, expected, count, shard->id_nbytes, SHARD_HEADER_NBYTES);
    shard->ids = shard->map + SHARD_HEADER_NBYTES;
    shard->ntokens = count;
    return STATUS_OK;
}

static Status judge_format(const char *path, const char *key, DataFormat *format) {
    if (*format != FORMAT_AUTO)
        return STATUS_OK;
    if (!str_ends_with(path, ".txt") && !str_ends_with(path, ".bin"))
        return STATUS_FAIL(
            STATUS_DATA,
            "%s: cannot judge the format of %s: data.format=auto knows .txt (text) and .bin (tokens); set "
            "data.format to text or tokens",
            key, path);
    *format = str_ends_with(path, ".txt") ? FORMAT_TEXT : FORMAT_TOKENS;
    return STATUS_OK;
}

static Status open_checked(Shard *shard, const char *key, DataFormat format) {
    TRY(map_file(shard, key)); /* first: that a file is missing says more than its name */
    TRY(judge_format(shard->path, key, &format));
    if (format == FORMAT_TOKENS)
        return check_header(shard, key);
    shard->ids = shard->map;
    shard->ntokens = shard->nbytes;
    shard->id_nbytes = 1;
    return STATUS_OK;
}

Status shard_open(Shard *shard, const char *path, const char *key, DataFormat format) {
    *shard = (Shard){.path = heap_strdup(path)};
    const Status status = open_checked(shard, key, format);
    if (status != STATUS_OK)
        shard_close(shard);
    return status;
}

void shard_close(Shard *shard) {
    if (shard->map)
        munmap((void *)(uintptr_t)shard->map, (size_t)shard->nbytes);
    heap_free(shard->path);
    *shard = (Shard){0};
}

static Status bad_id(const Shard *shard, int64_t index, int64_t vocab_size) {
    const int64_t offset = (shard->ids - shard->map) + index * shard->id_nbytes;
    return STATUS_FAIL(STATUS_DATA,
                       "%s: token %" PRId64 " (byte %" PRId64 ") has id %" PRIu32
                       ", but ids must be below vocab_size = %" PRId64
                       "; use the tokenizer of the model, or correct model.vocab_size",
                       shard->path, index, offset, load_id(shard, index), vocab_size);
}

Status shard_check_ids(const Shard *shard, int64_t first, int64_t count, int64_t vocab_size) {
    DM_ASSERT(first >= 0 && count >= 0 && count <= shard->ntokens - first);
    for (int64_t i = first; i < first + count; i++)
        if (load_id(shard, i) >= vocab_size)
            return bad_id(shard, i, vocab_size);
    return STATUS_OK;
}

Status shard_read(const Shard *shard, int64_t first, int64_t count, int64_t vocab_size, int32_t *out) {
    TRY(shard_check_ids(shard, first, count, vocab_size));
    for (int64_t i = 0; i < count; i++)
        out[i] = (int32_t)load_id(shard, first + i);
    return STATUS_OK;
}

void shard_identity(const Shard *shard, Str *out) {
    Sha256 sha;
    char hex[65];
    sha256_begin(&sha);
    if (shard->nbytes <= SAMPLE_BLOCKS * SAMPLE_NBYTES) {
        sha256_update(&sha, shard->map, (size_t)shard->nbytes);
    } else {
        sha256_update(&sha, shard->map, SHARD_HEADER_NBYTES);
        const int64_t last = shard->nbytes - SAMPLE_NBYTES, gaps = SAMPLE_BLOCKS - 1;
        for (int64_t i = 0; i < SAMPLE_BLOCKS; i++) /* i*last/gaps without overflow */
            sha256_update(&sha, shard->map + last / gaps * i + last % gaps * i / gaps, SAMPLE_NBYTES);
    }
    sha256_end(&sha, hex);
    str_printf(out, "%s %" PRId64 " %s\n", str_base_name(shard->path), shard->nbytes, hex);
}
