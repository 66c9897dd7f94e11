/* The printed reference of all keys. */
#include <string.h>

#include "config/config.h"
#include "config/schema.h"

enum { COLUMNS = 4 };

static void print_type(const KeySpec *spec, Str *out) {
    static const char *const words[] = {
        [KEY_MODEL] = "path or mapping",
        [KEY_BOOL] = "true|false",
        [KEY_INT] = "integer",
        [KEY_DOUBLE] = "number",
        [KEY_ENUM] = "",
        [KEY_NAME] = "",
        [KEY_TEXT] = "text",
        [KEY_TIME] = "H:MM:SS",
        [KEY_PAIR] = "[number, number]",
        [KEY_INTS] = "[integer, ...]",
        [KEY_TEXTS] = "[text, ...]",
        [KEY_TRIPLES] = "",
    };
    if (spec->names != NULL)
        str_append(out, spec->names);
    str_append(out, words[spec->type]);
    if (spec->type == KEY_TRIPLES)
        str_append(out, "|[[a, b, c], ...]");
    if (spec->word != NULL)
        str_printf(out, "|%s", spec->word);
    if (spec->true_name != NULL)
        str_append(out, "|true|false");
}

/* One cell; an empty one is a dash, so that the columns can be counted. */
static void print_cell(const KeySpec *spec, int column, Str *out) {
    if (column == 0)
        str_append(out, spec->path);
    else if (column == 1)
        print_type(spec, out);
    else if (column == 2)
        str_append(out, spec->initial != NULL ? spec->initial : "required");
    else
        schema_bounds(spec, out);
    if (out->len == 0)
        str_append(out, "-");
}

static void measure(size_t widths[COLUMNS]) {
    Str cell = {0};
    for (int i = 0; i < schema_count(); i++) {
        for (int column = 0; column < COLUMNS; column++) {
            str_clear(&cell);
            print_cell(schema_key(i), column, &cell);
            widths[column] = cell.len > widths[column] ? cell.len : widths[column];
        }
    }
    str_deinit(&cell);
}

/* Keys of one top section stand together. */
static bool begins_group(int index) {
    if (index == 0)
        return false;
    const char *path = schema_key(index)->path, *last = schema_key(index - 1)->path;
    const size_t len = strcspn(path, ".");
    if (path[len] == '\0' && last[strcspn(last, ".")] == '\0')
        return false;
    return strcspn(last, ".") != len || strncmp(path, last, len) != 0;
}

void config_help(Str *out) {
    size_t widths[COLUMNS] = {0};
    Str cell = {0};
    measure(widths);
    str_append(out,
               "Keys of the configuration file, nested as the dots say; key.path=value on the command line wins over "
               "the file.\nkey, type or values, default, bounds, meaning\n\n");
    for (int i = 0; i < schema_count(); i++) {
        str_append(out, begins_group(i) ? "\n" : "");
        for (int column = 0; column < COLUMNS; column++) {
            str_clear(&cell);
            print_cell(schema_key(i), column, &cell);
            str_printf(out, "%-*s  ", (int)widths[column], cell.text);
        }
        str_printf(out, "%s\n", schema_key(i)->help);
    }
    str_append(out, "\nmesh is required, a missing axis of it is 1.\n");
    str_deinit(&cell);
}
