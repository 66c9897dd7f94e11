/* Bounded strings: a growing builder, path joins, numbers that reject trailing text. */
#ifndef DMUON_BASE_STR_H
#define DMUON_BASE_STR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* A growing NUL-terminated string. Start with {0}; `text` is never NULL after the first append. */
typedef struct Str {
    char *text; /* owned */
    size_t len;
    size_t capacity;
} Str;

void str_append(Str *str, const char *text);
void str_append_n(Str *str, const char *bytes, size_t nbytes);
void str_printf(Str *str, const char *fmt, ...) DM_PRINTF(2, 3);
void str_clear(Str *str); /* keeps the memory */
void str_deinit(Str *str);

/* snprintf into a fixed buffer; text that does not fit is our bug. */
void str_format(char *buf, size_t capacity, const char *fmt, ...) DM_PRINTF(3, 4);
/* "a/b", or "b" when it is absolute or `a` is empty, into buf. */
void str_path_join(char *buf, size_t capacity, const char *a, const char *b);
/* The part after the last '/'. Borrowed from `path`. */
const char *str_base_name(const char *path);
bool str_starts_with(const char *text, const char *prefix);
bool str_ends_with(const char *text, const char *suffix);

/* YAML 1.2 core schema numbers: [-+]?[0-9]+, 0x..., 0o..., and decimal floats with exponent ("1e-4" is a number;
 * underscores are not). false on trailing text, overflow or an empty string. .inf and .nan are not accepted. */
bool str_parse_int(const char *text, int64_t *value);
bool str_parse_double(const char *text, double *value);

/* Edit distance, for "did you mean". Collating a == b as 0. */
int str_distance(const char *a, const char *b);

#endif
