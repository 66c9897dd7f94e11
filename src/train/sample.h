/* Text from the model: every rank computes the same tokens, so the mesh does not matter. */
#ifndef DMUON_TRAIN_SAMPLE_H
#define DMUON_TRAIN_SAMPLE_H

#include "base/str.h"
#include "train/session.h"

/* Whether a run can sample with train.sample_prompt, should it. */
DM_NODISCARD Status sample_check(const Config *config);

/* Continues `prompt` by train.sample_tokens tokens; draws are Philox from (seed, step), temperature 0 is greedy. `text`
 * gets the continuation. With a byte vocabulary both are text; otherwise both are token ids separated by blanks.
 * Collective. */
DM_NODISCARD Status sample_run(Session *session, const char *prompt, Str *text);

#endif
