/* The share of the network that one tensor-parallel rank computes. */
#include "model/leaf.h"

#include "base/fatal.h"
#include "mesh/extent.h"
#include "tensor/ops.h"

LocalShape local_shape(const ModelShape *shape, int tp_size, int tp_rank) {
    DM_ASSERT(shape->segments % tp_size == 0 && shape->K % tp_size == 0 && shape->H % tp_size == 0);
    const int64_t V = shape->V / tp_size;
    const Extent rows = {tp_rank * V, V};
    const Extent real = extent_overlap(rows, (Extent){0, shape->vocab});
    return (LocalShape){
        .H = shape->H / tp_size,
        .K = shape->K / tp_size,
        .F = shape->F / tp_size,
        .V = V,
        .vocab = real.count,
        .first_id = rows.first,
        .segments = shape->segments / tp_size,
        .kv_runs = shape->kv_runs / tp_size,
    };
}

void leaf_stored(const Leaf *leaf, Operand y, int64_t n) {
    if (leaf->bf16)
        ops_round_bf16(leaf->stream, (RoundBf16){.y = y.x, .bits = y.bits, .x = y.x, .n = n});
}
