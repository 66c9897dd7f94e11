/* Saving a set: whole logical tensors in safetensors files, each written by one rank, in parallel, into a temporary
 * directory that is renamed once complete. With `background` the state is copied to host buffers and a thread writes it
 * while training goes on. */
#ifndef DMUON_CHECKPOINT_SAVE_H
#define DMUON_CHECKPOINT_SAVE_H

#include "checkpoint/manifest.h"
#include "parallel/parallel.h"

typedef struct Saver Saver; /* opaque, owned by the session */

typedef struct SaverOptions {
    const Config *config; /* all borrowed */
    const Plan *plan;
    Parallel *parallel;
    Device *device;
    Comm *world;
    const char *run_dir, *run_id, *data_identity, *version;
    int segments;
} SaverOptions;

/* What a set records besides the tensors. */
typedef struct SaveState {
    int64_t step, samples, adamw_t, tokens_total;
} SaveState;

/* What became of a save. */
typedef struct SaveReport {
    SaveState state;
    Status status;
    char trail[4096];                  /* when it failed */
    char dir[1200];                    /* when it worked */
    char unpruned[1200];               /* rank 0, when it worked: why older sets were not removed; empty: they were */
    int64_t nbytes;                    /* of all files */
    double copy_ms, write_ms, wait_ms; /* copying the state; writing; waiting for the save before */
} SaveReport;

/* Collective. Host memory for the copy is taken at the first save. */
DM_NODISCARD Status saver_create(Saver **saver, const SaverOptions *options);
void saver_destroy(Saver *saver); /* joins the thread */
/* Begins a save: waits for the one in flight, copies the state, writes (background: in a thread). Collective. */
void saver_begin(Saver *saver, const SaveState *state, bool background);
/* A finished save that was not reported yet: true, once each. wait: also waits for the one in flight. Local; every rank
 * gets the same status. */
bool saver_poll(Saver *saver, bool wait, SaveReport *report);

#endif
