/* Longest-processing-time assignment of Muon matrices to owner slots. A slot is (shard, replicate), enumerated
 * shard-major; a bundle is one matrix, or all small ones of one layer. */
#include "optim/partition.h"

#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/fatal.h"
#include "base/str.h"

typedef struct Bundle {
    const char *layer; /* borrowed */
    Str names;         /* of the members, joined: a tie-break */
    int layer_index, index;
    double cost;
    int64_t numel;
    int slot; /* out */
} Bundle;

typedef struct Load {
    double cost;
    int64_t numel;
} Load;

typedef struct Assignment {
    const PartitionOptions *options;
    int slots;
    Load *slot_load;   /* [slots]          */
    Load *column_load; /* [shards]         */
    bool *used;        /* [layers][slots]: the layer has a bundle there */
    int *used_count;   /* [layers]         */
} Assignment;

int64_t partition_auto_threshold(int64_t muon_elements, int shards, int replicates) {
    const int64_t share = muon_elements / (64 * (int64_t)shards * replicates);
    return share < 5000000 ? share : 5000000;
}

static bool is_small(const PartitionItem *item, const PartitionOptions *options) {
    return !item->tp_cut && item->numel < options->small_param_threshold;
}

/* The bundle of an earlier small item of the same layer, or a new one. */
static int bundle_of(const PartitionItem *items, int at, const PartitionOptions *options, int nbundles) {
    if (!is_small(&items[at], options))
        return nbundles;
    for (int i = 0; i < at; i++)
        if (is_small(&items[i], options) && items[i].layer_index == items[at].layer_index)
            return items[i].bundle;
    return nbundles;
}

/* Fills items[].bundle and gives the bundles in registry order of their first members. */
static int make_bundles(PartitionItem *items, int count, const PartitionOptions *options, Bundle *bundles) {
    int nbundles = 0;
    for (int i = 0; i < count; i++) {
        PartitionItem *item = &items[i];
        item->bundle = bundle_of(items, i, options, nbundles);
        Bundle *bundle = &bundles[item->bundle];
        if (item->bundle == nbundles) {
            *bundle = (Bundle){.layer = item->layer, .layer_index = item->layer_index, .index = nbundles};
            nbundles++;
        } else {
            str_append(&bundle->names, ",");
        }
        str_append(&bundle->names, item->name);
        bundle->cost += item->cost;
        bundle->numel += item->numel;
    }
    return nbundles;
}

/* Cost descending, numel descending, layer, names, registry order. */
static int compare_bundles(const void *left, const void *right) {
    const Bundle *a = left, *b = right;
    if (a->cost > b->cost || a->cost < b->cost)
        return a->cost > b->cost ? -1 : 1;
    if (a->numel != b->numel)
        return a->numel > b->numel ? -1 : 1;
    const int by_layer = strcmp(a->layer, b->layer);
    if (by_layer != 0)
        return by_layer;
    const int by_name = strcmp(a->names.text, b->names.text);
    return by_name != 0 ? by_name : a->index - b->index;
}

/* -1, 0, 1 as a carries less than, as much as, more than b. */
static int compare_cost(const Load *a, const Load *b) {
    return (a->cost > b->cost) - (a->cost < b->cost);
}

static int compare_numel(const Load *a, const Load *b) {
    return (a->numel > b->numel) - (a->numel < b->numel);
}

/* Whether slot a goes before slot b for a bundle of this layer; equal slots do not. */
static bool slot_precedes(const Assignment *assignment, const bool *used, int a, int b) {
    const Load *slot = assignment->slot_load, *column = assignment->column_load;
    const int replicates = assignment->options->replicates;
    const Load *column_a = &column[a / replicates], *column_b = &column[b / replicates];
    if (used[a] != used[b])
        return !used[a];
    const bool columns = assignment->options->column_balance;
    int order = columns ? compare_cost(column_a, column_b) : 0;
    if (order == 0)
        order = compare_cost(&slot[a], &slot[b]);
    if (order == 0 && columns)
        order = compare_numel(column_a, column_b);
    if (order == 0)
        order = compare_numel(&slot[a], &slot[b]);
    return order < 0;
}

static int choose_slot(const Assignment *assignment, const Bundle *bundle) {
    const bool *used = assignment->used + (int64_t)bundle->layer_index * assignment->slots;
    const int limit = assignment->options->max_per_layer;
    const bool full = limit > 0 && assignment->used_count[bundle->layer_index] >= limit;
    int best = -1;
    for (int slot = 0; slot < assignment->slots; slot++) {
        if (full && !used[slot])
            continue;
        if (best < 0 || slot_precedes(assignment, used, slot, best))
            best = slot;
    }
    DM_ASSERT(best >= 0);
    return best;
}

static void place(Assignment *assignment, Bundle *bundle, int slot) {
    bool *used = &assignment->used[(int64_t)bundle->layer_index * assignment->slots + slot];
    Load *column = &assignment->column_load[slot / assignment->options->replicates];
    assignment->used_count[bundle->layer_index] += !*used;
    *used = true;
    assignment->slot_load[slot].cost += bundle->cost;
    assignment->slot_load[slot].numel += bundle->numel;
    column->cost += bundle->cost;
    column->numel += bundle->numel;
    bundle->slot = slot;
}

static void assign_lpt(Bundle *bundles, int nbundles, const PartitionOptions *options) {
    int layers = 0;
    for (int i = 0; i < nbundles; i++)
        layers = bundles[i].layer_index >= layers ? bundles[i].layer_index + 1 : layers;
    const int slots = options->shards * options->replicates;
    const int64_t cells = (int64_t)layers * slots;
    Assignment assignment = {.options = options,
                             .slots = slots,
                             .slot_load = HEAP_ALLOC(Load, slots),
                             .column_load = HEAP_ALLOC(Load, options->shards),
                             .used = HEAP_ALLOC(bool, cells),
                             .used_count = HEAP_ALLOC(int, layers)};
    qsort(bundles, (size_t)nbundles, sizeof *bundles, compare_bundles);
    for (int i = 0; i < nbundles; i++)
        place(&assignment, &bundles[i], choose_slot(&assignment, &bundles[i]));
    heap_free(assignment.slot_load);
    heap_free(assignment.column_load);
    heap_free(assignment.used);
    heap_free(assignment.used_count);
}

void partition_assign(PartitionItem *items, int count, const PartitionOptions *options) {
    const int slots = options->shards * options->replicates;
    DM_ASSERT(options->shards >= 1 && options->replicates >= 1);
    Bundle *bundles = HEAP_ALLOC(Bundle, count);
    const int nbundles = make_bundles(items, count, options, bundles);
    if (options->strategy == OWNER_LPT)
        assign_lpt(bundles, nbundles, options);
    else
        for (int i = 0; i < nbundles; i++)
            bundles[i].slot = options->strategy == OWNER_ROUND_ROBIN ? i % slots : 0;
    int *slot_of = HEAP_ALLOC(int, nbundles);
    for (int i = 0; i < nbundles; i++) {
        slot_of[bundles[i].index] = bundles[i].slot;
        str_deinit(&bundles[i].names);
    }
    for (int i = 0; i < count; i++) {
        items[i].owner_shard = slot_of[items[i].bundle] / options->replicates;
        items[i].owner_replicate = slot_of[items[i].bundle] % options->replicates;
    }
    heap_free(slot_of);
    heap_free(bundles);
}

static int compare_items(const void *left, const void *right) {
    const PartitionItem *a = *(const PartitionItem *const *)left, *b = *(const PartitionItem *const *)right;
    if (a->cost > b->cost || a->cost < b->cost)
        return a->cost > b->cost ? -1 : 1;
    if (a->numel != b->numel)
        return a->numel > b->numel ? -1 : 1;
    const int by_layer = strcmp(a->layer, b->layer);
    if (by_layer != 0)
        return by_layer;
    const int by_name = strcmp(a->name, b->name);
    return by_name != 0 ? by_name : (a > b) - (a < b);
}

/* The lightest of the slot's tp ranks; ties go round from the slot's own number, so that slots start at different
 * ranks. */
static int choose_tp_rank(const Load *loads, int tp, int slot_number) {
    const int start = slot_number % tp;
    int best = start;
    for (int i = 1; i < tp; i++) {
        const int rank = (start + i) % tp;
        int order = compare_cost(&loads[rank], &loads[best]);
        if (order == 0)
            order = compare_numel(&loads[rank], &loads[best]);
        if (order < 0)
            best = rank;
    }
    return best;
}

void partition_assign_tp(const PartitionItem *items, int count, const PartitionOptions *options, int tp,
                         int *tp_owner) {
    const int slots = options->shards * options->replicates;
    DM_ASSERT(tp >= 1);
    const PartitionItem **sorted = HEAP_ALLOC(const PartitionItem *, count);
    Load *loads = HEAP_ALLOC(Load, (int64_t)slots * tp);
    int ncut = 0;
    for (int i = 0; i < count; i++) {
        tp_owner[i] = -1;
        if (items[i].tp_cut)
            sorted[ncut++] = &items[i];
    }
    if (ncut > 0)
        qsort(sorted, (size_t)ncut, sizeof *sorted, compare_items);
    for (int i = 0; i < ncut; i++) {
        const int slot = sorted[i]->owner_shard * options->replicates + sorted[i]->owner_replicate;
        Load *slot_loads = loads + (int64_t)slot * tp;
        const int rank = choose_tp_rank(slot_loads, tp, slot);
        slot_loads[rank].cost += sorted[i]->cost;
        slot_loads[rank].numel += sorted[i]->numel;
        tp_owner[sorted[i] - items] = rank;
    }
    heap_free(sorted);
    heap_free(loads);
}
