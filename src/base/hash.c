#include "base/hash.h"

#include <string.h>

/* Odd, so that a product with it is a bijection of the 64-bit words. 2^64 / golden ratio. */
static const uint64_t GOLDEN = 0x9E3779B97F4A7C15u;

/* The finaliser of splitmix64. */
uint64_t hash_mix64(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

uint64_t hash_bytes(const void *data, size_t nbytes, uint64_t seed) {
    const unsigned char *bytes = data;
    uint64_t hash = hash_mix64(seed + GOLDEN * ((uint64_t)nbytes + 1));
    size_t i = 0;
    for (; i + 8 <= nbytes; i += 8) {
        uint64_t word;
        memcpy(&word, bytes + i, sizeof word); /* little-endian, like every machine this runs on */
        hash = hash_mix64(hash ^ word) + GOLDEN;
    }
    uint64_t tail = 0;
    if (i < nbytes)
        memcpy(&tail, bytes + i, nbytes - i);
    return hash_mix64(hash ^ tail);
}

uint64_t hash_elements(uint64_t name_hash, int64_t first, const float *x, int64_t n) {
    uint64_t place = name_hash + GOLDEN * (uint64_t)first;
    uint64_t sum = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        sum += hash_mix64(hash_mix64(place) ^ bits);
        place += GOLDEN;
    }
    return sum;
}
