/* SHA-256 for files, and a 64-bit mix for sums over elements that do not depend on a partition. */
#ifndef DMUON_BASE_HASH_H
#define DMUON_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

typedef struct Sha256 {
    uint32_t state[8];
    uint64_t nbytes;
    unsigned char block[64];
} Sha256;

void sha256_begin(Sha256 *sha);
void sha256_update(Sha256 *sha, const void *data, size_t nbytes); /* uses SHA-NI when the CPU has it */
void sha256_end(Sha256 *sha, char hex[65]);                       /* lower-case hex, NUL-terminated */
void sha256_hex(const void *data, size_t nbytes, char hex[65]);

/* A 64-bit finaliser (every input bit reaches every output bit). */
uint64_t hash_mix64(uint64_t x);
/* Hash of bytes, for names and for comparing ranks. Not cryptographic; the same on every machine. */
uint64_t hash_bytes(const void *data, size_t nbytes, uint64_t seed);

/* Sum mod 2^64 over i of mix(name_hash, first + i, bits of x[i]): numerics.md 11. x [n] f32 bits. Order-free, so any
 * partition of a tensor gives the same total. */
uint64_t hash_elements(uint64_t name_hash, int64_t first, const float *x, int64_t n);

#endif
