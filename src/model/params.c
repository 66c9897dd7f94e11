/* Builds the parameter table: the registry order of the whole engine. */
#include "model/params.h"

#include <fnmatch.h>
#include <math.h>
#include <string.h>

#include "base/arena.h"
#include "base/str.h"

/* Rows that a layer can have at most: input_layernorm .. down_proj. */
#define LAYER_ROWS_MAX (SLOT_DOWN - SLOT_INPUT_NORM + 1)

typedef struct SlotInfo {
    const char *name; /* after "model.layers.N." for a layer's slots */
    int tp_dim;
    InitKind init;
    bool residual_output; /* writes into the residual stream: smaller initial weights */
} SlotInfo;

static const SlotInfo slot_info[SLOT_COUNT] = {
    [SLOT_EMBED] = {"model.embed_tokens.weight", 0, INIT_NORMAL, false},
    [SLOT_INPUT_NORM] = {"input_layernorm.weight", -1, INIT_ONES, false},
    [SLOT_Q] = {"self_attn.q_proj.weight", 0, INIT_NORMAL, false},
    [SLOT_K] = {"self_attn.k_proj.weight", 0, INIT_NORMAL, false},
    [SLOT_V] = {"self_attn.v_proj.weight", 0, INIT_NORMAL, false},
    [SLOT_Q_BIAS] = {"self_attn.q_proj.bias", 0, INIT_ZEROS, false},
    [SLOT_K_BIAS] = {"self_attn.k_proj.bias", 0, INIT_ZEROS, false},
    [SLOT_V_BIAS] = {"self_attn.v_proj.bias", 0, INIT_ZEROS, false},
    [SLOT_Q_NORM] = {"self_attn.q_norm.weight", -1, INIT_ONES, false},
    [SLOT_K_NORM] = {"self_attn.k_norm.weight", -1, INIT_ONES, false},
    [SLOT_O] = {"self_attn.o_proj.weight", 1, INIT_NORMAL, true},
    [SLOT_POST_NORM] = {"post_attention_layernorm.weight", -1, INIT_ONES, false},
    [SLOT_GATE] = {"mlp.gate_proj.weight", 0, INIT_NORMAL, false},
    [SLOT_UP] = {"mlp.up_proj.weight", 0, INIT_NORMAL, false},
    [SLOT_DOWN] = {"mlp.down_proj.weight", 1, INIT_NORMAL, true},
    [SLOT_FINAL_NORM] = {"model.norm.weight", -1, INIT_ONES, false},
    [SLOT_HEAD] = {"lm_head.weight", 0, INIT_NORMAL, false},
};

static bool slot_exists(const ModelShape *shape, Slot slot) {
    switch (slot) {
    case SLOT_Q_BIAS:
    case SLOT_K_BIAS:
    case SLOT_V_BIAS:
        return shape->qkv_bias;
    case SLOT_Q_NORM:
    case SLOT_K_NORM:
        return shape->qk_norm;
    case SLOT_HEAD:
        return !shape->tied;
    default:
        return true;
    }
}

/* [out, in], or [n, 0] for a vector. */
typedef struct SlotDims {
    int64_t out, in;
} SlotDims;

static SlotDims slot_dims(const ModelShape *s, Slot slot) {
    switch (slot) {
    case SLOT_EMBED:
    case SLOT_HEAD:
        return (SlotDims){s->vocab, s->C};
    case SLOT_Q:
        return (SlotDims){s->H * s->D, s->C};
    case SLOT_K:
    case SLOT_V:
        return (SlotDims){s->K * s->D, s->C};
    case SLOT_O:
        return (SlotDims){s->C, s->H * s->D};
    case SLOT_GATE:
    case SLOT_UP:
        return (SlotDims){s->F, s->C};
    case SLOT_DOWN:
        return (SlotDims){s->C, s->F};
    case SLOT_Q_BIAS:
        return (SlotDims){s->H * s->D, 0};
    case SLOT_K_BIAS:
    case SLOT_V_BIAS:
        return (SlotDims){s->K * s->D, 0};
    case SLOT_Q_NORM:
    case SLOT_K_NORM:
        return (SlotDims){s->D, 0};
    default:
        return (SlotDims){s->C, 0};
    }
}

static void params_add(ParamTable *table, int unit, Slot slot, bool decay_1d) {
    const ModelShape *shape = table->shape;
    if (!slot_exists(shape, slot))
        return;
    const SlotInfo *info = &slot_info[slot];
    const SlotDims dims = slot_dims(shape, slot);
    const bool matrix = dims.in > 0;
    const bool layer = unit >= 1 && unit <= shape->L;
    const bool vocabulary = slot == SLOT_EMBED || slot == SLOT_HEAD;
    Param *p = &table->row[table->count++];
    *p = (Param){
        .ndim = matrix ? 2 : 1,
        .dim = {dims.out, matrix ? dims.in : 1},
        .padded_dim0 = vocabulary ? shape->V : dims.out,
        .tp_dim = info->tp_dim,
        .role = matrix && layer ? ROLE_MUON : ROLE_ADAMW,
        .init = info->init,
        .init_std = info->init == INIT_NORMAL ? shape->init_std : 0.0,
        .unit = unit,
        .slot = slot,
        .decay = matrix || decay_1d,
    };
    if (info->residual_output)
        p->init_std *= 1.0 / sqrt(2.0 * (double)shape->L);
    if (layer)
        str_format(p->name, sizeof p->name, "model.layers.%d.%s", unit - 1, info->name);
    else
        str_format(p->name, sizeof p->name, "%s", info->name);
}

/* Gives the role MUON to what the glob matches. */
static Status params_match(ParamTable *table, const char *glob) {
    int matched = 0;
    for (int i = 0; i < table->count; i++) {
        Param *p = &table->row[i];
        if (fnmatch(glob, p->name, 0) != 0)
            continue;
        if (p->ndim != 2)
            return STATUS_FAIL(STATUS_CONFIG,
                               "optimizer.muon.match: '%s' matches %s, which is not a matrix; Muon updates matrices "
                               "only: narrow the glob",
                               glob, p->name);
        p->role = ROLE_MUON;
        matched++;
    }
    if (matched == 0)
        return STATUS_FAIL(STATUS_CONFIG,
                           "optimizer.muon.match: '%s' matches no parameter; names are like "
                           "model.layers.0.self_attn.q_proj.weight (--plan lists them)",
                           glob);
    return STATUS_OK;
}

static Status params_assign_roles(ParamTable *table, const Config *config) {
    if (config->optimizer.muon.match_count == 0)
        return STATUS_OK;
    for (int i = 0; i < table->count; i++)
        table->row[i].role = ROLE_ADAMW;
    for (int i = 0; i < config->optimizer.muon.match_count; i++)
        TRY(params_match(table, config->optimizer.muon.match[i]));
    return STATUS_OK;
}

Status params_create(ParamTable *table, const ModelShape *shape, const Config *config) {
    const bool decay_1d = config->optimizer.adamw.decay_1d;
    *table = (ParamTable){.nunits = (int)shape->L + 2, .shape = shape};
    table->row = HEAP_ALLOC(Param, shape->L * LAYER_ROWS_MAX + 3);
    params_add(table, 0, SLOT_EMBED, decay_1d);
    for (int unit = 1; unit <= (int)shape->L; unit++)
        for (int slot = SLOT_INPUT_NORM; slot <= SLOT_DOWN; slot++)
            params_add(table, unit, (Slot)slot, decay_1d);
    params_add(table, (int)shape->L + 1, SLOT_FINAL_NORM, decay_1d);
    params_add(table, (int)shape->L + 1, SLOT_HEAD, decay_1d);
    const Status status = params_assign_roles(table, config);
    if (status != STATUS_OK)
        params_destroy(table);
    return status;
}

void params_destroy(ParamTable *table) {
    heap_free(table->row);
    *table = (ParamTable){0};
}

int64_t param_numel(const Param *param) {
    return param->dim[0] * param->dim[1];
}

int params_find(const ParamTable *table, int unit, Slot slot) {
    for (int i = 0; i < table->count; i++)
        if (table->row[i].unit == unit && table->row[i].slot == slot)
            return i;
    return -1;
}

int params_by_name(const ParamTable *table, const char *name) {
    for (int i = 0; i < table->count; i++)
        if (strcmp(table->row[i].name, name) == 0)
            return i;
    return -1;
}

int64_t params_total(const ParamTable *table, Role role) {
    int64_t total = 0;
    for (int i = 0; i < table->count; i++)
        if (table->row[i].role == role)
            total += param_numel(&table->row[i]);
    return total;
}
