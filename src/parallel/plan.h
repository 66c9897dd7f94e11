/* Where everything lives: one row per parameter, one per packed buffer, one per unit. A pure function of (ParamTable,
 * mesh sizes, configuration), computed alike on every rank without communication; its hash is compared at start-up and
 * it is printed by --plan. */
#ifndef DMUON_PARALLEL_PLAN_H
#define DMUON_PARALLEL_PLAN_H

#include "mesh/mesh.h"
#include "model/params.h"
#include "optim/newton_schulz.h"

#define PLAN_BLOCK 1024 /* elements of an AdamW block: the unit of sharding and of sums of squares */
#define PLAN_ALIGN 16   /* elements: matrices in a packed buffer start at multiples of it          */

typedef struct PlanParam {
    /* MUON */
    int owner_shard, owner_replicate, owner_tp;
    int owner_rank;          /* in the world; for a distributed matrix the rank that iterates on the Gram matrix */
    int group;               /* packed buffer, -1 for ADAMW */
    bool distributed;        /* over tp only Gram partials and factors travel; momentum is sliced      */
    int64_t momentum_offset; /* elements from the start of the group's momentum on the rank that has it */
    int64_t gathered_offset; /* elements from the start of its tp part                                  */
    int64_t sum_first;       /* first of its segment sums in a rank's list                              */
    NsPlan ns;
    double cost; /* FLOPs of one Newton-Schulz */
    /* both: this tp rank's slice */
    int64_t local_dim[2]; /* with padded vocabulary rows; [n, 1] for vectors */
    int64_t local_nelem;
    int nseg; /* segments of the slice along tp_dim; 1 when tp does not cut the tensor */
    /* ADAMW: the slice is nseg segments, each seg_nelem elements in seg_blocks blocks */
    int64_t seg_nelem, seg_blocks;
    bool dense;          /* its elements are contiguous in the unit's flat buffer */
    int64_t side_offset; /* not dense: elements from the start of the unit's side buffer */
    /* both: elements from the start of the packed buffer (MUON) or of the unit's flat buffer (ADAMW) */
    int64_t offset;
} PlanParam;

/* The slices of one group that one tp rank owns: one gather and one scatter over the tp axis. */
typedef struct PlanTpPart {
    int group, owner_tp;
    int first, count; /* rows in Plan.member                      */
    int64_t offset;   /* elements from the start of the group     */
    int64_t nelem;    /* of one rank's slices, with alignment     */
    int64_t payload;  /* elements of the whole matrices           */
} PlanTpPart;

/* The matrices of one unit and one DP owner (their slices): one message each way. Members stand by tp owner,
 * distributed ones last. */
typedef struct PlanGroup {
    int unit, owner_shard, owner_replicate;
    int first, count;           /* rows in Plan.member                                    */
    int64_t unit_offset;        /* elements from the start of the unit's Muon part        */
    int64_t nelem;              /* with alignment                                         */
    int64_t payload;            /* elements without                                       */
    int first_part, part_count; /* in Plan.tp_part; none without tp                */
    char what[48];              /* "layer 3 owner (shard 1, replicate 0)"                 */
} PlanGroup;

typedef struct PlanUnit {
    int first_group, group_count;
    int first_adamw, adamw_count; /* rows in Plan.adamw_member                       */
    int64_t muon_nelem;           /* all packed buffers                              */
    int64_t blocks, run;          /* AdamW blocks; blocks per shard rank, ceil       */
    int64_t flat_nelem;           /* adamw_shards * run * PLAN_BLOCK                 */
    int64_t side_nelem;           /* contiguous copies of tensors that are not dense */
    int64_t sum_first;            /* first block sum of this unit in a rank's list   */
    char what[32];                /* "unit 3"                                        */
} PlanUnit;

typedef struct Plan {
    const ParamTable *params; /* borrowed */
    MeshShape mesh;
    PlanParam *param;    /* [params->count] owned */
    PlanGroup *group;    /* [ngroups] owned, by unit, then owner slot */
    PlanUnit *unit;      /* [params->nunits] owned */
    PlanTpPart *tp_part; /* [nparts] owned, by group, then tp owner */
    int *member;         /* owned: parameter rows by group */
    int *adamw_member;   /* owned: parameter rows by unit */
    int ngroups;
    int nparts;
    bool ddp;           /* every rank keeps all weights of its slice         */
    int adamw_shards;   /* ranks that share a unit's AdamW blocks: G, or 1 with ddp */
    int64_t run_blocks; /* AdamW block sums in a rank's list                 */
    int64_t sums_nelem; /* doubles of a rank's list: blocks, then segments of the matrices of its cell */
    int64_t leaves;     /* L                                                 */
    int64_t per_rank;   /* k = L / D                                         */
    bool local;         /* accumulate: local, and always with ddp            */
    bool flat_tree; /* the run's sums are the flat tree over the leaves: same bits on every mesh and mode for which this
                       holds */
    uint64_t hash;
} Plan;

void plan_create(Plan *plan, const ParamTable *params, const Config *config, MeshShape mesh);
void plan_destroy(Plan *plan);

/* Leaf that data-parallel rank d runs in round j. */
int64_t plan_leaf(const Plan *plan, int d, int64_t j);
/* Gradients (or partial sums) that a binary counter over n leaves keeps at once: floor(log2 n) + 1. */
int plan_stack_depth(int64_t n);
/* Elements of block b (counted within its segment) that exist. */
int32_t plan_block_size(const PlanParam *param, int64_t b);

/* AdamW elements of a unit in the slices of one tp rank, without padding. */
int64_t plan_adamw_payload(const Plan *plan, int unit, int tp);
/* S_f: rounds of a distributed Newton-Schulz over the tp axis. */
int plan_gram_rounds(const NsPlan *ns);

typedef struct PlanLoad {
    double max, mean, largest, bound; /* FLOPs per rank; bound = max(mean, largest single matrix) */
} PlanLoad;
PlanLoad plan_load(const Plan *plan);

#endif
