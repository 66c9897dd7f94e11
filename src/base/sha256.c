/* SHA-256 (FIPS 180-4): a portable form, and one on the SHA instructions, chosen at run time. Same digest. */
#include "base/hash.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>
#endif

static const uint32_t round_constant[64] __attribute__((aligned(16))) = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotate_right(uint32_t x, int n) {
    return x >> n | x << (32 - n);
}

static void expand_schedule(const unsigned char *block, uint32_t w[64]) {
    for (int t = 0; t < 16; t++) {
        const unsigned char *b = block + 4 * t;
        w[t] = (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | (uint32_t)b[3];
    }
    for (int t = 16; t < 64; t++) {
        const uint32_t s0 = rotate_right(w[t - 15], 7) ^ rotate_right(w[t - 15], 18) ^ (w[t - 15] >> 3);
        const uint32_t s1 = rotate_right(w[t - 2], 17) ^ rotate_right(w[t - 2], 19) ^ (w[t - 2] >> 10);
        w[t] = w[t - 16] + s0 + w[t - 7] + s1;
    }
}

static void compress_block_portable(uint32_t state[8], const unsigned char *block) {
    uint32_t w[64];
    expand_schedule(block, w);
    uint32_t s[8]; /* a b c d e f g h */
    memcpy(s, state, sizeof s);
    for (int t = 0; t < 64; t++) {
        const uint32_t sum1 = rotate_right(s[4], 6) ^ rotate_right(s[4], 11) ^ rotate_right(s[4], 25);
        const uint32_t choice = (s[4] & s[5]) ^ (~s[4] & s[6]);
        const uint32_t t1 = s[7] + sum1 + choice + round_constant[t] + w[t];
        const uint32_t sum0 = rotate_right(s[0], 2) ^ rotate_right(s[0], 13) ^ rotate_right(s[0], 22);
        const uint32_t majority = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += t1;
        s[0] = t1 + sum0 + majority;
    }
    for (int i = 0; i < 8; i++)
        state[i] += s[i];
}

static void compress_portable(uint32_t state[8], const unsigned char *blocks, size_t count) {
    for (size_t i = 0; i < count; i++)
        compress_block_portable(state, blocks + 64 * i);
}

#ifdef __x86_64__
#define SHA_TARGET __attribute__((target("sha,sse4.1,ssse3")))

/* Four rounds. The instructions hold the state as (a b e f) and (c d g h), most significant lane first. */
SHA_TARGET static inline void four_rounds(__m128i *abef, __m128i *cdgh, __m128i words, int first) {
    const __m128i wk = _mm_add_epi32(words, _mm_load_si128((const __m128i *)(const void *)&round_constant[first]));
    *cdgh = _mm_sha256rnds2_epu32(*cdgh, *abef, wk);
    *abef = _mm_sha256rnds2_epu32(*abef, *cdgh, _mm_shuffle_epi32(wk, 0x0E));
}

SHA_TARGET static void compress_block_ni(__m128i *abef, __m128i *cdgh, const unsigned char *block) {
    const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    __m128i w[4];
    for (int i = 0; i < 4; i++)
        w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(const void *)(block + 16 * i)), big_endian);
    const __m128i abef_in = *abef;
    const __m128i cdgh_in = *cdgh;
    for (int i = 0; i < 4; i++)
        four_rounds(abef, cdgh, w[i], 4 * i);
    for (int i = 4; i < 16; i++) {
        /* w[t-16] + s0(w[t-15]) + w[t-7], then s1(w[t-2]); w[i % 4] holds the oldest four words. */
        __m128i next = _mm_sha256msg1_epu32(w[i % 4], w[(i + 1) % 4]);
        next = _mm_add_epi32(next, _mm_alignr_epi8(w[(i + 3) % 4], w[(i + 2) % 4], 4));
        w[i % 4] = _mm_sha256msg2_epu32(next, w[(i + 3) % 4]);
        four_rounds(abef, cdgh, w[i % 4], 4 * i);
    }
    *abef = _mm_add_epi32(*abef, abef_in);
    *cdgh = _mm_add_epi32(*cdgh, cdgh_in);
}

SHA_TARGET static void compress_ni(uint32_t state[8], const unsigned char *blocks, size_t count) {
    __m128i abef = _mm_set_epi32((int)state[0], (int)state[1], (int)state[4], (int)state[5]);
    __m128i cdgh = _mm_set_epi32((int)state[2], (int)state[3], (int)state[6], (int)state[7]);
    for (size_t i = 0; i < count; i++)
        compress_block_ni(&abef, &cdgh, blocks + 64 * i);
    state[0] = (uint32_t)_mm_extract_epi32(abef, 3);
    state[1] = (uint32_t)_mm_extract_epi32(abef, 2);
    state[4] = (uint32_t)_mm_extract_epi32(abef, 1);
    state[5] = (uint32_t)_mm_extract_epi32(abef, 0);
    state[2] = (uint32_t)_mm_extract_epi32(cdgh, 3);
    state[3] = (uint32_t)_mm_extract_epi32(cdgh, 2);
    state[6] = (uint32_t)_mm_extract_epi32(cdgh, 1);
    state[7] = (uint32_t)_mm_extract_epi32(cdgh, 0);
}

/* By cpuid: the compiler's own test does not know "sha" in every version in use. */
static bool cpuid_has_sha(void) {
    unsigned eax = 0;
    unsigned ebx = 0;
    unsigned ecx = 0;
    unsigned edx = 0;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !(ecx & bit_SSE4_1) || !(ecx & bit_SSSE3))
        return false;
    return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (ebx & bit_SHA);
}

/* Asked once: in a virtual machine cpuid leaves the guest and costs microseconds. */
static bool cpu_has_sha(void) {
    enum { UNKNOWN, ABSENT, PRESENT };
    static atomic_int answer = UNKNOWN;
    if (atomic_load(&answer) == UNKNOWN)
        atomic_store(&answer, cpuid_has_sha() ? PRESENT : ABSENT);
    return atomic_load(&answer) == PRESENT;
}
#endif

typedef void Compress(uint32_t state[8], const unsigned char *blocks, size_t count);

static Compress *choose_compress(void) {
#ifdef __x86_64__
    if (cpu_has_sha())
        return compress_ni;
#endif
    return compress_portable;
}

void sha256_begin(Sha256 *sha) {
    static const uint32_t initial[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                        0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(sha->state, initial, sizeof initial);
    sha->nbytes = 0;
    memset(sha->block, 0, sizeof sha->block);
}

void sha256_update(Sha256 *sha, const void *data, size_t nbytes) {
    const unsigned char *bytes = data;
    const size_t held = (size_t)(sha->nbytes % 64);
    sha->nbytes += nbytes;
    if (held > 0) {
        const size_t fill = nbytes < 64 - held ? nbytes : 64 - held;
        memcpy(sha->block + held, bytes, fill);
        if (held + fill < 64)
            return;
        compress_portable(sha->state, sha->block, 1); /* one block in a whole update: both forms run on every machine */
        bytes += fill;
        nbytes -= fill;
    }
    const size_t whole = nbytes / 64;
    choose_compress()(sha->state, bytes, whole);
    if (nbytes % 64 > 0)
        memcpy(sha->block, bytes + 64 * whole, nbytes % 64);
}

void sha256_end(Sha256 *sha, char hex[65]) {
    const uint64_t nbits = sha->nbytes * 8;
    const size_t held = (size_t)(sha->nbytes % 64);
    static const unsigned char padding[72] = {0x80};
    unsigned char length[8];
    for (int i = 0; i < 8; i++)
        length[i] = (unsigned char)(nbits >> (56 - 8 * i));
    sha256_update(sha, padding, held < 56 ? 56 - held : 120 - held);
    sha256_update(sha, length, sizeof length);
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < 64; i++)
        hex[i] = digits[sha->state[i / 8] >> (28 - 4 * (i % 8)) & 15];
    hex[64] = '\0';
}

void sha256_hex(const void *data, size_t nbytes, char hex[65]) {
    Sha256 sha;
    sha256_begin(&sha);
    sha256_update(&sha, data, nbytes);
    sha256_end(&sha, hex);
}
