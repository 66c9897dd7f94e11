/* The order of samples: a Feistel network walked until it lands inside the range. */
#include "data/order.h"

#include "base/fatal.h"
#include "base/rng.h"

#define ROUNDS 8

/* A bijection of [0, 4^half_bits); index has 2*half_bits bits. */
static uint64_t feistel(uint64_t seed, uint32_t epoch, int half_bits, uint64_t index) {
    const uint32_t mask = (uint32_t)((1ULL << half_bits) - 1);
    uint32_t left = (uint32_t)(index >> half_bits), right = (uint32_t)index & mask;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        uint32_t words[4];
        rng_block(seed, RNG_SHUFFLE, round, (uint64_t)epoch << 32 | right, words);
        const uint32_t next = (left ^ words[0]) & mask;
        left = right;
        right = next;
    }
    return (uint64_t)left << half_bits | right;
}

int64_t order_permute(uint64_t seed, int64_t epoch, int64_t n, int64_t index, bool shuffle) {
    DM_ASSERT(index >= 0 && index < n && epoch >= 0 && epoch <= UINT32_MAX);
    if (!shuffle)
        return index;
    int half_bits = 0;
    while (half_bits < 31 && (1ULL << (2 * half_bits)) < (uint64_t)n)
        half_bits++;
    DM_ASSERT((uint64_t)n <= 1ULL << (2 * half_bits));
    /* The cycle through `index` comes back into [0, n), at the latest at `index` itself: one of its first four values
     * on average, because n is more than a quarter of the network's range. */
    uint64_t at = (uint64_t)index;
    do {
        at = feistel(seed, (uint32_t)epoch, half_bits, at);
    } while (at >= (uint64_t)n);
    return (int64_t)at;
}

int64_t order_window(uint64_t seed, int64_t n, int64_t sample, bool shuffle) {
    DM_ASSERT(n > 0 && sample >= 0);
    return order_permute(seed, sample / n, n, sample % n, shuffle);
}
