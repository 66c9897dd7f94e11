/* Whether a text is strict JSON (RFC 8259), before a lenient parser sees it. */
#ifndef DMUON_BASE_JSON_CHECK_H
#define DMUON_BASE_JSON_CHECK_H

#include <stddef.h>

#include "base/status.h"

#define JSON_MAX_DEPTH 64

/* One value, UTF-8, whitespace around it, containers at most JSON_MAX_DEPTH deep, finite numbers of at most 63
 * characters, no NUL in a string. Fails with `whose` and "<what>: byte <offset>: <rule>". Duplicate keys are not seen
 * here. `text` must be readable at text[nbytes] as well: NUL. */
DM_NODISCARD Status json_check(const char *text, size_t nbytes, const char *what, Status whose);

#endif
