/* Longest-processing-time assignment of Muon matrices to owner slots; pure, deterministic ties, no strategy beyond it.
 */
#ifndef DMUON_OPTIM_PARTITION_H
#define DMUON_OPTIM_PARTITION_H

#include <stdbool.h>
#include <stdint.h>

#include "config/config.h"

typedef struct PartitionItem {
    const char *name;  /* of the matrix, borrowed */
    const char *layer; /* "model.layers.3": matrices of one layer have equal text; borrowed */
    int layer_index;   /* 0.. : position of the layer, the id used for "already used by this layer" */
    int64_t numel;
    double cost;
    bool tp_cut;                      /* never bundled */
    int owner_shard, owner_replicate; /* out */
    int bundle;                       /* out: items of one bundle share it */
} PartitionItem;

typedef struct PartitionOptions {
    OwnerStrategy strategy;
    int shards, replicates;        /* G, R */
    int64_t small_param_threshold; /* elements; items below it in one layer are bundled */
    int max_per_layer;             /* 0 = no limit */
    bool column_balance;
} PartitionOptions;

/* Items in registry order. Rule: README, "Ownership". */
void partition_assign(PartitionItem *items, int count, const PartitionOptions *options);
/* The tp owner of TP-cut items: LPT per DP slot by cost, then numel, then (rank - (shard*R + replicate)) mod T. Fills
 * tp_owner[count] (-1 when not cut). */
void partition_assign_tp(const PartitionItem *items, int count, const PartitionOptions *options, int tp, int *tp_owner);
/* auto: the smaller of 5,000,000 and muon_elements/(64*G*R). */
int64_t partition_auto_threshold(int64_t muon_elements, int shards, int replicates);

#endif
