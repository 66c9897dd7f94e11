/* What a run says about itself, as numbers: the records of log.jsonl (README, "Log") as plain structs, how the ranks'
 * figures become one, and the handle through which rank 0 writes log and console. Units stand in the names. */
#ifndef DMUON_METRICS_METRICS_H
#define DMUON_METRICS_METRICS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "mesh/mesh.h"
#include "parallel/plan.h"

/* Parts of a step's time on one rank. */
typedef enum Phase {
    PHASE_FORWARD,
    PHASE_BACKWARD,
    PHASE_REDUCE_WAIT,
    PHASE_OPTIMIZER,
    PHASE_PUBLISH_WAIT,
    PHASE_COUNT
} Phase;
const char *phase_name(Phase phase); /* "forward", "backward", "reduce_wait", "optimizer", "publish_wait" */

typedef struct Percentiles {
    double p50, p90, p99; /* NaN (null in the log) of nothing */
} Percentiles;

/* Of n values, the ceil(p*n)-th smallest. Sorts `values`. */
Percentiles metrics_percentiles(double *values, int64_t n);

/* A step record: everything since the last one. */
typedef struct StepMetrics {
    int64_t step, steps_total;
    float loss;               /* of the last step                                               */
    double grad_norm;         /* of the last step                                               */
    double lr_muon, lr_adamw; /* of the last step                                               */
    int64_t tokens;           /* since the last record, all ranks                               */
    int64_t tokens_total;     /* since the start of the run                                     */
    double tokens_per_s;
    double step_ms;                            /* mean over the steps, maximum over the ranks                    */
    double mfu;                                /* NaN: the peak is unknown                                       */
    int64_t ns_calls;                          /* Newton-Schulz runs since the last record, all ranks            */
    int64_t nonfinite;                         /* skipped steps since the start of the run                       */
    double phase_ms[PHASE_COUNT];              /* as step_ms                                                     */
    CommCount comm[AXIS_COUNT][COMM_OP_COUNT]; /* since the last record, each collective once         */
    Percentiles publish_wait_us;               /* per unit, over all ranks                                       */
    bool has_params_hash;
    uint64_t params_hash;
    double grad_sumsq; /* binary64 sum of squares of the last step's gradient; written, as bits, with params_hash */
} StepMetrics;

/* What one rank collects from record to record. Start with {0}. */
typedef struct StepWindow {
    int64_t steps;
    int64_t tokens;                        /* of all ranks */
    double step_ms, phase_ms[PHASE_COUNT]; /* sums, of this rank */
} StepWindow;

void window_add(StepWindow *window, int64_t tokens, double step_ms, const double phase_ms[PHASE_COUNT]);

/* What this rank contributes besides its window. */
typedef struct WindowInputs {
    int64_t ns_calls;
    const double *publish_wait_us; /* [publish_waits] borrowed */
    int publish_waits;
    double flops_per_step; /* of the whole batch: model_flops                */
    double peak_flops;     /* per second, all ranks together; 0: unknown     */
} WindowInputs;

/* Fills tokens, rates, times, comm, ns_calls and percentiles of `out` from the windows and the communicators' counts of
 * all ranks, and empties the window. Collective over the world; the result is the same on every rank. */
void window_reduce(StepWindow *window, const WindowInputs *inputs, const Mesh *mesh, StepMetrics *out);

typedef struct EvalMetrics {
    int64_t step;
    float loss;
    int64_t tokens;
    double eval_ms;
} EvalMetrics;

typedef struct CheckpointMetrics {
    int64_t step;
    const char *dir; /* borrowed */
    int64_t nbytes;
    double copy_ms, write_ms, save_wait_ms;
} CheckpointMetrics;

/* What the start record holds; all borrowed. */
typedef struct StartMetrics {
    const char *run_id, *version, *device;
    const char *device_reason; /* why this one, for people */
    const char *init_from;     /* whose weights the run begins with; NULL: initial ones, or it resumes */
    const char *products;      /* device_products: what was pinned, "" nothing */
    const Config *config;
    const ParamTable *params;
    const Plan *plan;
    const World *world;
    int threads; /* per rank          */
    int64_t steps_total;
    double peak_flops;      /* 0: unknown        */
    const char *data;       /* identity of the training files */
    int64_t dropped_tokens; /* in tails shorter than a window */
} StartMetrics;

typedef struct Metrics Metrics; /* opaque; NULL writes nothing, so that other ranks may hold one too */

/* Opens <run_dir>/log.jsonl for appending. live: also a progress line that rewrites itself (stderr is a terminal). */
DM_NODISCARD Status metrics_open(Metrics **metrics, const char *run_dir, bool live);
void metrics_close(Metrics *metrics);

/* Each writes one line of log.jsonl with one write(2), and for people a line on stderr. A line that cannot be written
 * is STATUS_CONFIG (the run directory). */
DM_NODISCARD Status metrics_start(Metrics *metrics, const StartMetrics *start);
DM_NODISCARD Status metrics_step(Metrics *metrics, const StepMetrics *step);
DM_NODISCARD Status metrics_eval(Metrics *metrics, const EvalMetrics *eval);
DM_NODISCARD Status metrics_sample(Metrics *metrics, int64_t step, const char *prompt, const char *text);
DM_NODISCARD Status metrics_checkpoint(Metrics *metrics, const CheckpointMetrics *checkpoint);
DM_NODISCARD Status metrics_resume(Metrics *metrics, int64_t step, const char *set, MeshShape saved_mesh);
DM_NODISCARD Status metrics_warning(Metrics *metrics, int64_t step, const char *text);
DM_NODISCARD Status metrics_end(Metrics *metrics, int64_t step, const char *reason, int exit_code);
/* The progress line, when there is one. */
void metrics_live(Metrics *metrics, int64_t step, int64_t steps_total, float loss, double step_ms);

#endif
