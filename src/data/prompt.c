/* Prompts: bytes, or numbers separated by blanks. */
#include "data/prompt.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static void put(int32_t *tokens, int64_t *count, int64_t token) {
    if (tokens)
        tokens[*count] = (int32_t)token;
    (*count)++;
}

/* Digits at *text, which moves behind them; -1 when there are none or what follows is neither a blank nor the end. */
static int64_t take_id(const char **text) {
    char *end;
    if (!isdigit((unsigned char)**text))
        return -1;
    const int64_t id = strtoll(*text, &end, 10); /* beyond 64 bits: the largest, which is outside any vocabulary */
    *text = end;
    return *end == '\0' || *end == ' ' ? id : -1;
}

/* False: a word that is no id below vocab. */
static bool parse_ids(const char *prompt, int64_t vocab, int32_t *tokens, int64_t *count) {
    const char *p = prompt + strspn(prompt, " ");
    while (*p != '\0') {
        const int64_t id = take_id(&p);
        if (id < 0 || id >= vocab)
            return false;
        put(tokens, count, id);
        p += strspn(p, " ");
    }
    return true;
}

Status prompt_parse(const char *name, const char *prompt, int64_t vocab, int32_t *tokens, int64_t *count) {
    *count = 0;
    if (vocab == PROMPT_BYTES) {
        for (const char *p = prompt; *p != '\0'; p++)
            put(tokens, count, (unsigned char)*p);
    } else if (!parse_ids(prompt, vocab, tokens, count)) {
        return STATUS_FAIL(STATUS_CONFIG,
                           "%s \"%s\": must be token ids from 0 to %" PRId64
                           ", separated by blanks: model.vocab_size is not %d, so text is not bytes",
                           name, prompt, vocab - 1, PROMPT_BYTES);
    }
    if (*count == 0)
        put(tokens, count, vocab == PROMPT_BYTES ? '\n' : 0);
    return STATUS_OK;
}
