/* The effective configuration as YAML and as JSON. */
#include <string.h>

#include "base/arena.h"
#include "base/json.h"
#include "config/load.h"
#include "config/value.h"

/* Sections that `path` shares with `last`: the length of the common prefix that ends after a dot, and their number. */
static size_t common_sections(const char *path, const char *last, int *depth) {
    size_t end = 0;
    *depth = 0;
    for (size_t i = 0; path[i] != '\0' && path[i] == last[i]; i++) {
        if (path[i] == '.') {
            end = i + 1;
            (*depth)++;
        }
    }
    return end;
}

static int count_sections(const char *path) {
    int count = 0;
    for (; *path != '\0'; path++)
        count += *path == '.';
    return count;
}

static void indent(int depth, Str *out) {
    for (int i = 0; i < depth; i++)
        str_append(out, "  ");
}

static void dump_key(const KeySpec *spec, const Config *config, const char *last, Str *out) {
    int depth;
    const char *c = spec->path + common_sections(spec->path, last, &depth);
    const char *idle = idle_reason(spec->path, config);
    for (const char *dot = strchr(c, '.'); dot != NULL; c = dot + 1, dot = strchr(c, '.')) {
        indent(depth++, out);
        str_append_n(out, c, (size_t)(dot - c));
        str_append(out, ":\n");
    }
    /* A default that has no effect would only be warned about when the file is read back. */
    const bool silent = idle != NULL && value_is_initial(spec, config);
    indent(depth, out);
    str_printf(out, "%s%s: ", silent ? "# " : "", c);
    value_print(spec, config, out);
    if (silent)
        str_printf(out, "  (no effect: %s)", idle);
    str_append(out, "\n");
}

void config_dump_yaml(const Config *config, Str *out) {
    const char *last = "";
    for (int i = 0; i < schema_count(); i++) {
        if (schema_key(i)->type == KEY_MODEL)
            continue;
        dump_key(schema_key(i), config, last, out);
        last = schema_key(i)->path;
    }
}

static void write_list(const KeySpec *spec, const Config *config, JsonWriter *w) {
    const char *field = key_field(spec, config);
    const int count = (int)field_int((const char *)config + spec->extra, sizeof(int));
    for (int i = 0; i < count; i++) {
        const char *item = field + (size_t)i * spec->width;
        if (spec->type == KEY_TEXTS)
            json_string(w, NULL, item);
        else
            json_int(w, NULL, field_int(item, spec->width));
    }
}

static void write_triples(const NsConfig *ns, JsonWriter *w) {
    for (int i = 0; i < ns->list_count; i++) {
        json_begin_array(w, NULL);
        for (int k = 0; k < 3; k++)
            json_double(w, NULL, ns->list[i][k]);
        json_end_array(w);
    }
}

/* Whether the value stands as a word, though it is no text: an enum, or `auto`. */
static bool is_word(const KeySpec *spec, const Config *config) {
    const void *field = key_field(spec, config);
    if (spec->type == KEY_INT)
        return spec->word != NULL && field_int(field, spec->width) == spec->word_value;
    if (spec->type == KEY_TEXTS)
        return spec->word != NULL && field_int((const char *)config + spec->extra, sizeof(int)) == 0;
    if (spec->type == KEY_TRIPLES)
        return ((const NsConfig *)field)->coefficients != NS_LIST;
    return spec->type == KEY_ENUM;
}

static void write_array(const KeySpec *spec, const Config *config, const char *key, JsonWriter *w) {
    const double *pair = key_field(spec, config);
    json_begin_array(w, key);
    if (spec->type == KEY_TRIPLES) {
        write_triples(key_field(spec, config), w);
    } else if (spec->type == KEY_PAIR) {
        json_double(w, NULL, pair[0]);
        json_double(w, NULL, pair[1]);
    } else {
        write_list(spec, config, w);
    }
    json_end_array(w);
}

static void write_value(const KeySpec *spec, const Config *config, const char *key, JsonWriter *w) {
    const void *field = key_field(spec, config);
    if (is_word(spec, config)) {
        Str word = {0};
        value_print(spec, config, &word);
        json_string(w, key, word.text);
        str_deinit(&word);
    } else if (spec->type == KEY_BOOL) {
        json_bool(w, key, *(const bool *)field);
    } else if (spec->type == KEY_INT) {
        json_int(w, key, field_int(field, spec->width));
    } else if (spec->type == KEY_DOUBLE) {
        json_double(w, key, *(const double *)field);
    } else if (spec->type == KEY_PAIR || spec->type == KEY_INTS || spec->type == KEY_TEXTS ||
               spec->type == KEY_TRIPLES) {
        write_array(spec, config, key, w);
    } else {
        json_string(w, key, field);
    }
}

static void write_key(const KeySpec *spec, const Config *config, const char *last, JsonWriter *w) {
    int depth;
    const char *c = spec->path + common_sections(spec->path, last, &depth);
    char section[64];
    for (int open = count_sections(last); open > depth; open--)
        json_end_object(w);
    for (const char *dot = strchr(c, '.'); dot != NULL; c = dot + 1, dot = strchr(c, '.')) {
        str_format(section, sizeof section, "%.*s", (int)(dot - c), c);
        json_begin_object(w, section);
    }
    write_value(spec, config, c, w);
}

void config_dump_json(const Config *config, Str *out) {
    JsonWriter w = json_writer(out);
    const char *last = "";
    json_begin_object(&w, NULL);
    for (int i = 0; i < schema_count(); i++) {
        if (schema_key(i)->type == KEY_MODEL)
            continue;
        write_key(schema_key(i), config, last, &w);
        last = schema_key(i)->path;
    }
    for (int open = count_sections(last); open > 0; open--)
        json_end_object(&w);
    json_end_object(&w);
}
