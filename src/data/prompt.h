/* The text that a sample continues, as token ids. */
#ifndef DMUON_DATA_PROMPT_H
#define DMUON_DATA_PROMPT_H

#include <stdint.h>

#include "base/status.h"

#define PROMPT_BYTES 256 /* a vocabulary of this size is bytes */

/* With a byte vocabulary every byte of `prompt` is a token; otherwise it is ids below `vocab`, separated by blanks. An
 * empty one is a line feed, or token 0. tokens: room for strlen(prompt) + 1 ids, or NULL to check only. STATUS_CONFIG:
 * `name`, the prompt and the rule that is broken. */
DM_NODISCARD Status prompt_parse(const char *name, const char *prompt, int64_t vocab, int32_t *tokens, int64_t *count);

#endif
