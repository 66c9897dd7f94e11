/* Tables of the rotary position embedding: the one place where angles are computed. */
#include "model/rope.h"

#include "kernels/exact_math.h"

void rope_layout(RopeTables *tables, Arena *arena, int64_t T, int64_t D) {
    const int64_t count = T * (D / 2);
    tables->cos = ARENA_PUSH(arena, float, count);
    tables->sin = ARENA_PUSH(arena, float, count);
}

void rope_fill(const RopeTables *tables, Stream *stream, int64_t T, int64_t D, double theta) {
    const int64_t half = D / 2, count = T * half;
    float *cos = HEAP_ALLOC(float, count);
    float *sin = HEAP_ALLOC(float, count);
    const double log_theta = exact_log64(theta);
    for (int64_t j = 0; j < half; j++) {
        const double frequency = exact_exp64(-((double)(2 * j) / (double)D) * log_theta);
        for (int64_t t = 0; t < T; t++) {
            cos[t * half + j] = (float)exact_cos64((double)t * frequency);
            sin[t * half + j] = (float)exact_sin64((double)t * frequency);
        }
    }
    const size_t nbytes = (size_t)count * sizeof(float);
    device_copy_from_host(stream, tables->cos, cos, nbytes);
    device_copy_from_host(stream, tables->sin, sin, nbytes);
    heap_free(cos);
    heap_free(sin);
}
