/* The network against numerics.md as scalar loops: every bit of the loss and of every gradient. This is where it shows
 * which products are segmented, in which order terms add up, and that residuals come last. */
#include "tests/unit/bits.h"

#include "tests/fixtures/reference.h"
#include "tests/fixtures/resident.h"

typedef struct RefLayer {
    float *x, *h, *rstd, *q_raw, *k_raw, *rstd_q, *rstd_k, *q, *k, *v, *o, *x1, *h2, *rstd2, *z, *u, *a;
} RefLayer;

typedef struct Ref {
    Resident *r; /* weights */
    ModelShape s;
    int64_t B, T, N;
    bool bf16;
    const int32_t *tokens, *targets;
    float *grad[64]; /* by row of the table */
    float loss;
    void *block[256]; /* everything allocated */
    int nblocks;
} Ref;

static float *ref_new(Ref *ref, int64_t n) {
    assert_in_range(ref->nblocks, 0, 255);
    float *block = calloc((size_t)n, sizeof *block);
    ref->block[ref->nblocks++] = block;
    return block;
}

static const float *weight(const Ref *ref, int unit, Slot slot) {
    const int row = params_find(&ref->r->table, unit, slot);
    return row < 0 ? NULL : ref->r->weight[row];
}

static float *grad(const Ref *ref, int unit, Slot slot) {
    const int row = params_find(&ref->r->table, unit, slot);
    return row < 0 ? NULL : ref->grad[row];
}

static void add(float *dst, const float *a, const float *b, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        dst[i] = a[i] + b[i];
}

/* What is kept for a later operation. */
static void stored(const Ref *ref, float *x, int64_t n) {
    for (int64_t i = 0; i < n && ref->bf16; i++)
        x[i] = exact_from_bf16(exact_bf16(x[i]));
}

/* ---- a layer --------------------------------------------------------------------------------------------------------
 */

typedef struct RefHeads {
    int64_t count;
    Slot weight, bias, norm;
    float **raw, **rstd, **x;
} RefHeads;

static void heads_forward(Ref *ref, int unit, const float *h, RefHeads heads) {
    const ModelShape *s = &ref->s;
    const int64_t n = heads.count * s->D;
    *heads.x = ref_new(ref, ref->N * n);
    ref_forward(*heads.x, h, weight(ref, unit, heads.weight), ref->N, n, s->C, 1);
    if (s->qkv_bias)
        ref_bias_add(*heads.x, weight(ref, unit, heads.bias), ref->N, n);
    stored(ref, *heads.x, ref->N * n);
    if (heads.raw == NULL)
        return;
    if (s->qk_norm) {
        *heads.raw = *heads.x;
        *heads.x = ref_new(ref, ref->N * n);
        *heads.rstd = ref_new(ref, ref->N * heads.count);
        ref_norm(*heads.x, *heads.rstd, *heads.raw, weight(ref, unit, heads.norm), ref->N * heads.count, s->D, s->eps);
        stored(ref, *heads.x, ref->N * n);
    }
    ref_rope(*heads.x, ref->N, ref->T, heads.count, s->D, s->rope_theta, false);
    stored(ref, *heads.x, ref->N * n);
}

static void heads_backward(Ref *ref, int unit, const float *h, RefHeads heads, float *dx) {
    const ModelShape *s = &ref->s;
    const int64_t n = heads.count * s->D;
    if (heads.raw != NULL)
        ref_rope(dx, ref->N, ref->T, heads.count, s->D, s->rope_theta, true);
    stored(ref, dx, ref->N * n); /* v's is stored already: again changes nothing */
    if (heads.raw != NULL && s->qk_norm) {
        const RefNorm norm = {*heads.raw, weight(ref, unit, heads.norm), *heads.rstd, ref->N, heads.count, s->D,
                              s->kv_runs};
        ref_norm_backward(norm, dx, grad(ref, unit, heads.norm), dx, NULL);
        stored(ref, dx, ref->N * n);
    }
    ref_weight_grad(grad(ref, unit, heads.weight), dx, h, ref->N, n, s->C);
    if (s->qkv_bias)
        ref_bias_grad(grad(ref, unit, heads.bias), dx, ref->N, n);
}

static RefHeads heads_of(const Ref *ref, RefLayer *l, Slot slot) {
    if (slot == SLOT_Q)
        return (RefHeads){ref->s.H, SLOT_Q, SLOT_Q_BIAS, SLOT_Q_NORM, &l->q_raw, &l->rstd_q, &l->q};
    if (slot == SLOT_K)
        return (RefHeads){ref->s.K, SLOT_K, SLOT_K_BIAS, SLOT_K_NORM, &l->k_raw, &l->rstd_k, &l->k};
    return (RefHeads){ref->s.K, SLOT_V, SLOT_V_BIAS, SLOT_COUNT, NULL, NULL, &l->v};
}

static RefAttention attention_of(const Ref *ref, const RefLayer *l) {
    const ModelShape *s = &ref->s;
    const float scale = (float)(1.0 / sqrt((double)s->D));
    return (RefAttention){l->q, l->k, l->v, l->o, ref->B, ref->T, s->H, s->K, s->D, scale};
}

/* out = x + y, once y is stored. */
static void residual(const Ref *ref, float *out, const float *x, float *y) {
    const int64_t n = ref->N * ref->s.C;
    stored(ref, y, n);
    add(out, x, y, n);
    stored(ref, out, n);
}

/* The layer's output. */
static float *layer_forward(Ref *ref, int unit, RefLayer *l) {
    const ModelShape *s = &ref->s;
    const int64_t N = ref->N, C = s->C, F = s->F, HD = s->H * s->D;
    float *y = ref_new(ref, N * C), *out = ref_new(ref, N * C);
    l->h = ref_new(ref, N * C), l->rstd = ref_new(ref, N), l->o = ref_new(ref, N * HD), l->x1 = ref_new(ref, N * C);
    l->h2 = ref_new(ref, N * C), l->rstd2 = ref_new(ref, N);
    l->z = ref_new(ref, N * F), l->u = ref_new(ref, N * F), l->a = ref_new(ref, N * F);
    ref_norm(l->h, l->rstd, l->x, weight(ref, unit, SLOT_INPUT_NORM), N, C, s->eps);
    stored(ref, l->h, N * C);
    for (int slot = SLOT_Q; slot <= SLOT_V; slot++)
        heads_forward(ref, unit, l->h, heads_of(ref, l, (Slot)slot));
    const RefAttention attention = attention_of(ref, l);
    ref_attention(&attention, l->o);
    stored(ref, l->o, N * HD);
    ref_forward(y, l->o, weight(ref, unit, SLOT_O), N, C, HD, s->segments);
    residual(ref, l->x1, l->x, y);
    ref_norm(l->h2, l->rstd2, l->x1, weight(ref, unit, SLOT_POST_NORM), N, C, s->eps);
    stored(ref, l->h2, N * C);
    ref_forward(l->z, l->h2, weight(ref, unit, SLOT_GATE), N, F, C, 1);
    ref_forward(l->u, l->h2, weight(ref, unit, SLOT_UP), N, F, C, 1);
    stored(ref, l->z, N * F);
    stored(ref, l->u, N * F);
    for (int64_t i = 0; i < N * F; i++)
        l->a[i] = (l->z[i] / (1.0f + exact_exp(-l->z[i]))) * l->u[i];
    stored(ref, l->a, N * F);
    ref_forward(y, l->a, weight(ref, unit, SLOT_DOWN), N, C, F, s->segments);
    residual(ref, out, l->x1, y);
    return out;
}

static void mlp_backward(Ref *ref, int unit, RefLayer *l, float *dx) {
    const ModelShape *s = &ref->s;
    const int64_t N = ref->N, C = s->C, F = s->F;
    float *da = ref_new(ref, N * F), *dz = ref_new(ref, N * F), *du = ref_new(ref, N * F), *dh = ref_new(ref, N * C);
    const RefPart down = {dx, weight(ref, unit, SLOT_DOWN), C, C};
    ref_weight_grad(grad(ref, unit, SLOT_DOWN), dx, l->a, N, C, F);
    ref_input_grad(da, N, F, &down, 1, 1);
    stored(ref, da, N * F);
    for (int64_t i = 0; i < N * F; i++) {
        const float z = l->z[i], sigma = 1.0f / (1.0f + exact_exp(-z));
        du[i] = da[i] * (z * sigma);
        dz[i] = (da[i] * l->u[i]) * fmaf(z, sigma * (1.0f - sigma), sigma);
    }
    stored(ref, dz, N * F);
    stored(ref, du, N * F);
    ref_weight_grad(grad(ref, unit, SLOT_GATE), dz, l->h2, N, F, C);
    ref_weight_grad(grad(ref, unit, SLOT_UP), du, l->h2, N, F, C);
    const RefPart parts[] = {{dz, weight(ref, unit, SLOT_GATE), F, F}, {du, weight(ref, unit, SLOT_UP), F, F}};
    ref_input_grad(dh, N, C, parts, 2, s->segments);
    stored(ref, dh, N * C);
    const RefNorm norm = {l->x1, weight(ref, unit, SLOT_POST_NORM), l->rstd2, N, 1, C, 1};
    ref_norm_backward(norm, dx, grad(ref, unit, SLOT_POST_NORM), dh, dx);
    stored(ref, dx, N * C);
}

static void layer_backward(Ref *ref, int unit, RefLayer *l, float *dx) {
    const ModelShape *s = &ref->s;
    const int64_t N = ref->N, C = s->C, HD = s->H * s->D, KD = s->K * s->D;
    float *d_o = ref_new(ref, N * HD), *dh = ref_new(ref, N * C);
    float *dq = ref_new(ref, N * HD), *dk = ref_new(ref, N * KD), *dv = ref_new(ref, N * KD);
    mlp_backward(ref, unit, l, dx);
    const RefPart o = {dx, weight(ref, unit, SLOT_O), C, C};
    ref_weight_grad(grad(ref, unit, SLOT_O), dx, l->o, N, C, HD);
    ref_input_grad(d_o, N, HD, &o, 1, 1);
    stored(ref, d_o, N * HD);
    const RefAttention attention = attention_of(ref, l);
    ref_attention_backward(&attention, d_o, dq, dk, dv);
    stored(ref, dq, N * HD);
    stored(ref, dk, N * KD);
    stored(ref, dv, N * KD);
    heads_backward(ref, unit, l->h, heads_of(ref, l, SLOT_Q), dq);
    heads_backward(ref, unit, l->h, heads_of(ref, l, SLOT_K), dk);
    heads_backward(ref, unit, l->h, heads_of(ref, l, SLOT_V), dv);
    const RefPart parts[] = {{dq, weight(ref, unit, SLOT_Q), HD, HD},
                             {dk, weight(ref, unit, SLOT_K), KD, KD},
                             {dv, weight(ref, unit, SLOT_V), KD, KD}};
    ref_input_grad(dh, N, C, parts, 3, s->segments);
    stored(ref, dh, N * C);
    const RefNorm norm = {l->x, weight(ref, unit, SLOT_INPUT_NORM), l->rstd, N, 1, C, 1};
    ref_norm_backward(norm, dx, grad(ref, unit, SLOT_INPUT_NORM), dh, dx);
    stored(ref, dx, N * C);
}

/* ---- head, embedding, the whole
 * -------------------------------------------------------------------------------------- */

/* z [vocab] of one token becomes its gradient; gives the token's loss. */
static float token_loss(const Ref *ref, float *z, int32_t target) {
    const ModelShape *s = &ref->s;
    const int64_t width = s->V / s->segments;
    float m = -INFINITY, part[64];
    for (int64_t v = 0; v < s->vocab; v++)
        m = fmaxf(m, z[v]);
    const float loss_t = z[target] - m;
    for (int64_t v = 0; v < s->vocab; v++)
        z[v] = exact_exp(z[v] - m);
    for (int i = 0; i < s->segments; i++) {
        const int64_t left = s->vocab - i * width, n = left < 0 ? 0 : left < width ? left : width;
        part[i] = ref_lane_sum(z + i * width, n);
    }
    const float l = ref_tree(part, s->segments), inverse = 1.0f / l, factor = (float)(1.0 / (double)ref->N);
    for (int64_t v = 0; v < s->vocab; v++) {
        const float p = z[v] * inverse;
        z[v] = (v == target ? p - 1.0f : p) * factor;
    }
    return exact_log(l) - loss_t;
}

/* The gradient of x. */
static float *head(Ref *ref, const float *x) {
    const ModelShape *s = &ref->s;
    const int64_t N = ref->N, C = s->C;
    const int unit = (int)s->L + 1, matrix = s->tied ? 0 : unit;
    const Slot slot = s->tied ? SLOT_EMBED : SLOT_HEAD;
    float *h = ref_new(ref, N * C), *rstd = ref_new(ref, N), *z = ref_new(ref, N * s->vocab);
    float *losses = ref_new(ref, N), *dh = ref_new(ref, N * C), *dx = ref_new(ref, N * C);
    ref_norm(h, rstd, x, weight(ref, unit, SLOT_FINAL_NORM), N, C, s->eps);
    stored(ref, h, N * C);
    ref_forward(z, h, weight(ref, matrix, slot), N, s->vocab, C, 1);
    for (int64_t i = 0; i < N; i++)
        losses[i] = token_loss(ref, z + i * s->vocab, ref->targets[i]);
    ref->loss = ref_lane_sum(losses, N) * (float)(1.0 / (double)N);
    stored(ref, z, N * s->vocab); /* the gradient; the logits were f32 */
    ref_weight_grad(grad(ref, matrix, slot), z, h, N, s->vocab, C);
    const RefPart part = {z, weight(ref, matrix, slot), s->vocab, s->V};
    ref_input_grad(dh, N, C, &part, 1, s->segments);
    stored(ref, dh, N * C);
    const RefNorm norm = {x, weight(ref, unit, SLOT_FINAL_NORM), rstd, N, 1, C, 1};
    ref_norm_backward(norm, dx, grad(ref, unit, SLOT_FINAL_NORM), dh, NULL);
    stored(ref, dx, N * C);
    return dx;
}

static void embedding_backward(Ref *ref, const float *dx) {
    const int64_t C = ref->s.C, V = ref->s.V;
    float *e = ref_new(ref, V * C), *dtable = grad(ref, 0, SLOT_EMBED);
    for (int64_t i = 0; i < ref->N; i++)
        add(e + ref->tokens[i] * C, e + ref->tokens[i] * C, dx + i * C, C);
    add(dtable, dtable, e, V * C); /* dtable is the head's part, or +0 */
}

static void ref_run(Ref *ref) {
    const ModelShape *s = &ref->s;
    RefLayer layer[4] = {0};
    float *x = ref_new(ref, ref->N * s->C);
    for (int i = 0; i < ref->r->table.count; i++)
        ref->grad[i] = ref_new(ref, resident_numel(&ref->r->table.row[i]));
    for (int64_t i = 0; i < ref->N; i++)
        memcpy(x + i * s->C, weight(ref, 0, SLOT_EMBED) + ref->tokens[i] * s->C, (size_t)s->C * sizeof *x);
    for (int i = 0; i < (int)s->L; i++) {
        layer[i].x = x;
        x = layer_forward(ref, i + 1, &layer[i]);
    }
    float *dx = head(ref, x);
    for (int i = (int)s->L - 1; i >= 0; i--)
        layer_backward(ref, i + 1, &layer[i], dx);
    embedding_backward(ref, dx);
}

static void check_spec(const ResidentSpec *spec) {
    Resident r;
    int32_t tokens[64], targets[64];
    resident_create(&r, spec);
    resident_formula_weights(&r);
    for (int i = 0; i < r.table.count && spec->bf16; i++)
        for (int64_t k = 0; k < resident_numel(&r.table.row[i]); k++)
            r.weight[i][k] = exact_from_bf16(exact_bf16(r.weight[i][k]));
    resident_formula_tokens(spec, tokens, targets);
    Ref ref = {.r = &r, .s = r.shape, .B = spec->B, .T = spec->T, .tokens = tokens, .targets = targets};
    ref.bf16 = spec->bf16;
    ref.N = spec->B * spec->T;
    ref_run(&ref);
    model_forward_backward(r.model, tokens, targets);
    const float loss = model_loss(r.model);
    assert_bits_equal_f32(&loss, &ref.loss, 1, "loss");
    for (int i = 0; i < r.table.count; i++)
        assert_bits_equal_f32(r.grad[i], ref.grad[i], resident_numel(&r.table.row[i]), r.table.row[i].name);
    for (int i = 0; i < ref.nblocks; i++)
        free(ref.block[i]);
    resident_destroy(&r);
}

static void test_model_has_the_bits_of_the_definition(void **state) {
    (void)state;
    for (int kind = 0; kind < RESIDENT_KINDS; kind++)
        check_spec(&resident_kinds[kind].spec);
}

/* precision.compute: every stored value is rounded, one operation after the other; nothing else is. */
static void test_model_in_bf16_has_the_bits_of_the_definition(void **state) {
    (void)state;
    for (int kind = 0; kind < RESIDENT_KINDS; kind++)
        for (int recompute = 0; recompute <= 1; recompute++) {
            ResidentSpec spec = resident_kinds[kind].spec;
            spec.bf16 = true;
            spec.recompute = recompute == 1;
            check_spec(&spec);
        }
}

/* Widths that fill no vector, three kv heads (one run), a vocabulary whose last segments are empty, an odd number of
 * tokens. */
static void test_model_has_the_bits_of_the_definition_at_odd_sizes(void **state) {
    (void)state;
    const ResidentSpec spec = {.C = 37,
                               .L = 1,
                               .H = 6,
                               .K = 3,
                               .D = 4,
                               .F = 20,
                               .vocab = 9,
                               .qk_norm = true,
                               .qkv_bias = true,
                               .B = 3,
                               .T = 11};
    check_spec(&spec);
    const ResidentSpec wide = {.C = 72,
                               .L = 1,
                               .H = 4,
                               .K = 4,
                               .D = 40,
                               .F = 104,
                               .vocab = 131,
                               .tied = true,
                               .qk_norm = true,
                               .B = 1,
                               .T = 35};
    check_spec(&wide);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model_has_the_bits_of_the_definition),
        cmocka_unit_test(test_model_in_bf16_has_the_bits_of_the_definition),
        cmocka_unit_test(test_model_has_the_bits_of_the_definition_at_odd_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
