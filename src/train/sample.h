/* Text from the model: every rank computes the same tokens, so the mesh does not matter. */
#ifndef DMUON_TRAIN_SAMPLE_H
#define DMUON_TRAIN_SAMPLE_H

#include "base/str.h"
#include "train/session.h"

/* Continues `prompt` by train.sample_tokens tokens; draws are Philox from (seed, step), temperature 0 is greedy. With a byte vocabulary `text` is the
 * prompt and its continuation; otherwise the prompt is token ids separated by blanks and so is the text. Collective. */
DM_NODISCARD Status sample_run(Session *session, const char *prompt, Str *text);

#endif
