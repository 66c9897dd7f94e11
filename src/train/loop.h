/* The run: step, evaluate, sample, save, record, stop. */
#ifndef DMUON_TRAIN_LOOP_H
#define DMUON_TRAIN_LOOP_H

#include "train/session.h"

/* Trains from session->progress to the last step. STATUS_STOPPED after a signal or at the wall-time budget, with a set
 * saved; STATUS_NUMERIC for a non-finite step under nonfinite: stop; STATUS_CHECKPOINT when the final save failed.
 * `job_start_s`: seconds since 1970. Collective. */
DM_NODISCARD Status loop_run(Session *session, double job_start_s);

#endif
