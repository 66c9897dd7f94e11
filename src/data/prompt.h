/* The text that a sample continues, as token ids. */
#ifndef DMUON_DATA_PROMPT_H
#define DMUON_DATA_PROMPT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/str.h"

#define PROMPT_BYTES 256 /* a vocabulary of this size is bytes */

/* With a byte vocabulary every byte of `prompt` is a token; otherwise it is ids below `vocab`, separated by blanks. An
 * empty one is a line feed, or token 0. tokens: room for strlen(prompt) + 1 ids, or NULL to check only. False: `why`
 * gets the rule that is broken. */
bool prompt_parse(const char *prompt, int64_t vocab, int32_t *tokens, int64_t *count, Str *why);

#endif
