/* Initial weights, any element of any parameter on any rank. */
#include "model/init.h"

#include <math.h>

#include "base/fatal.h"
#include "base/rng.h"
#include "kernels/exact_math.h"

#define TWO_PI 6.283185307179586476925286766559

typedef struct Pair {
    double even, odd; /* independent, N(0, 1) */
} Pair;

/* Box-Muller. rng_unit lies inside (0, 1), so the logarithm is finite. */
static Pair normal_pair(uint64_t seed, int id, int64_t pair) {
    uint32_t word[4];
    rng_block(seed, RNG_INIT, (uint32_t)id, (uint64_t)pair, word);
    const double radius = sqrt(-2.0 * exact_log64(rng_unit(word[0], word[1])));
    const double angle = TWO_PI * rng_unit(word[2], word[3]);
    return (Pair){radius * exact_cos64(angle), radius * exact_sin64(angle)};
}

static inline void fill_normal(const Param *param, int id, uint64_t seed, int64_t first, int64_t count, float *dst) {
    const int64_t end = first + count;
    for (int64_t pair = first / 2; 2 * pair < end; pair++) {
        const Pair z = normal_pair(seed, id, pair);
        if (2 * pair >= first)
            dst[2 * pair - first] = (float)(param->init_std * z.even);
        if (2 * pair + 1 < end)
            dst[2 * pair + 1 - first] = (float)(param->init_std * z.odd);
    }
}

/* The same operations where fma is one instruction instead of a call. */
__attribute__((target("fma"), flatten)) static void fill_normal_fma(const Param *param, int id, uint64_t seed,
                                                                    int64_t first, int64_t count, float *dst) {
    fill_normal(param, id, seed, first, count, dst);
}

void init_fill(const ParamTable *table, int id, uint64_t seed, int64_t first, int64_t count, float *dst) {
    DM_ASSERT(id >= 0 && id < table->count);
    const Param *param = &table->row[id];
    DM_ASSERT(first >= 0 && count >= 0 && first + count <= param_numel(param));
    if (param->init == INIT_NORMAL) {
        if (__builtin_cpu_supports("fma"))
            fill_normal_fma(param, id, seed, first, count, dst);
        else
            fill_normal(param, id, seed, first, count, dst);
        return;
    }
    for (int64_t i = 0; i < count; i++)
        dst[i] = param->init == INIT_ONES ? 1.0f : 0.0f;
}
