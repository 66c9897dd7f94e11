/* One file of text or tokens.
 *
 * Text: any file; every byte is one token, vocabulary 256.
 * Tokens: a header of 1024 bytes, 256 little-endian int32, of which
 *   [0] = 20240520, [1] = 1   ids are little-endian uint16
 *   [0] = 20240801, [1] = 7   ids are little-endian uint32
 *   [2] = count, the number of ids; the rest is not read
 * then `count` ids and nothing else. */
#ifndef DMUON_DATA_SHARD_H
#define DMUON_DATA_SHARD_H

#include "base/str.h"
#include "config/config.h"

#define SHARD_HEADER_NBYTES 1024

typedef struct Shard {
    char *path;       /* owned                                  */
    int fd;           /* owned; -1: closed                      */
    int id_nbytes;    /* 1 text, 2 or 4 tokens                  */
    int64_t nbytes;   /* of the file when it was opened         */
    int64_t first_id; /* its byte                               */
    int64_t ntokens;
} Shard;

/* `key` ("data.train") is named in messages. On failure the shard is closed again. */
DM_NODISCARD Status shard_open(Shard *shard, const char *path, const char *key, DataFormat format);
void shard_close(Shard *shard);
/* Ids [first, first + count) must be there and below vocab_size: names file, position and id. */
DM_NODISCARD Status shard_check_ids(const Shard *shard, int64_t first, int64_t count, int64_t vocab_size);
/* Ids [first, first + count) as int32, each checked against vocab_size. */
DM_NODISCARD Status shard_read(const Shard *shard, int64_t first, int64_t count, int64_t vocab_size, int32_t *out);
/* Appends "base name, bytes, hash" and a newline: SHA-256 over the first 1024 bytes and 64 blocks of 4096 bytes at even
 * distances (a file of at most 64 blocks: all of it). */
DM_NODISCARD Status shard_identity(const Shard *shard, Str *out);

#endif
