/* Tensors, writers and file names of a set. */
#include "checkpoint/tensors.h"

#include <stdlib.h>

#include "base/arena.h"
#include "base/fatal.h"
#include "base/str.h"

static int by_size(const void *a, const void *b) {
    const SetTensor *x = *(SetTensor *const *)a, *y = *(SetTensor *const *)b;
    if (x->numel != y->numel)
        return x->numel > y->numel ? -1 : 1;
    return x < y ? -1 : x > y;
}

/* Tensors without an owner go, largest first, to the rank that writes least. */
static void deal_writers(SetTensors *set, const Plan *plan) {
    const int world = mesh_size(plan->mesh);
    int64_t *load = HEAP_ALLOC(int64_t, world);
    SetTensor **free_ones = HEAP_ALLOC(SetTensor *, set->count);
    int n = 0;
    for (int t = 0; t < set->count; t++) {
        SetTensor *tensor = &set->tensor[t];
        if (plan->params->row[tensor->param].role == ROLE_MUON) {
            tensor->writer = plan->param[tensor->param].owner_rank;
            load[tensor->writer] += tensor->numel;
        } else {
            free_ones[n++] = tensor;
        }
    }
    qsort(free_ones, (size_t)n, sizeof(SetTensor *), by_size);
    for (int i = 0; i < n; i++) {
        int least = 0;
        for (int r = 1; r < world; r++)
            if (load[r] < load[least])
                least = r;
        free_ones[i]->writer = least;
        load[least] += free_ones[i]->numel;
    }
    heap_free(free_ones);
    heap_free(load);
}

void set_tensors_create(SetTensors *set, const Plan *plan) {
    const ParamTable *params = plan->params;
    *set = (SetTensors){.tensor = HEAP_ALLOC(SetTensor, STATE_KIND_COUNT * params->count),
                        .index = HEAP_ALLOC(int, STATE_KIND_COUNT * params->count),
                        .nparams = params->count};
    for (StateKind kind = 0; kind < STATE_KIND_COUNT; kind++)
        for (int row = 0; row < params->count; row++) {
            const Param *param = &params->row[row];
            int *index = &set->index[(int)kind * params->count + row];
            *index = -1;
            if (!state_exists(param->role, kind))
                continue;
            *index = set->count;
            SetTensor *tensor = &set->tensor[set->count++];
            *tensor = (SetTensor){.kind = kind,
                                  .param = row,
                                  .ndim = param->ndim,
                                  .dim = {param->dim[0], param->dim[1]},
                                  .numel = param_numel(param)};
            str_format(tensor->name, sizeof tensor->name, "%s%s", state_prefix(kind), param->name);
        }
    deal_writers(set, plan);
}

void set_tensors_destroy(SetTensors *set) {
    heap_free(set->tensor);
    heap_free(set->index);
    *set = (SetTensors){0};
}

static bool writes(const SetTensors *set, bool weights, int rank) {
    for (int t = 0; t < set->count; t++)
        if (set->tensor[t].writer == rank && (set->tensor[t].kind == STATE_WEIGHT) == weights)
            return true;
    return false;
}

void set_file_name(const SetTensors *set, bool weights, int writer, char *buf, size_t capacity) {
    int highest = 0, files = 0, index = 0;
    for (int t = 0; t < set->count; t++)
        highest = set->tensor[t].writer > highest ? set->tensor[t].writer : highest;
    for (int rank = 0; rank <= highest; rank++) {
        files += writes(set, weights, rank);
        if (rank == writer)
            index = files;
    }
    DM_ASSERT(writes(set, weights, writer));
    str_format(buf, capacity, "%s-%05d-of-%05d.safetensors", weights ? "model" : "optim", index, files);
}
