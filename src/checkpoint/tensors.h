/* Which tensors a set holds, who writes each, and in which file: a pure function of the plan, the same on every rank.
 */
#ifndef DMUON_CHECKPOINT_TENSORS_H
#define DMUON_CHECKPOINT_TENSORS_H

#include "parallel/store.h"

typedef struct SetTensor {
    StateKind kind;
    int param;
    int writer;     /* world rank: the owner of a Muon matrix; others dealt by size                */
    char name[160]; /* "momentum.model.layers.0.mlp.up_proj.weight"                                */
    int ndim;
    int64_t dim[2];
    int64_t numel;
} SetTensor;

typedef struct SetTensors {
    SetTensor *tensor; /* owned; by kind, then registry order */
    int count;
    int *index; /* owned: [kind * params + row] -> tensor, -1 none */
    int nparams;
} SetTensors;

void set_tensors_create(SetTensors *set, const Plan *plan);
void set_tensors_destroy(SetTensors *set);
static inline int set_tensors_find(const SetTensors *set, StateKind kind, int param) {
    return set->index[(int)kind * set->nparams + param];
}

/* Name of the file that holds a tensor's kind from this writer: "model-00001-of-00004.safetensors" or "optim-...". */
void set_file_name(const SetTensors *set, bool weights, int writer, char *buf, size_t capacity);

#endif
