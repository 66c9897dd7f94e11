/* Loading a set onto any mesh: every rank reads the pieces it holds. Everything is verified and agreed before any state
 * changes. */
#ifndef DMUON_CHECKPOINT_LOAD_H
#define DMUON_CHECKPOINT_LOAD_H

#include "checkpoint/manifest.h"
#include "parallel/parallel.h"

/* Reads trainer.json of `dir` and verifies every byte of the set, the files dealt to the ranks. The manifest is filled
 * on every rank. Collective. */
DM_NODISCARD Status load_open(const char *dir, Comm *world, Manifest *manifest);

/* What a resume must not change: the model, numerics.mode and the segments never; the rest of the identity only with
 * checkpoint.allow_changes. All offending keys are in one trail, with both values. data_identity NULL: only a look at
 * the weights, so that just what can never change counts. */
DM_NODISCARD Status load_check_config(const char *dir, const Manifest *manifest, const Config *config, int segments,
                                      const char *data_identity);

/* Weights (weights_only) or all state of this rank's pieces from the set. Missing, extra or misshapen tensors are
 * errors, before anything changes. Collective. */
DM_NODISCARD Status load_state(const char *dir, Parallel *parallel, const Plan *plan, Device *device, Comm *world,
                               bool weights_only);

/* Weights from any safetensors directory in Hugging Face layout; its config.json is compared key by key. Momentum and
 * moments are zero. Collective. */
DM_NODISCARD Status load_init_from(const char *dir, const ModelConfig *model, Parallel *parallel, const Plan *plan,
                                   Device *device, Comm *world);

#endif
