/* A key's value as text. */
#include "config/value.h"

#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "base/fatal.h"

/* The shortest text that reads back to the same bits, with the point that YAML 1.1 readers want to see in a number. */
static void print_double(double value, Str *out) {
    char text[40];
    double back = 0;
    for (int digits = 15; digits <= 17; digits++) {
        (void)snprintf(text, sizeof text, "%.*g", digits, value);
        if (str_parse_double(text, &back) && back == value)
            break;
    }
    const size_t mantissa = strcspn(text, "e");
    str_append_n(out, text, mantissa);
    if (memchr(text, '.', mantissa) == NULL)
        str_append(out, ".0");
    str_append(out, text + mantissa);
}

/* Bytes of the UTF-8 character that begins at `c`, and its code; a stray byte is one character, U+FFFD. */
static int utf8_next(const unsigned char *c, unsigned *code) {
    const int more = *c >= 0xF0 ? 3 : *c >= 0xE0 ? 2 : *c >= 0xC2 ? 1 : 0;
    *code = *c < 0x80 ? *c : more == 3 ? *c & 0x07u : more == 2 ? *c & 0x0Fu : *c & 0x1Fu;
    for (int i = 1; i <= more; i++) {
        if ((c[i] & 0xC0) != 0x80) {
            *code = 0xFFFD;
            return i;
        }
        *code = *code << 6 | (c[i] & 0x3Fu);
    }
    if (*c >= 0x80 && more == 0)
        *code = 0xFFFD;
    return more + 1;
}

/* In double quotes; whatever is not printable ASCII is escaped, because YAML folds some of it. */
static void print_text(const char *text, Str *out) {
    str_append(out, "\"");
    const unsigned char *c = (const unsigned char *)text;
    while (*c != '\0') {
        unsigned code;
        c += utf8_next(c, &code);
        if (code == '"' || code == '\\')
            str_printf(out, "\\%c", (char)code);
        else if (code >= 0x20 && code < 0x7F)
            str_printf(out, "%c", (char)code);
        else if (code == '\n')
            str_append(out, "\\n");
        else if (code > 0xFFFF)
            str_printf(out, "\\U%08X", code);
        else
            str_printf(out, "\\u%04X", code);
    }
    str_append(out, "\"");
}

static void print_name(const KeySpec *spec, int64_t index, Str *out) {
    char name[64];
    const char *found = names_at(spec->names, (int)index, name, sizeof name);
    DM_ASSERT(found != NULL);
    str_append(out, found);
}

static void print_doubles(const double *values, int count, Str *out) {
    str_append(out, "[");
    for (int i = 0; i < count; i++) {
        str_append(out, i > 0 ? ", " : "");
        print_double(values[i], out);
    }
    str_append(out, "]");
}

static void print_triples(const KeySpec *spec, const NsConfig *ns, Str *out) {
    if (ns->coefficients != NS_LIST) {
        print_name(spec, ns->coefficients, out);
        return;
    }
    str_append(out, "[");
    for (int i = 0; i < ns->list_count; i++) {
        str_append(out, i > 0 ? ", " : "");
        print_doubles(ns->list[i], 3, out);
    }
    str_append(out, "]");
}

static void print_list(const KeySpec *spec, const char *field, int count, Str *out) {
    if (count == 0 && spec->word != NULL) {
        str_append(out, spec->word);
        return;
    }
    str_append(out, "[");
    for (int i = 0; i < count; i++) {
        const char *item = field + (size_t)i * spec->width;
        str_append(out, i > 0 ? ", " : "");
        if (spec->type == KEY_TEXTS)
            print_text(item, out);
        else
            str_printf(out, "%lld", (long long)field_int(item, spec->width));
    }
    str_append(out, "]");
}

static void print_int(const KeySpec *spec, int64_t value, Str *out) {
    if (spec->word != NULL && value == spec->word_value)
        str_append(out, spec->word);
    else
        str_printf(out, "%lld", (long long)value);
}

void value_print(const KeySpec *spec, const Config *config, Str *out) {
    const void *field = key_field(spec, config);
    switch (spec->type) {
    case KEY_BOOL:
        str_append(out, *(const bool *)field ? "true" : "false");
        return;
    case KEY_INT:
        print_int(spec, field_int(field, spec->width), out);
        return;
    case KEY_DOUBLE:
        print_double(*(const double *)field, out);
        return;
    case KEY_PAIR:
        print_doubles(field, 2, out);
        return;
    case KEY_ENUM:
        print_name(spec, field_int(field, spec->width), out);
        return;
    case KEY_NAME:
        str_append(out, field);
        return;
    case KEY_MODEL:
    case KEY_TEXT:
    case KEY_TIME:
        print_text(field, out);
        return;
    case KEY_INTS:
    case KEY_TEXTS:
        print_list(spec, field, (int)field_int((const char *)config + spec->extra, sizeof(int)), out);
        return;
    case KEY_TRIPLES:
        print_triples(spec, field, out);
        return;
    }
    fatal("key %s has no type", spec->path);
}

bool value_is_initial(const KeySpec *spec, const Config *config) {
    if (spec->initial == NULL)
        return false;
    Config *fresh = HEAP_ALLOC(Config, 1);
    Str given = {0}, initial = {0};
    value_set_initial(spec, fresh);
    value_print(spec, fresh, &initial);
    value_print(spec, config, &given);
    const bool same = strcmp(given.text, initial.text) == 0;
    str_deinit(&given);
    str_deinit(&initial);
    heap_free(fresh);
    return same;
}
