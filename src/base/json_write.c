/* The writing half of json.h. */
#include "base/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/fatal.h"
#include "base/utf8.h"

enum { MAX_DEPTH = (int)(sizeof((JsonWriter *)0)->has_item / sizeof((JsonWriter *)0)->has_item[0]) };

JsonWriter json_writer(Str *out) {
    return (JsonWriter){.out = out};
}

static void append_escaped(Str *out, const char *text) {
    str_append(out, "\"");
    const char *c = text;
    const char *end = text + strlen(text);
    while (c < end) {
        const size_t len = utf8_sequence(c, (size_t)(end - c));
        if (len == 0)
            str_append(out, "\\ufffd");
        else if (*c == '"' || *c == '\\')
            str_printf(out, "\\%c", *c);
        else if (*c == '\n')
            str_append(out, "\\n");
        else if (*c == '\t')
            str_append(out, "\\t");
        else if (len == 1 && ((unsigned char)*c < 0x20 || *c == 0x7f))
            str_printf(out, "\\u%04x", (unsigned)*c);
        else
            str_append_n(out, c, len);
        c += len > 0 ? len : 1;
    }
    str_append(out, "\"");
}

/* The comma that is due, and the key. */
static void begin_item(JsonWriter *w, const char *key) {
    if (w->has_item[w->depth])
        str_append(w->out, ",");
    w->has_item[w->depth] = true;
    if (key != NULL) {
        append_escaped(w->out, key);
        str_append(w->out, ":");
    }
}

static void begin_container(JsonWriter *w, const char *key, const char *bracket) {
    DM_ASSERT(w->depth + 1 < MAX_DEPTH);
    begin_item(w, key);
    str_append(w->out, bracket);
    w->depth++;
    w->has_item[w->depth] = false;
}

static void end_container(JsonWriter *w, const char *bracket) {
    DM_ASSERT(w->depth > 0);
    w->depth--;
    str_append(w->out, bracket);
}

void json_begin_object(JsonWriter *w, const char *key) {
    begin_container(w, key, "{");
}

void json_end_object(JsonWriter *w) {
    end_container(w, "}");
}

void json_begin_array(JsonWriter *w, const char *key) {
    begin_container(w, key, "[");
}

void json_end_array(JsonWriter *w) {
    end_container(w, "]");
}

void json_raw(JsonWriter *w, const char *key, const char *json) {
    begin_item(w, key);
    str_append(w->out, json);
}

void json_string(JsonWriter *w, const char *key, const char *value) {
    if (value == NULL) {
        json_null(w, key);
        return;
    }
    begin_item(w, key);
    append_escaped(w->out, value);
}

void json_int(JsonWriter *w, const char *key, int64_t value) {
    begin_item(w, key);
    str_printf(w->out, "%" PRId64, value);
}

void json_double(JsonWriter *w, const char *key, double value) {
    if (!isfinite(value)) {
        json_null(w, key);
        return;
    }
    char text[40];
    for (int digits = 15; digits <= 17; digits++) {
        str_format(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    json_raw(w, key, text);
}

void json_bool(JsonWriter *w, const char *key, bool value) {
    json_raw(w, key, value ? "true" : "false");
}

void json_null(JsonWriter *w, const char *key) {
    json_raw(w, key, "null");
}

void json_hex32(JsonWriter *w, const char *key, uint32_t value) {
    begin_item(w, key);
    str_printf(w->out, "\"%08" PRIx32 "\"", value);
}

void json_hex64(JsonWriter *w, const char *key, uint64_t value) {
    begin_item(w, key);
    str_printf(w->out, "\"%016" PRIx64 "\"", value);
}
