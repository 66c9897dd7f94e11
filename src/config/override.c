/* "key.path=value" on the command line. */
#include "config/load.h"

#include <string.h>

/* Text needs no quotes on the command line: it is taken as it stands, blanks, colons and digits included. */
static bool is_bare_text(const char *path, const char *value) {
    const int index = schema_find(path);
    return index >= 0 && schema_key(index)->type == KEY_TEXT && value[0] != '"' && value[0] != '\'';
}

/* The bytes in double quotes, so that libyaml checks their encoding. */
static Node *parse_bare(const char *value, int *line, Str *why) {
    Str quoted = {0};
    str_append(&quoted, "\"");
    for (const char *c = value; *c != '\0'; c++) {
        if (*c == '"' || *c == '\\')
            str_append(&quoted, "\\");
        if (*c == '\n' || *c == '\t')
            str_append(&quoted, *c == '\n' ? "\\n" : "\\t");
        else
            str_append_n(&quoted, c, 1);
    }
    str_append(&quoted, "\"");
    Node *node = node_parse(quoted.text, quoted.len, line, why);
    str_deinit(&quoted);
    return node;
}

void override_parse(Loading *load, const char *argument, char *path, size_t capacity, Node **node) {
    const Place place = {.origin = argument};
    const char *equals = strchr(argument, '=');
    *node = NULL;
    if (equals == NULL || equals == argument) {
        load_error(load, place, "must have the form key.path=value");
        return;
    }
    if ((size_t)(equals - argument) >= capacity) {
        load_error(load, place, "the key is longer than any valid one");
        return;
    }
    str_format(path, capacity, "%.*s", (int)(equals - argument), argument);
    Str why = {0};
    int line;
    if (is_bare_text(path, equals + 1))
        *node = parse_bare(equals + 1, &line, &why);
    else
        *node = node_parse(equals + 1, strlen(equals + 1), &line, &why);
    if (*node == NULL)
        load_error(load, place, "%s", why.text);
    str_deinit(&why);
}
