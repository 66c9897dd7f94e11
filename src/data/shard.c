/* One file of text or tokens, checked and read where it is asked for. It is not mapped: a file that shrinks under a
 * mapping kills its reader, a short read can be named. */
#include "data/shard.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/fatal.h"
#include "base/file.h"
#include "base/hash.h"

#define MAGIC_U16 20240520
#define VERSION_U16 1
#define MAGIC_U32 20240801
#define VERSION_U32 7
#define SAMPLE_BLOCKS 64
#define SAMPLE_NBYTES 4096
#define PIECE_NBYTES 16384 /* read at once; a multiple of every id's size */

static uint32_t load_u32(const unsigned char *bytes) {
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

static uint32_t id_at(const unsigned char *at, int nbytes) {
    if (nbytes == 1)
        return at[0];
    if (nbytes == 2)
        return (uint32_t)at[0] | (uint32_t)at[1] << 8;
    return load_u32(at);
}

/* Bytes [offset, offset + nbytes) of the file. */
static Status read_at(const Shard *shard, int64_t offset, unsigned char *buf, int64_t nbytes) {
    struct stat now;
    const Status status = file_pread(shard->fd, buf, (size_t)nbytes, offset, shard->path, STATUS_DATA);
    if (status == STATUS_OK || fstat(shard->fd, &now) != 0 || now.st_size >= shard->nbytes)
        return status;
    return STATUS_FAIL(STATUS_DATA,
                       "%s has %" PRId64 " bytes, but had %" PRId64
                       " when it was opened: something cut it off since; put it back and start again",
                       shard->path, (int64_t)now.st_size, shard->nbytes);
}

static Status check_file(int fd, const char *path, const char *key, int64_t *nbytes) {
    struct stat info;
    if (fstat(fd, &info) != 0)
        return STATUS_FAIL(STATUS_DATA, "%s: %s: %s", key, path, strerror(errno));
    if (S_ISDIR(info.st_mode))
        return STATUS_FAIL(STATUS_DATA, "%s: %s is a directory; name a file, or its files by a glob such as %s/*.bin",
                           key, path, path);
    if (!S_ISREG(info.st_mode))
        return STATUS_FAIL(STATUS_DATA, "%s: %s is not a regular file; only those can be read at any place", key, path);
    if (info.st_size == 0)
        return STATUS_FAIL(STATUS_DATA, "%s: %s is empty; remove it from the data set or write it again", key, path);
    *nbytes = info.st_size;
    return STATUS_OK;
}

/* A data set may have more files than a process has descriptors by default. */
static int open_descriptor(const char *path) {
    const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK;
    const int fd = open(path, flags);
    struct rlimit limit;
    if (fd >= 0 || errno != EMFILE || getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max)
        return fd;
    limit.rlim_cur = limit.rlim_max;
    return setrlimit(RLIMIT_NOFILE, &limit) == 0 ? open(path, flags) : -1;
}

static Status open_file(Shard *shard, const char *key) {
    shard->fd = open_descriptor(shard->path);
    if (shard->fd < 0)
        return STATUS_FAIL(STATUS_DATA, "%s: %s: %s", key, shard->path, strerror(errno));
    return check_file(shard->fd, shard->path, key, &shard->nbytes);
}

/* The size of an id by magic and version. */
static Status check_kind(Shard *shard, const char *key, int32_t magic, int32_t version) {
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
    unsigned char head[12];
    TRY(read_at(shard, 0, head, sizeof head));
    TRY(check_kind(shard, key, (int32_t)load_u32(head), (int32_t)load_u32(head + 4)));
    const int64_t count = (int32_t)load_u32(head + 8);
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
    shard->first_id = SHARD_HEADER_NBYTES;
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
    TRY(open_file(shard, key)); /* first: that a file is missing says more than its name */
    TRY(judge_format(shard->path, key, &format));
    if (format == FORMAT_TOKENS)
        return check_header(shard, key);
    shard->first_id = 0;
    shard->ntokens = shard->nbytes;
    shard->id_nbytes = 1;
    return STATUS_OK;
}

Status shard_open(Shard *shard, const char *path, const char *key, DataFormat format) {
    *shard = (Shard){.path = heap_strdup(path), .fd = -1};
    const Status status = open_checked(shard, key, format);
    if (status != STATUS_OK)
        shard_close(shard);
    return status;
}

void shard_close(Shard *shard) {
    if (shard->fd >= 0)
        close(shard->fd);
    heap_free(shard->path);
    *shard = (Shard){.fd = -1};
}

static Status bad_id(const Shard *shard, int64_t index, uint32_t id, int64_t vocab_size) {
    return STATUS_FAIL(STATUS_DATA,
                       "%s: token %" PRId64 " (byte %" PRId64 ") has id %" PRIu32
                       ", but ids must be below vocab_size = %" PRId64
                       "; use the tokenizer of the model, or correct model.vocab_size",
                       shard->path, index, shard->first_id + index * shard->id_nbytes, id, vocab_size);
}

/* Reads ids [first, first + count), at most a piece, and checks them; `out` may be NULL. */
static Status read_piece(const Shard *shard, int64_t first, int64_t count, int64_t vocab_size, int32_t *out) {
    unsigned char piece[PIECE_NBYTES];
    TRY(read_at(shard, shard->first_id + first * shard->id_nbytes, piece, count * shard->id_nbytes));
    for (int64_t i = 0; i < count; i++) {
        const uint32_t id = id_at(piece + i * shard->id_nbytes, shard->id_nbytes);
        if (id >= vocab_size)
            return bad_id(shard, first + i, id, vocab_size);
        if (out != NULL)
            out[i] = (int32_t)id;
    }
    return STATUS_OK;
}

static Status read_ids(const Shard *shard, int64_t first, int64_t count, int64_t vocab_size, int32_t *out) {
    DM_ASSERT(first >= 0 && count >= 0 && count <= shard->ntokens - first);
    const int64_t most = PIECE_NBYTES / shard->id_nbytes;
    for (int64_t done = 0; done < count; done += most) {
        const int64_t n = count - done < most ? count - done : most;
        TRY(read_piece(shard, first + done, n, vocab_size, out != NULL ? out + done : NULL));
    }
    return STATUS_OK;
}

Status shard_check_ids(const Shard *shard, int64_t first, int64_t count, int64_t vocab_size) {
    return read_ids(shard, first, count, vocab_size, NULL);
}

Status shard_read(const Shard *shard, int64_t first, int64_t count, int64_t vocab_size, int32_t *out) {
    return read_ids(shard, first, count, vocab_size, out);
}

static Status hash_piece(const Shard *shard, int64_t offset, int64_t nbytes, Sha256 *sha) {
    unsigned char piece[SAMPLE_NBYTES];
    TRY(read_at(shard, offset, piece, nbytes));
    sha256_update(sha, piece, (size_t)nbytes);
    return STATUS_OK;
}

static Status hash_file(const Shard *shard, Sha256 *sha) {
    if (shard->nbytes <= SAMPLE_BLOCKS * SAMPLE_NBYTES) {
        for (int64_t at = 0; at < shard->nbytes; at += SAMPLE_NBYTES)
            TRY(hash_piece(shard, at, shard->nbytes - at < SAMPLE_NBYTES ? shard->nbytes - at : SAMPLE_NBYTES, sha));
        return STATUS_OK;
    }
    TRY(hash_piece(shard, 0, SHARD_HEADER_NBYTES, sha));
    const int64_t last = shard->nbytes - SAMPLE_NBYTES, gaps = SAMPLE_BLOCKS - 1;
    for (int64_t i = 0; i < SAMPLE_BLOCKS; i++) /* i*last/gaps without overflow */
        TRY(hash_piece(shard, last / gaps * i + last % gaps * i / gaps, SAMPLE_NBYTES, sha));
    return STATUS_OK;
}

Status shard_identity(const Shard *shard, Str *out) {
    Sha256 sha;
    char hex[65];
    sha256_begin(&sha);
    TRY(hash_file(shard, &sha));
    sha256_end(&sha, hex);
    str_printf(out, "%s %" PRId64 " %s\n", str_base_name(shard->path), shard->nbytes, hex);
    return STATUS_OK;
}
