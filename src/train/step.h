/* One optimizer step. */
#ifndef DMUON_TRAIN_STEP_H
#define DMUON_TRAIN_STEP_H

#include "train/session.h"

typedef struct StepResult {
    float loss; /* mean over the global batch, same bits on every rank     */
    GradNorm norm;
    double lr_muon, lr_adamw;
    bool finite;    /* loss and norm                                           */
    bool stop;      /* a signal or the wall-time budget, on any rank           */
    int64_t tokens; /* of all ranks                                            */
    double step_ms, forward_ms, backward_ms, reduce_wait_ms, optimizer_ms, publish_wait_ms; /* of this rank */
} StepResult;

/* Runs step progress.step + 1 and advances progress; with a non-finite loss or norm nothing else changes. Collective.
 * want_stop: this rank's wish to stop after the step; a signal is one, too. Data that cannot be used end the job: peers
 * wait inside the step. */
void step_run(Session *session, bool want_stop, StepResult *result);

#endif
