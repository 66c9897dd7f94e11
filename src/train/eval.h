/* Validation loss: windows at stride seq_len in order, spread over the data-parallel ranks. */
#ifndef DMUON_TRAIN_EVAL_H
#define DMUON_TRAIN_EVAL_H

#include "train/session.h"

typedef struct EvalResult {
    float loss; /* tree over the windows' lane sums, times 1/tokens */
    int64_t tokens;
    double ms;
    bool stop; /* a rank wished to stop: the evaluation ended early and `loss` means nothing */
} EvalResult;

/* Collective. Drains pending publishes first. Data that cannot be used end the job, as in a step. */
void eval_run(Session *session, EvalResult *result);

#endif
