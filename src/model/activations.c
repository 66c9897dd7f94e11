/* Where the numbers between the layers lie. */
#include "model/activations.h"

static float *push(Arena *arena, int64_t count) {
    return ARENA_PUSH(arena, float, count);
}

static Operand push_operand(Arena *arena, const Leaf *leaf, int64_t count) {
    return (Operand){.x = push(arena, count), .bits = leaf->bits ? ARENA_PUSH(arena, uint16_t, count) : NULL};
}

static void attention_layout(LayerActs *a, const Leaf *leaf, Arena *arena) {
    const int64_t N = leaf_tokens(leaf), D = leaf->shape->D;
    const int64_t H = leaf->local.H, K = leaf->local.K;
    a->h = push_operand(arena, leaf, N * leaf->shape->C);
    a->rstd = push(arena, N);
    if (leaf->shape->qk_norm) {
        a->q_raw = push(arena, N * H * D);
        a->k_raw = push(arena, N * K * D);
        a->rstd_q = push(arena, N * H);
        a->rstd_k = push(arena, N * K);
    }
    a->q = push(arena, N * H * D);
    a->k = push(arena, N * K * D);
    a->v = push(arena, N * K * D);
    a->att_max = push(arena, N * H);
    a->att_sum = push(arena, N * H);
    a->o = push_operand(arena, leaf, N * H * D);
}

static void mlp_layout(LayerActs *a, const Leaf *leaf, Arena *arena) {
    const int64_t N = leaf_tokens(leaf), C = leaf->shape->C, F = leaf->local.F;
    a->x1 = push(arena, N * C);
    a->h2 = push_operand(arena, leaf, N * C);
    a->rstd2 = push(arena, N);
    a->gate = push_operand(arena, leaf, N * F);
    a->up = push_operand(arena, leaf, N * F);
    a->a = push_operand(arena, leaf, N * F);
}

static void head_layout(HeadActs *head, const Leaf *leaf, Arena *arena) {
    const int64_t N = leaf_tokens(leaf), C = leaf->shape->C;
    head->x = push(arena, N * C);
    head->h = push_operand(arena, leaf, N * C);
    head->rstd = push(arena, N);
    head->logits = push_operand(arena, leaf, N * leaf->local.V);
    head->max = push(arena, N);
    head->sum = push(arena, N);
    head->z_t = push(arena, N);
    head->token_loss = push(arena, N);
    const int64_t T = leaf->shape->V / leaf->local.V; /* ranks of the tp axis */
    head->parts = push(arena, T > 1 ? 2 * N * T : 0);
    head->all_logits = push(arena, T > 1 ? leaf->shape->V : 0);
    head->loss = push(arena, 1);
    head->window_sum = push(arena, leaf->B);
}

static void scratch_layout(Scratch *s, const Leaf *leaf, Arena *arena) {
    const int64_t N = leaf_tokens(leaf), C = leaf->shape->C, D = leaf->shape->D;
    s->dx = push_operand(arena, leaf, N * C);
    s->y = push(arena, N * C);
    s->da = push(arena, N * leaf->local.F);
    s->d_o = push(arena, N * leaf->local.H * D);
    s->dq = push_operand(arena, leaf, N * leaf->local.H * D);
    s->dk = push_operand(arena, leaf, N * leaf->local.K * D);
    s->dv = push_operand(arena, leaf, N * leaf->local.K * D);
}

void activations_layout(Activations *acts, const Leaf *leaf, bool recompute, Arena *arena) {
    const int64_t N = leaf_tokens(leaf), L = leaf->shape->L;
    acts->layer = HEAP_ALLOC(LayerActs, L);
    for (int64_t l = 0; l < L; l++) {
        LayerActs *a = &acts->layer[l];
        if (l > 0 && recompute) {
            *a = acts->layer[0];
        } else {
            attention_layout(a, leaf, arena);
            mlp_layout(a, leaf, arena);
        }
        a->x = push(arena, N * leaf->shape->C + 1); /* one more: an even count for embedding_forward */
    }
    head_layout(&acts->head, leaf, arena);
    scratch_layout(&acts->scratch, leaf, arena);
    acts->ids = ARENA_PUSH(arena, int32_t, N);
    acts->targets = ARENA_PUSH(arena, int32_t, N);
}

void activations_destroy(Activations *acts) {
    heap_free(acts->layer);
    *acts = (Activations){0};
}
