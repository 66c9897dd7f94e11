/* The network unit by unit: acquire its weights, compute, release; the backward in reverse, each unit's gradients
 * reported when they are final. */
#include "model/model.h"

#include "base/clock.h"
#include "base/fatal.h"
#include "base/trace.h"
#include "device/products.h"
#include "model/activations.h"
#include "model/block.h"
#include "model/embedding.h"
#include "model/head.h"
#include "model/leaf.h"

struct Model {
    const ParamTable *params;   /* borrowed */
    const Residency *residency; /* borrowed */
    bool recompute;
    Leaf leaf;        /* at its full size */
    Activations acts; /* owned            */
    Stopwatch *watch; /* owned; marks: before, between and after forward and backward */
    bool timed;       /* of a leaf whose times have not been read */
    double forward_ms, backward_ms;
};

/* ---- setup ----------------------------------------------------------------------------------------------------------
 */

/* Measuring needs neither a device nor a communicator. */
static Leaf leaf_of(const ModelOptions *options) {
    const ModelShape *shape = options->params->shape;
    const int tp_size = options->tp != NULL ? comm_size(options->tp) : options->tp_size > 0 ? options->tp_size : 1;
    const int tp_rank = options->tp != NULL ? comm_rank(options->tp) : 0;
    return (Leaf){.stream = options->device != NULL ? device_stream(options->device, STREAM_COMPUTE) : NULL,
                  .tp = options->tp,
                  .shape = shape,
                  .local = local_shape(shape, tp_size, tp_rank),
                  .B = options->B,
                  .T = options->T,
                  .bf16 = options->bf16,
                  .bits = options->bits};
}

static void model_layout(Leaf *leaf, Activations *acts, bool recompute, Arena *arena) {
    rope_layout(&leaf->rope, arena, leaf->T, leaf->shape->D);
    activations_layout(acts, leaf, recompute, arena);
}

size_t model_activation_nbytes(const ModelOptions *options) {
    Leaf leaf = leaf_of(options);
    Activations acts;
    Arena measure = {0};
    model_layout(&leaf, &acts, options->recompute, &measure);
    activations_destroy(&acts);
    return measure.used;
}

Status model_create(Model **model, const ModelOptions *options, Arena *arena) {
    Model *m = HEAP_ALLOC(Model, 1);
    m->params = options->params;
    m->residency = options->residency;
    m->recompute = options->recompute;
    m->leaf = leaf_of(options);
    m->watch = stopwatch_create(options->device);
    model_layout(&m->leaf, &m->acts, m->recompute, arena);
    if (arena->base != NULL)
        rope_fill(&m->leaf.rope, m->leaf.stream, m->leaf.T, m->leaf.shape->D, m->leaf.shape->rope_theta);
    *model = m;
    return STATUS_OK;
}

void model_destroy(Model *model) {
    if (model == NULL)
        return;
    activations_destroy(&model->acts);
    stopwatch_destroy(model->watch);
    heap_free(model);
}

/* ---- units ----------------------------------------------------------------------------------------------------------
 */

static int head_unit(const Model *m) {
    return m->params->nunits - 1;
}

static void unit_acquire(const Model *m, int unit, bool backward) {
    m->residency->acquire(m->residency->self, unit, backward);
}

static void unit_release(const Model *m, int unit, bool backward) {
    m->residency->release(m->residency->self, unit, backward);
}

static void unit_finish(const Model *m, int unit) {
    m->residency->grads_done(m->residency->self, unit);
    unit_release(m, unit, true);
}

/* Pointers may move from one acquire to the next, so they are read after each. */
static UnitParams unit_params(const Model *m, int unit) {
    UnitParams p = {0};
    for (int i = 0; i < m->params->count; i++) {
        const Param *row = &m->params->row[i];
        if (row->unit != unit)
            continue;
        p.value[row->slot] = (Operand){.x = m->residency->value[i], .bits = m->residency->bits[i]};
        p.grad[row->slot] = m->residency->grad[i];
    }
    return p;
}

static HeadParams head_params(const Model *m) {
    const UnitParams own = unit_params(m, head_unit(m));
    const bool tied = m->leaf.shape->tied;
    const UnitParams matrix = tied ? unit_params(m, 0) : own;
    const Slot slot = tied ? SLOT_EMBED : SLOT_HEAD;
    return (HeadParams){.gain = own.value[SLOT_FINAL_NORM].x,
                        .weight = matrix.value[slot],
                        .dgain = own.grad[SLOT_FINAL_NORM],
                        .dweight = matrix.grad[slot]};
}

static void unit_trace(const char *name, int unit, int64_t begin_ns) {
    if (trace_enabled())
        trace_add(name, STREAM_COMPUTE, unit, begin_ns, clock_ns());
}

/* ---- forward --------------------------------------------------------------------------------------------------------
 */

/* Where the output of layer `index` (0..L-1) goes: the next layer's input. */
static float *layer_output(const Model *m, int index) {
    return index + 1 < m->leaf.shape->L ? m->acts.layer[index + 1].x : m->acts.head.x;
}

/* A tied embedding stays acquired: the head needs it. */
static void forward_embedding(const Model *m, const Leaf *leaf) {
    unit_acquire(m, 0, false);
    const int64_t begin = clock_ns();
    embedding_forward(leaf, m->acts.layer[0].x, unit_params(m, 0).value[SLOT_EMBED].x, m->acts.ids);
    unit_trace("forward", 0, begin);
    if (!leaf->shape->tied)
        unit_release(m, 0, false);
}

/* From ids to the last layer's output. */
static void forward_layers(const Model *m, const Leaf *leaf) {
    forward_embedding(m, leaf);
    for (int i = 0; i < (int)leaf->shape->L; i++) {
        unit_acquire(m, i + 1, false);
        const int64_t begin = clock_ns();
        const UnitParams params = unit_params(m, i + 1);
        block_forward(leaf, &params, &m->acts.layer[i], &m->acts.scratch, layer_output(m, i));
        unit_trace("forward", i + 1, begin);
        unit_release(m, i + 1, false);
    }
}

static void set_tokens(const Model *m, const Leaf *leaf, const int32_t *tokens) {
    device_copy_from_host(leaf->stream, m->acts.ids, tokens, (size_t)leaf_tokens(leaf) * sizeof *tokens);
}

/* From the last layer's output to the token losses. The head unit stays acquired. */
static void forward_head(const Model *m, const Leaf *leaf, const int32_t *targets) {
    device_copy_from_host(leaf->stream, m->acts.targets, targets, (size_t)leaf_tokens(leaf) * sizeof *targets);
    unit_acquire(m, head_unit(m), false);
    const int64_t begin = clock_ns();
    head_logits(leaf, head_params(m), &m->acts.head, 0, leaf_tokens(leaf));
    head_token_loss(leaf, &m->acts.head, m->acts.targets);
    unit_trace("forward", head_unit(m), begin);
}

/* The forward alone is over: what it left acquired goes. */
static void forward_release(const Model *m) {
    unit_release(m, head_unit(m), false);
    if (m->leaf.shape->tied)
        unit_release(m, 0, false);
}

/* ---- backward -------------------------------------------------------------------------------------------------------
 */

static void backward_head(const Model *m, const Leaf *leaf) {
    const int unit = head_unit(m);
    if (leaf->shape->tied)
        unit_acquire(m, 0, true); /* the head's part of its gradient is written first */
    unit_acquire(m, unit, true);
    const int64_t begin = clock_ns();
    head_backward(leaf, head_params(m), &m->acts.head, m->acts.targets, &m->acts.scratch);
    unit_trace("backward", unit, begin);
    unit_finish(m, unit);
}

static void backward_layer(const Model *m, const Leaf *leaf, int index) {
    const LayerActs *acts = &m->acts.layer[index];
    unit_acquire(m, index + 1, true);
    const int64_t begin = clock_ns();
    const UnitParams params = unit_params(m, index + 1);
    if (m->recompute)
        block_forward(leaf, &params, acts, &m->acts.scratch, NULL);
    block_backward(leaf, &params, acts, &m->acts.scratch);
    unit_trace("backward", index + 1, begin);
    unit_finish(m, index + 1);
}

static void backward_embedding(const Model *m, const Leaf *leaf) {
    const bool tied = leaf->shape->tied;
    if (!tied)
        unit_acquire(m, 0, true);
    const int64_t begin = clock_ns();
    embedding_backward(leaf, unit_params(m, 0).grad[SLOT_EMBED], m->acts.scratch.dx.x, m->acts.ids, tied);
    unit_trace("backward", 0, begin);
    unit_finish(m, 0);
}

/* ---- the three ways through -----------------------------------------------------------------------------------------
 */

/* The leaf's times, once the host has waited for it. */
static void read_times(Model *m) {
    double forward_ms, backward_ms;
    if (!m->timed || !stopwatch_ms(m->watch, 0, 1, &forward_ms) || !stopwatch_ms(m->watch, 1, 2, &backward_ms))
        return;
    m->forward_ms += forward_ms;
    m->backward_ms += backward_ms;
    m->timed = false;
}

void model_forward_backward(Model *model, const int32_t *tokens, const int32_t *targets) {
    Leaf counted = model->leaf;
    counted.counted = true;
    const Leaf *leaf = &counted;
    stopwatch_mark(model->watch, 0);
    set_tokens(model, leaf, tokens);
    forward_layers(model, leaf);
    forward_head(model, leaf, targets);
    head_leaf_loss(leaf, &model->acts.head);
    unit_release(model, head_unit(model), false);
    stopwatch_mark(model->watch, 1);
    backward_head(model, leaf);
    for (int i = (int)leaf->shape->L - 1; i >= 0; i--)
        backward_layer(model, leaf, i);
    backward_embedding(model, leaf);
    stopwatch_mark(model->watch, 2);
    model->timed = true;
}

void model_eval(Model *model, const int32_t *tokens, const int32_t *targets, float *window_sum) {
    const Leaf *leaf = &model->leaf;
    set_tokens(model, leaf, tokens);
    forward_layers(model, leaf);
    forward_head(model, leaf, targets);
    head_window_sums(leaf, &model->acts.head);
    forward_release(model);
    device_copy_to_host(leaf->stream, window_sum, model->acts.head.window_sum, (size_t)leaf->B * sizeof *window_sum);
}

void model_logits(Model *model, const int32_t *tokens, int64_t n, float *logits) {
    DM_ASSERT(n >= 1 && n <= model->leaf.T);
    Leaf leaf = model->leaf;
    leaf.B = 1;
    leaf.T = n;
    set_tokens(model, &leaf, tokens);
    /* One length where products are known beforehand: what follows the prompt, any ids, does not reach its last row. */
    if (device_chooses_products(stream_device(leaf.stream)))
        leaf.T = model->leaf.T;
    forward_layers(model, &leaf);
    unit_acquire(model, head_unit(model), false);
    head_logits(&leaf, head_params(model), &model->acts.head, n - 1, 1);
    forward_release(model);
    device_copy_to_host(leaf.stream, logits, head_whole_logits(&leaf, &model->acts.head),
                        (size_t)leaf.shape->vocab * sizeof *logits);
}

float model_loss(Model *model) {
    float loss;
    device_copy_to_host(model->leaf.stream, &loss, model->acts.head.loss, sizeof loss);
    read_times(model);
    return loss;
}

void model_take_times(Model *model, double *forward_ms, double *backward_ms) {
    read_times(model);
    *forward_ms = model->forward_ms;
    *backward_ms = model->backward_ms;
    model->forward_ms = 0.0;
    model->backward_ms = 0.0;
}
