/* The one report of all errors of a configuration. */
#include "config/load.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "config/value.h"

enum { REPORT_BYTES = 12000 }; /* the trail holds 16 KiB */

void place_print(Place place, Str *out) {
    if (place.line > 0)
        str_printf(out, "%s:%d", place.origin, place.line);
    else
        str_printf(out, "command line: %s", place.origin);
}

static void add_error(Loading *load, const char *text) {
    load->error_count++;
    if (load->errors.len + strlen(text) < REPORT_BYTES) {
        str_append(&load->errors, load->errors.len > 0 ? "\n" : "");
        str_append(&load->errors, text);
    }
}

static void vprint(Str *out, const char *fmt, va_list args) {
    char text[2048];
    (void)vsnprintf(text, sizeof text, fmt, args);
    str_append(out, text);
}

void load_error(Loading *load, Place place, const char *fmt, ...) {
    Str line = {0};
    va_list args;
    if (place.origin != NULL)
        place_print(place, &line);
    else
        str_append(&line, load->file);
    str_append(&line, ": ");
    va_start(args, fmt);
    vprint(&line, fmt, args);
    va_end(args);
    add_error(load, line.text);
    str_deinit(&line);
}

/* Whether the place already shows the key and its value. */
bool place_shows(Place place, const char *key) {
    return place.origin != NULL && place.line == 0 && str_starts_with(place.origin, key) &&
           place.origin[strlen(key)] == '=';
}

void load_key_error(Loading *load, const char *key, const char *other, const char *fmt, ...) {
    Str line = {0};
    va_list args;
    const int index = schema_index(key);
    Place place = load->place[index];
    if (place.origin == NULL && other != NULL)
        place = load->place[schema_index(other)];
    if (place.origin != NULL)
        place_print(place, &line);
    else
        str_append(&line, load->file);
    if (!place_shows(place, key)) {
        str_printf(&line, ": %s = ", key);
        value_print(schema_key(index), load->config, &line);
        str_append(&line, load->place[index].origin == NULL ? " (default)" : "");
    }
    str_append(&line, ": ");
    va_start(args, fmt);
    vprint(&line, fmt, args);
    va_end(args);
    add_error(load, line.text);
    str_deinit(&line);
}

bool load_given(const Loading *load, const char *key) {
    return load->place[schema_index(key)].origin != NULL;
}

bool load_usable(const Loading *load, const char *const *keys) {
    for (; *keys != NULL; keys++) {
        if (load->bad[schema_index(*keys)])
            return false;
    }
    return true;
}
