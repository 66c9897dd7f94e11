/* Strict JSON out and in. Writing is a small streaming builder; reading goes through cJSON, which is met only in
 * json.c. Non-finite numbers are written as null. */
#ifndef DMUON_BASE_JSON_H
#define DMUON_BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/str.h"

/* Writer: appends to `out`, keeps track of commas. Keys are NULL inside arrays and for the top value. */
typedef struct JsonWriter {
    Str *out; /* borrowed */
    int depth;
    bool has_item[32]; /* per depth: a comma is due before the next item */
} JsonWriter;

JsonWriter json_writer(Str *out);
void json_begin_object(JsonWriter *w, const char *key);
void json_end_object(JsonWriter *w);
void json_begin_array(JsonWriter *w, const char *key);
void json_end_array(JsonWriter *w);
/* NULL value = null; escapes; invalid UTF-8 bytes become U+FFFD. */
void json_string(JsonWriter *w, const char *key, const char *value);
void json_int(JsonWriter *w, const char *key, int64_t value);
void json_double(JsonWriter *w, const char *key, double value); /* shortest of %.15g, %.16g, %.17g that reads back */
void json_bool(JsonWriter *w, const char *key, bool value);
void json_null(JsonWriter *w, const char *key);
void json_hex32(JsonWriter *w, const char *key, uint32_t value); /* "0123abcd"        */
void json_hex64(JsonWriter *w, const char *key, uint64_t value); /* 16 hex digits      */
void json_raw(JsonWriter *w, const char *key, const char *json); /* an already written value */

/* Reader. */
typedef struct JsonValue JsonValue; /* opaque; owned by the document's root */

/* Parses exactly one value. `what` names it in the message; fails with `whose` and the byte offset. Rejects duplicate
 * keys, trailing text and nesting deeper than 64. */
DM_NODISCARD Status json_parse(const char *text, size_t nbytes, const char *what, Status whose, JsonValue **root);
void json_free(JsonValue *root);
/* Member / element access: NULL when absent or of another type. */
const JsonValue *json_get(const JsonValue *object, const char *key);
int json_count(const JsonValue *container); /* items of an array or object; 0 otherwise */
/* Array element or object member by position; O(1) amortised when scanned in order. */
const JsonValue *json_at(const JsonValue *container, int index);
const char *json_key(const JsonValue *member);          /* name of an object member, or NULL */
const char *json_as_string(const JsonValue *value);     /* NULL unless a string */
bool json_as_int(const JsonValue *value, int64_t *out); /* false unless an integral number with |x| <= 2^53 */
bool json_as_double(const JsonValue *value, double *out);
bool json_as_bool(const JsonValue *value, bool *out);
bool json_is_object(const JsonValue *value);
bool json_is_array(const JsonValue *value);

#endif
