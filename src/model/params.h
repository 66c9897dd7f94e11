/* The table of parameters: one row per parameter, in registry order. Every loop over parameters is a loop over this
 * table; no index means anything. Names are those of Hugging Face Llama / Qwen. */
#ifndef DMUON_MODEL_PARAMS_H
#define DMUON_MODEL_PARAMS_H

#include "model/shape.h"

typedef enum Role { ROLE_MUON, ROLE_ADAMW } Role;
typedef enum InitKind { INIT_NORMAL, INIT_ONES, INIT_ZEROS } InitKind;

/* What a parameter is to its layer: the key by which the model finds its weights. */
typedef enum Slot {
    SLOT_EMBED,
    SLOT_INPUT_NORM,
    SLOT_Q,
    SLOT_K,
    SLOT_V,
    SLOT_Q_BIAS,
    SLOT_K_BIAS,
    SLOT_V_BIAS,
    SLOT_Q_NORM,
    SLOT_K_NORM,
    SLOT_O,
    SLOT_POST_NORM,
    SLOT_GATE,
    SLOT_UP,
    SLOT_DOWN,
    SLOT_FINAL_NORM,
    SLOT_HEAD,
    SLOT_COUNT
} Slot;

typedef struct Param {
    char name[96];       /* "model.layers.3.self_attn.q_proj.weight" */
    int ndim;            /* 1 or 2 */
    int64_t dim[2];      /* logical [out, in] or [n, 1] */
    int64_t padded_dim0; /* dim[0], or V for embedding and head */
    int tp_dim;          /* dim that tp cuts: 0, 1, or -1 none. Also the dim of the S segments of sums */
    Role role;
    InitKind init;
    double init_std;
    int unit; /* 0 embedding, 1..L decoder layers, L+1 final norm and head */
    Slot slot;
    bool decay; /* AdamW weight decay applies (2-D, or decay_1d) */
} Param;

typedef struct ParamTable {
    Param *row; /* owned (heap) */
    int count;
    int nunits;
    const ModelShape *shape; /* borrowed */
} ParamTable;

/* Builds the table; roles by optimizer.muon.match. STATUS_CONFIG for a glob that matches nothing or something that is
 * not a matrix. */
DM_NODISCARD Status params_create(ParamTable *table, const ModelShape *shape, const Config *config);
void params_destroy(ParamTable *table);
int64_t param_numel(const Param *param); /* logical */
/* Row of (unit, slot), or -1. */
int params_find(const ParamTable *table, int unit, Slot slot);
int params_by_name(const ParamTable *table, const char *name);
int64_t params_total(const ParamTable *table, Role role);

#endif
