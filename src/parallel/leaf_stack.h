/* A binary counter of leaf gradients: partial trees of numerics "leaves", kept in at most floor(log2 k) + 1 buffers. */
#ifndef DMUON_PARALLEL_LEAF_STACK_H
#define DMUON_PARALLEL_LEAF_STACK_H

#include <stdint.h>

#include "base/arena.h"
#include "device/device.h"

typedef struct LeafStack {
    float *base; /* [depth][nelem] f32 device; the result is the first row */
    int64_t nelem;
    int depth;     /* rows                                       */
    int used;      /* partial trees at present                   */
    int64_t count; /* leaves pushed so far in this step          */
} LeafStack;

void leaf_stack_layout(LeafStack *stack, Arena *arena, int64_t nelem, int64_t leaves);
/* Where the next leaf is to be written; it stays there until push. */
float *leaf_stack_next(const LeafStack *stack);
/* Counts the leaf that was written and combines equal partial trees, on `stream`. */
void leaf_stack_push(LeafStack *stack, Stream *stream);
/* Combines what is left, smallest first, into the first row, and starts a new step's count. */
void leaf_stack_fold(LeafStack *stack, Stream *stream);

#endif
