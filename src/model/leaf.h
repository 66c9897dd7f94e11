/* What a layer's code knows of the leaf in flight: its size, this rank's share of the network, where work is queued. */
#ifndef DMUON_MODEL_LEAF_H
#define DMUON_MODEL_LEAF_H

#include <stdint.h>

#include "comm/comm.h"
#include "device/device.h"
#include "model/params.h"
#include "model/rope.h"
#include "model/shape.h"

/* A tensor-parallel rank's part of the dimensions that the axis cuts: the whole divided by the ranks. */
typedef struct LocalShape {
    int64_t H, K, F, V; /* heads, kv heads, feed-forward, rows of the padded vocabulary */
    int64_t vocab;      /* rows of the vocabulary here that are real, the first ones     */
    int64_t first_id;   /* vocabulary id of the first row                                */
    int segments;       /* of each contracted dimension that is cut                      */
    int kv_runs;        /* runs of q_norm's and k_norm's gradients                       */
} LocalShape;

LocalShape local_shape(const ModelShape *shape, int tp_size, int tp_rank);

typedef struct Leaf {
    Stream *stream; /* compute */
    Comm *tp;
    const ModelShape *shape;
    LocalShape local;
    RopeTables rope;
    int64_t B, T;
    bool counted; /* in a step: its messages count as traffic                        */
    bool bf16;    /* precision.compute: what is stored for a later operation is bf16 */
    bool bits;    /* with bf16: what products read is kept as 16 bits too            */
} Leaf;

/* What products read: x, and with Leaf.bits the same bf16 values as 16 bits, laid out alike; else NULL. */
typedef struct Operand {
    float *x;
    uint16_t *bits;
} Operand;

/* With `bf16` every activation and every gradient of one is rounded where it is stored, in f32 memory. Elementwise
 * kernels do it themselves, told by leaf_store; leaf_stored ends operations whose kernels do not: products and
 * attention. Statistics, logits, losses and gradients of weights are not rounded; a looked-up row does not need it,
 * since the residency has rounded the weights. */
void leaf_stored(const Leaf *leaf, Operand y, int64_t n);

static inline StoreBf16 leaf_store(const Leaf *leaf, Operand y) {
    return (StoreBf16){.bits = y.bits, .rounded = leaf->bf16};
}

/* A result that no product reads. */
static inline Operand leaf_only(float *x) {
    return (Operand){.x = x};
}

/* The tag of a message of `nelem` floats over tp. */
static inline CommTag leaf_tag(const Leaf *leaf, const char *what, int64_t nelem) {
    return (CommTag){.what = what, .unit = -1, .payload = leaf->counted ? nelem * (int64_t)sizeof(float) : 0};
}

static inline int64_t leaf_tokens(const Leaf *leaf) {
    return leaf->B * leaf->T;
}

/* A unit's tensors by slot, read from the residency between acquire and release. NULL where the unit has no such slot.
 */
typedef struct UnitParams {
    Operand value[SLOT_COUNT]; /* read only */
    float *grad[SLOT_COUNT];
} UnitParams;

#endif
