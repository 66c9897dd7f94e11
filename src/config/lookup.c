/* Questions about the names in the table: sections, the nearest valid key, lists of names, bounds in words. */
#include "config/schema.h"

#include <limits.h>
#include <string.h>

/* Length of the first part of `key` that is `section` plus a dot; 0 when it lies elsewhere. */
static size_t section_prefix(const char *key, const char *section) {
    const size_t len = strlen(section);
    if (len == 0)
        return 0;
    return strncmp(key, section, len) == 0 && key[len] == '.' ? len + 1 : 0;
}

bool schema_is_section(const char *path) {
    for (int i = 0; i < schema_count(); i++) {
        if (section_prefix(schema_key(i)->path, path) > 0)
            return true;
    }
    return false;
}

void schema_section_keys(const char *path, Str *out) {
    const char *last = "";
    size_t last_len = 0;
    for (int i = 0; i < schema_count(); i++) {
        const char *key = schema_key(i)->path;
        const size_t skip = section_prefix(key, path);
        if (skip == 0 && path[0] != '\0')
            continue;
        const char *child = key + skip;
        const size_t len = strcspn(child, ".");
        if (len == last_len && strncmp(child, last, len) == 0)
            continue;
        if (last_len > 0)
            str_append(out, ", ");
        str_append_n(out, child, len);
        last = child;
        last_len = len;
    }
}

static const char *leaf_of(const char *path) {
    const char *dot = strrchr(path, '.');
    return dot != NULL ? dot + 1 : path;
}

typedef struct Nearest {
    const char *path; /* asked for */
    char *best;       /* [capacity] */
    size_t capacity;
    int distance;
    bool same_leaf;
} Nearest;

static void nearest_consider(Nearest *nearest, const char *candidate) {
    const bool same = strcmp(leaf_of(candidate), leaf_of(nearest->path)) == 0;
    if (nearest->same_leaf && !same)
        return;
    const int distance = str_distance(nearest->path, candidate);
    if (same == nearest->same_leaf && distance >= nearest->distance)
        return;
    nearest->same_leaf = same;
    nearest->distance = distance;
    str_format(nearest->best, nearest->capacity, "%s", candidate);
}

void schema_nearest(const char *path, char *buf, size_t capacity, bool *misplaced) {
    Nearest nearest = {.path = path, .best = buf, .capacity = capacity, .distance = INT_MAX};
    char section[128];
    for (int i = 0; i < schema_count(); i++) {
        const char *key = schema_key(i)->path;
        nearest_consider(&nearest, key);
        for (const char *dot = strchr(key, '.'); dot != NULL; dot = strchr(dot + 1, '.')) {
            str_format(section, sizeof section, "%.*s", (int)(dot - key), key);
            nearest_consider(&nearest, section);
        }
    }
    *misplaced = nearest.same_leaf;
}

int names_find(const char *names, const char *text) {
    const size_t len = strlen(text);
    int index = 0;
    for (const char *name = names;; index++) {
        const size_t name_len = strcspn(name, "|");
        if (name_len == len && strncmp(name, text, len) == 0)
            return index;
        if (name[name_len] == '\0')
            return -1;
        name += name_len + 1;
    }
}

const char *names_at(const char *names, int index, char *buf, size_t capacity) {
    const char *name = names;
    for (int i = 0; i < index; i++) {
        name += strcspn(name, "|");
        if (*name == '\0')
            return NULL;
        name++;
    }
    str_format(buf, capacity, "%.*s", (int)strcspn(name, "|"), name);
    return buf;
}

void names_list(const char *names, Str *out) {
    for (const char *c = names; *c != '\0'; c++) {
        if (*c == '|')
            str_append(out, ", ");
        else
            str_append_n(out, c, 1);
    }
}

void schema_bounds(const KeySpec *spec, Str *out) {
    if (spec->min == 0 && spec->max == 0)
        return;
    if (spec->min_open || spec->max_open)
        str_printf(out, "%s %.16g and %s %.16g", spec->min_open ? "above" : "at least", spec->min,
                   spec->max_open ? "below" : "at most", spec->max);
    else
        str_printf(out, "from %.16g to %.16g", spec->min, spec->max);
}
