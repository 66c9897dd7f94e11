/* The state shared by the files of this room; nothing outside it includes this. */
#ifndef DMUON_PARALLEL_INTERNAL_H
#define DMUON_PARALLEL_INTERNAL_H

#include "parallel/leaf_stack.h"
#include "parallel/parallel.h"

#define WAIT_SAMPLES 4096

/* Whole weights of one unit and one kind (Muon or AdamW), gathered. */
typedef struct CacheSlot {
    float *base;     /* device                                           */
    uint16_t *wire;  /* device: the same elements as bf16, as they travel or as products take them; NULL: neither */
    int unit;        /* that is in it or on its way, -1: free            */
    Event *ready;    /* on gather: whole                                 */
    Event *released; /* on compute: no longer read                       */
} CacheSlot;

typedef struct Cache {
    CacheSlot *slot; /* [nslots] heap */
    int nslots;
    bool keep; /* Z2: slot u is unit u's until the step ends; Z3: a small pool */
} Cache;

typedef enum CacheKind { CACHE_MUON, CACHE_ADAMW, CACHE_COUNT } CacheKind;

/* Where a unit's backward writes: [muon packed buffers | AdamW flat | side]. */
typedef struct GradSlot {
    float *base;
    bool busy;
    Event *consumed; /* on reduce: the reductions have read it */
} GradSlot;

/* Matrices of one unit and one shape that this rank updates whole, in one run of Newton-Schulz: in fast mode all there
 * are, up to NS_BATCH_MAX at a time; in exact mode each one alone, in the least memory. */
typedef struct OwnerBatch {
    int group, part; /* the packed buffer; the part of it that tp gathers, -1: without tp */
    int count;
    int row[NS_BATCH_MAX];
    Repeat *repeat;
} OwnerBatch;

typedef enum PublishState { PUBLISH_IDLE, PUBLISH_PENDING } PublishState;

/* What a unit waits for. */
typedef struct UnitState {
    Event *grads_ready; /* compute: the leaf's gradients are written        */
    Event *shard_done;  /* reduce: the step's shard reductions are done     */
    Event *final;       /* publish: this rank's share of the gradient is averaged */
    Event *gathered;    /* reduce: the tp owners have their whole gradients     */
    Event *updated;     /* compute: the owner's new weights are written     */
    Event *published;   /* publish: the new weights are here                */
    PublishState publish;
    float *grad_base;    /* of the leaf in flight, NULL: none                */
    GradSlot *grad_slot; /* reduce mode                                      */
} UnitState;

struct Parallel {
    const Plan *plan;
    const Config *config;
    const Mesh *mesh;
    Device *device;
    Stream *compute, *gather, *reduce, *publish;
    Arena arena; /* run lifetime, device */
    Store store;
    Residency residency;
    float **value, **grad; /* [params->count] heap */
    uint16_t **bits;       /* [params->count] heap */
    Cache cache[CACHE_COUNT];
    UnitState *unit;   /* [nunits] heap */
    Event *adamw_done; /* compute: the shards hold the step's new weights */

    LeafStack *muon_held;  /* [ngroups] reduce mode: the shard column; local mode: unused       */
    LeafStack *adamw_held; /* [nunits]  reduce mode                                              */
    LeafStack *unit_grads; /* [nunits]  local mode: whole gradients of the unit on this rank     */
    GradSlot *grad_slot;   /* [grad_nslots] reduce mode                                          */
    int grad_nslots, grad_next;
    float **muon_final;  /* [ngroups] the column's reduced gradient, final at the owner */
    float **adamw_final; /* [nunits] reduced run of blocks                              */

    float **tp_gathered, **tp_scattered; /* [nparts][T][part nelem] at the tp owner, else NULL; kept or per step */
    float *tp_whole;                     /* this tp owner's whole matrices of the largest batch */
    float *ns_scratch;                   /* the largest ns_run needs                 */
    OwnerBatch *batch;                   /* [nbatches] heap, by unit                 */
    int nbatches;
    int32_t **block_size;     /* [nunits][run] sizes of this rank's blocks */
    double *sums, *all_sums;  /* [sums_nelem], [world][sums_nelem] device */
    double *host_sums;        /* [world][sums_nelem] host                 */
    float *loss, *all_losses; /* [k + 1], [D][k + 1] device               */

    bool in_step, forward_only;
    int64_t round;
    uint16_t *wire;  /* device: the packed buffer that the publish stream has in hand; NULL: masters travel */
    int gather_next; /* unit whose tp gathers are to be queued next, downwards; -1: all are */
    double wait_us[WAIT_SAMPLES];
    int wait_count;
    int64_t ns_calls;
    Stopwatch *watch;
    bool update_timed; /* marks of an update that have not been read */
    double optimizer_ms;
};

/* Of the watch. */
enum { MARK_GRADS, MARK_REDUCED, MARK_UPDATE, MARK_UPDATED };

/* Places everything; arena may be measuring. `bytes` gets the sizes by kind. (layout.c) */
void parallel_layout(Parallel *p, MeshCoord coord, ParallelBytes *bytes);
void parallel_release_tables(Parallel *p);

/* Offsets inside a unit's gradient or gathered buffer. */
static inline int64_t unit_grad_nelem(const PlanUnit *u) {
    return u->muon_nelem + u->flat_nelem + u->side_nelem;
}

/* prefetch.c: the caches. */
void prefetch_acquire(Parallel *p, int unit, bool backward);
void prefetch_release(Parallel *p, int unit);
void prefetch_invalidate(Parallel *p); /* weights change: nothing gathered is valid any more */

/* wire.c: rounded weights. */
/* One packed buffer, or a unit's AdamW blocks, into the slot, on the gather stream. */
void wire_gather_group(Parallel *p, int g, const CacheSlot *slot);
void wire_gather_blocks(Parallel *p, int unit, const CacheSlot *slot, CommTag tag);
/* A packed buffer's publish: its broadcasts stand between begin and end, on the publish stream. */
void wire_publish_begin(Parallel *p, int g);
void wire_publish_over(Parallel *p, Axis axis, int g, int root);
void wire_publish_end(Parallel *p, int g);

/* owner.c: Muon. */
void owner_batches(Parallel *p); /* which matrices are updated together: batch, nbatches */
/* Elements of tp_whole up to the end of the batch's first `count` matrices, which lie there with their padding. */
int64_t owner_whole_end(const Parallel *p, const OwnerBatch *batch, int count);
void owner_gather(Parallel *p, int unit, const CacheSlot *slot);
void owner_bind_values(Parallel *p, int unit, const CacheSlot *slot);
void owner_bind_grads(Parallel *p, int unit, float *base);
void owner_reduce_shard(Parallel *p, int unit, const float *base);
void owner_reduce_replicate(Parallel *p, int unit);
void owner_update_unit(Parallel *p, int unit, const UpdateStep *step, const GradNorm *norm);
void owner_publish_unit(Parallel *p, int unit, const UpdateStep *step);

/* tp.c: between the slices of a cell and its tp owners. Nothing to do without tp. */
/* Scratch that tp_buffer_reuse does not keep goes back once its last reader is done: gathered gradients after the
 * update, scattered updates when every unit has been acquired again. */
void tp_release_gathered(Parallel *p);
void tp_release_scattered(Parallel *p);
void tp_gather_unit(Parallel *p, int unit);
/* The whole gradient of a matrix from its part's gathered slices, and the way back of its update. */
void tp_assemble(Parallel *p, const PlanTpPart *part, int row, float *whole);
void tp_distribute(Parallel *p, const PlanTpPart *part, int row, float *whole);
/* Scatters a unit's updates and applies them to this rank's slices, on the publish stream. */
void tp_scatter_unit(Parallel *p, int unit, const UpdateStep *step);

/* fsdp.c: AdamW. */
void fsdp_gather(Parallel *p, int unit, const CacheSlot *slot);
void fsdp_bind_values(Parallel *p, int unit, const CacheSlot *slot);
void fsdp_bind_grads(Parallel *p, int unit, float *base);
void fsdp_pack_grads(Parallel *p, int unit, float *base);
void fsdp_reduce_shard(Parallel *p, int unit, float *base);
void fsdp_reduce_replicate(Parallel *p, int unit);
void fsdp_update_unit(Parallel *p, int unit, const UpdateStep *step, const GradNorm *norm);

/* 1/L: the mean multiplies the finished tree once. */
static inline float leaf_factor(const Parallel *p) {
    return (float)(1.0 / (double)p->plan->leaves);
}

/* The element type of weights in flight. */
static inline Dtype wire_dtype(const Config *config) {
    return config->precision.wire == WIRE_BF16 ? DTYPE_BF16 : DTYPE_F32;
}

/* Does making a unit whole take a message? With ddp and with one shard rank every rank has it all. */
static inline bool wire_fetches(const Parallel *p) {
    return p->plan->mesh.shard > 1 && !p->plan->ddp;
}

/* Payload that is counted: bytes inside a step, 0 outside. */
static inline int64_t counted(const Parallel *p, int64_t nelem) {
    return p->in_step ? nelem * (int64_t)sizeof(float) : 0;
}

static inline int64_t counted_weights(const Parallel *p, int64_t nelem) {
    return p->in_step ? nelem * (int64_t)dtype_nbytes(wire_dtype(p->config)) : 0;
}

#endif
