/* Tables of the rotary position embedding. */
#ifndef DMUON_MODEL_ROPE_H
#define DMUON_MODEL_ROPE_H

#include <stdint.h>

#include "base/arena.h"
#include "device/device.h"

typedef struct RopeTables {
    float *cos, *sin; /* [T, D/2]; entry (t, j) is of the angle t * theta^(-2j/D) */
} RopeTables;

void rope_layout(RopeTables *tables, Arena *arena, int64_t T, int64_t D);
/* Computes in binary64 on the host, rounds once, copies to the device. */
void rope_fill(const RopeTables *tables, Stream *stream, int64_t T, int64_t D, double theta);

#endif
