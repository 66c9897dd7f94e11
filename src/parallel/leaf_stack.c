/* The binary counter over leaves. */
#include "parallel/leaf_stack.h"

#include "base/fatal.h"
#include "parallel/plan.h"
#include "tensor/ops.h"

void leaf_stack_layout(LeafStack *stack, Arena *arena, int64_t nelem, int64_t leaves) {
    *stack = (LeafStack){.nelem = nelem, .depth = plan_stack_depth(leaves)};
    stack->base = ARENA_PUSH(arena, float, nelem * stack->depth);
}

float *leaf_stack_next(const LeafStack *stack) {
    DM_ASSERT(stack->used < stack->depth);
    return stack->base + stack->used * stack->nelem;
}

/* The two newest partial trees become one: earlier + later. */
static void combine_top(LeafStack *stack, Stream *stream) {
    float *earlier = stack->base + (stack->used - 2) * stack->nelem;
    const float *later = earlier + stack->nelem;
    ops_add(stream, (Add){.dst = earlier, .a = earlier, .b = later, .n = stack->nelem});
    stack->used--;
}

void leaf_stack_push(LeafStack *stack, Stream *stream) {
    stack->used++;
    for (int64_t carry = stack->count; carry & 1; carry >>= 1)
        combine_top(stack, stream);
    stack->count++;
}

void leaf_stack_fold(LeafStack *stack, Stream *stream) {
    while (stack->used > 1)
        combine_top(stack, stream);
    stack->used = 0;
    stack->count = 0;
}
