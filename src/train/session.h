/* Everything a run needs, built in the order of the layers with an agreement after each phase, torn down in reverse. */
#ifndef DMUON_TRAIN_SESSION_H
#define DMUON_TRAIN_SESSION_H

#include "checkpoint/load.h"
#include "checkpoint/run.h"
#include "checkpoint/save.h"
#include "config/config.h"
#include "data/loader.h"
#include "mesh/mesh.h"
#include "model/model.h"
#include "parallel/parallel.h"

/* What a checkpoint restores besides tensors. */
typedef struct Progress {
    int64_t step;    /* finished steps          */
    int64_t samples; /* consumed: the cursor    */
    int64_t adamw_t; /* applied updates         */
    int64_t tokens_total;
    int64_t nonfinite; /* steps skipped so far    */
} Progress;

typedef enum Purpose { PURPOSE_TRAIN, PURPOSE_EVAL, PURPOSE_SAMPLE } Purpose;

typedef struct SessionOptions {
    const char *config_path;
    char *const *overrides;
    int override_count;
    Purpose purpose;
    const char *set; /* --eval=SET, --sample=SET: a checkpoint directory; NULL: the newest of the run */
} SessionOptions;

typedef struct Session {
    Config config;
    Purpose purpose;
    World *world; /* borrowed */
    Mesh mesh;
    DeviceChoice choice;
    const char *transport; /* "mpi", "nccl" */
    int gpu_sharing;       /* ranks that take this rank's GPU, 1 on the CPU */
    Device *device;
    int threads;
    ModelShape shape;
    ParamTable params;
    Plan plan;
    Parallel *parallel;
    Arena activations;
    Model *model;
    Dataset *train, *val; /* val NULL without data.val */
    Str data_identity, warnings;
    int64_t *leaf; /* [k] the leaves of a step that this rank runs */
    Loader *loader;
    RunDir lock;          /* rank 0 */
    RunStart start;       /* the same on every rank */
    MeshShape saved_mesh; /* that wrote the set this run starts from */
    Saver *saver;
    Progress progress;
    int64_t total_steps;
    bool opened; /* session_open succeeded: what it created stays */
    double
        peak_flops; /* of all ranks together: measured at start-up, or the sum of the GPUs' listed ones; 0: unknown */
} Session;

/* Collective over all ranks. On failure every rank has the same Status and trail, and what this start created is
 * removed; call session_close in any case. */
DM_NODISCARD Status session_open(Session *session, World *world, const SessionOptions *options);
/* Collective. Drains, joins the threads, closes all files. */
void session_close(Session *session);

#endif
