/* Batches ahead of time: a thread prepares the leaves that this rank will ask for next. */
#ifndef DMUON_DATA_LOADER_H
#define DMUON_DATA_LOADER_H

#include "data/dataset.h"

typedef struct Loader Loader; /* opaque */

typedef struct LoaderOptions {
    const Dataset *dataset; /* borrowed */
    uint64_t seed;
    bool shuffle;
    int64_t B, T;            /* a leaf                                                        */
    int64_t leaves_per_step; /* L                                                             */
    const int64_t *leaf;     /* [per_rank] borrowed: which leaves of a step this rank runs, in order */
    int64_t per_rank;        /* k                                                             */
    int64_t first_sample;    /* samples consumed before the first step: leaf i of step t holds samples first + t*L*B +
                                [i*B, (i+1)*B) */
} LoaderOptions;

DM_NODISCARD Status loader_create(Loader **loader, const LoaderOptions *options);
void loader_destroy(Loader *loader);
/* The next leaf: tokens, targets [B,T], borrowed until the next call. Every k calls are one step. */
DM_NODISCARD Status loader_next(Loader *loader, const int32_t **tokens, const int32_t **targets);

#endif
