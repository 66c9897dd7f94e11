/* Philox4x32-10 (Salmon et al. 2011), counter based: value = f(seed, purpose, id, index). Any rank can draw any
 * element. */
#ifndef DMUON_BASE_RNG_H
#define DMUON_BASE_RNG_H

#include <stdint.h>

typedef enum RngPurpose { RNG_INIT = 1, RNG_SHUFFLE = 2, RNG_SAMPLE = 3, RNG_DELAY = 4, RNG_RUN_ID = 5 } RngPurpose;

/* One block of four words. key = seed (two words); counter = (index low, index high, id, purpose). */
void rng_block(uint64_t seed, RngPurpose purpose, uint32_t id, uint64_t index, uint32_t out[4]);
/* The raw bijection, for the published test vectors. */
void philox4x32_10(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);
/* Uniform in the open interval (0, 1): (52 random bits + 0.5) * 2^-52, from two words of the block. 52, not 53, because
 * the half must be exact: with 53 bits the largest draw would round to 1. */
double rng_unit(uint32_t high, uint32_t low);

#endif
