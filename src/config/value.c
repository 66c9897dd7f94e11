#include "config/value.h"

#include <string.h>

#include "base/fatal.h"

static void *field_of(const KeySpec *spec, Config *config) {
    return (char *)config + spec->offset;
}

const void *key_field(const KeySpec *spec, const Config *config) {
    return (const char *)config + spec->offset;
}

int64_t field_int(const void *field, size_t width) {
    if (width == sizeof(int64_t)) {
        int64_t value;
        memcpy(&value, field, sizeof value);
        return value;
    }
    if (width == sizeof(int32_t)) {
        int32_t value;
        memcpy(&value, field, sizeof value);
        return value;
    }
    DM_ASSERT(width == sizeof(bool));
    return *(const bool *)field;
}

static void field_set_int(void *field, size_t width, int64_t value) {
    const int32_t narrow = (int32_t)value;
    if (width == sizeof(int64_t))
        memcpy(field, &value, sizeof value);
    else if (width == sizeof(int32_t))
        memcpy(field, &narrow, sizeof narrow);
    else
        *(bool *)field = value != 0;
}

/* The node as the culprit, with the type that was expected in its place. */
static const Node *wrong_type(const Node *node, const char *expected, Str *why) {
    str_printf(why, "must be %s", expected);
    if (node->kind != NODE_SCALAR)
        str_printf(why, ", not a %s", node->kind == NODE_LIST ? "list" : "mapping");
    else if (node_is_empty(node))
        str_append(why, ", and nothing stands there");
    else if (!node->plain)
        str_append(why, ", not text in quotes");
    return node;
}

static bool plain_is(const Node *node, const char *lower, const char *title, const char *upper) {
    return node->kind == NODE_SCALAR && node->plain &&
           (strcmp(node->text, lower) == 0 || strcmp(node->text, title) == 0 || strcmp(node->text, upper) == 0);
}

static bool node_bool(const Node *node, bool *value) {
    *value = plain_is(node, "true", "True", "TRUE");
    return *value || plain_is(node, "false", "False", "FALSE");
}

static bool in_bounds(const KeySpec *spec, double value, Str *why) {
    if (value < spec->min || (spec->min_open && value <= spec->min))
        str_printf(why, "must be %s %.16g", spec->min_open ? "above" : "at least", spec->min);
    else if (value > spec->max || (spec->max_open && value >= spec->max))
        str_printf(why, "must be %s %.16g", spec->max_open ? "below" : "at most", spec->max);
    else
        return true;
    return false;
}

static const Node *read_int(const KeySpec *spec, const Node *node, int64_t *value, Str *why) {
    if (spec->word != NULL && node->kind == NODE_SCALAR && strcmp(node->text, spec->word) == 0) {
        *value = spec->word_value;
        return NULL;
    }
    if (node->kind != NODE_SCALAR || !node->plain || !str_parse_int(node->text, value)) {
        (void)wrong_type(node, "an integer", why);
        if (spec->word != NULL)
            str_printf(why, " or %s", spec->word);
        return node;
    }
    return in_bounds(spec, (double)*value, why) ? NULL : node;
}

static const Node *read_double(const KeySpec *spec, const Node *node, double *value, Str *why) {
    if (node->kind != NODE_SCALAR || !node->plain || !str_parse_double(node->text, value))
        return wrong_type(node, "a number", why);
    if (*value == 0)
        *value = 0; /* no negative zero: it would be a second spelling of the same setting */
    return in_bounds(spec, *value, why) ? NULL : node;
}

/* Text: in quotes, or plain and nothing else in YAML. */
static const Node *check_text(const KeySpec *spec, const Node *node, Str *why) {
    bool truth;
    int64_t integer;
    double real;
    if (node->kind != NODE_SCALAR)
        return wrong_type(node, "text", why);
    if (node_is_empty(node)) {
        str_append(why, "must be text, and nothing stands there; write \"\" for none");
        return node;
    }
    if (node->plain && (node_bool(node, &truth) || str_parse_int(node->text, &integer) ||
                        str_parse_double(node->text, &real) || plain_is(node, "null", "Null", "NULL"))) {
        str_printf(why, "must be text; put it in quotes, \"%s\"", node->text);
        return node;
    }
    if (strlen(node->text) >= spec->width) {
        str_printf(why, "must be at most %zu bytes long, and has %zu", spec->width - 1, strlen(node->text));
        return node;
    }
    return NULL;
}

static void set_text(char *field, size_t width, const char *text) {
    memset(field, 0, width); /* equal settings are equal bytes */
    str_format(field, width, "%s", text);
}

static const Node *not_a_name(const KeySpec *spec, const Node *node, Str *why) {
    str_append(why, "must be one of ");
    names_list(spec->names, why);
    if (spec->type == KEY_TRIPLES)
        str_append(why, ", or a list of triples [a, b, c]");
    return node;
}

/* The position among the names, also for the booleans where they have a meaning. */
static const Node *read_name(const KeySpec *spec, const Node *node, int *index, Str *why) {
    bool truth;
    const char *text = node->text;
    if (spec->true_name != NULL && node_bool(node, &truth))
        text = truth ? spec->true_name : spec->false_name;
    *index = node->kind == NODE_SCALAR ? names_find(spec->names, text) : -1;
    return *index >= 0 ? NULL : not_a_name(spec, node, why);
}

static const Node *set_texts(const KeySpec *spec, Config *config, const Node *node, Str *why) {
    const bool alone = node->kind == NODE_SCALAR;
    const bool word = alone && spec->word != NULL && strcmp(node->text, spec->word) == 0;
    const Node *first = alone ? node : node->first;
    if (node->kind == NODE_MAP)
        return wrong_type(node, "text or a list of texts", why);
    int count = 0;
    for (const Node *item = first; item != NULL && !word; item = alone ? NULL : item->next) {
        const Node *culprit = check_text(spec, item, why);
        if (culprit != NULL)
            return culprit;
        count++;
    }
    if (count > spec->capacity || (spec->word != NULL && !word && count == 0)) {
        str_printf(why, "must have from %d to %d items", spec->word != NULL ? 1 : 0, spec->capacity);
        return node;
    }
    char *field = field_of(spec, config);
    memset(field, 0, spec->width * (size_t)spec->capacity);
    const Node *item = first;
    for (int i = 0; i < count; i++, item = item->next)
        set_text(field + (size_t)i * spec->width, spec->width, item->text);
    field_set_int((char *)config + spec->extra, sizeof(int), count);
    return NULL;
}

static const Node *set_ints(const KeySpec *spec, Config *config, const Node *node, Str *why) {
    int64_t values[CONFIG_LIST_MAX] = {0};
    if (node->kind != NODE_LIST)
        return wrong_type(node, "a list of integers", why);
    const int count = node_count(node);
    if (count > spec->capacity) {
        str_printf(why, "must have at most %d items, and has %d", spec->capacity, count);
        return node;
    }
    int at = 0;
    for (const Node *item = node->first; item != NULL; item = item->next) {
        const Node *culprit = read_int(spec, item, &values[at++], why);
        if (culprit != NULL)
            return culprit;
    }
    for (int i = 0; i < spec->capacity; i++)
        field_set_int((char *)field_of(spec, config) + (size_t)i * spec->width, spec->width, values[i]);
    field_set_int((char *)config + spec->extra, sizeof(int), count);
    return NULL;
}

/* Exactly `count` numbers. */
static const Node *read_doubles(const KeySpec *spec, const Node *node, int count, double *values, Str *why) {
    if (node->kind != NODE_LIST || node_count(node) != count) {
        str_printf(why, "must be a list of %d numbers", count);
        return node;
    }
    int at = 0;
    for (const Node *item = node->first; item != NULL; item = item->next) {
        const Node *culprit = read_double(spec, item, &values[at++], why);
        if (culprit != NULL)
            return culprit;
    }
    return NULL;
}

static const Node *set_triples(const KeySpec *spec, Config *config, const Node *node, Str *why) {
    NsConfig *ns = field_of(spec, config);
    NsConfig given = {.coefficients = NS_LIST};
    int index = -1;
    if (node->kind == NODE_SCALAR) {
        const Node *culprit = read_name(spec, node, &index, why);
        if (culprit != NULL)
            return culprit;
        given.coefficients = (NsCoefficients)index;
    } else if (node->kind == NODE_MAP || node->first == NULL || node_count(node) > spec->capacity) {
        (void)not_a_name(spec, node, why);
        str_printf(why, ", from 1 to %d of them", spec->capacity);
        return node;
    }
    for (const Node *item = node->first; item != NULL; item = item->next) {
        const Node *culprit = read_doubles(spec, item, 3, given.list[given.list_count++], why);
        if (culprit != NULL)
            return culprit;
    }
    ns->coefficients = given.coefficients;
    memcpy(ns->list, given.list, sizeof ns->list);
    ns->list_count = given.list_count;
    return NULL;
}

/* "H:MM:SS" in seconds, or -1. */
static double time_seconds(const char *text) {
    int part = 0, digits = 0;
    double seconds = 0, value = 0;
    for (const char *c = text;; c++) {
        if (*c >= '0' && *c <= '9') {
            value = 10 * value + (*c - '0');
            digits++;
            continue;
        }
        const bool full = part == 0 ? digits >= 1 && digits <= 6 : digits == 2 && value < 60;
        if (!full || (*c != ':' && *c != '\0') || (*c == ':') != (part < 2))
            return -1;
        seconds = 60 * seconds + value;
        if (*c == '\0')
            return seconds;
        part++;
        digits = 0;
        value = 0;
    }
}

static const Node *set_time(const KeySpec *spec, Config *config, const Node *node, Str *why) {
    if (node->kind != NODE_SCALAR || node_is_empty(node))
        return check_text(spec, node, why);
    const double seconds = node->text[0] == '\0' ? 0 : time_seconds(node->text);
    if (seconds < 0 || (seconds == 0 && node->text[0] != '\0') || strlen(node->text) >= spec->width) {
        str_append(why, "must be a time \"H:MM:SS\" above 0, for example \"3:55:00\", or \"\" for no limit");
        return node;
    }
    set_text(field_of(spec, config), spec->width, node->text);
    memcpy((char *)config + spec->extra, &seconds, sizeof seconds);
    return NULL;
}

static const Node *set_number(const KeySpec *spec, Config *config, const Node *node, Str *why) {
    int64_t integer = 0;
    double values[2] = {0};
    const Node *culprit = NULL;
    if (spec->type == KEY_INT)
        culprit = read_int(spec, node, &integer, why);
    else if (spec->type == KEY_DOUBLE)
        culprit = read_double(spec, node, &values[0], why);
    else
        culprit = read_doubles(spec, node, 2, values, why);
    if (culprit != NULL)
        return culprit;
    if (spec->type == KEY_INT)
        field_set_int(field_of(spec, config), spec->width, integer);
    else
        memcpy(field_of(spec, config), values, spec->type == KEY_PAIR ? sizeof values : sizeof values[0]);
    return NULL;
}

static const Node *set_choice(const KeySpec *spec, Config *config, const Node *node, Str *why) {
    bool truth = false;
    int index = 0;
    if (spec->type == KEY_BOOL) {
        if (!node_bool(node, &truth))
            return wrong_type(node, "true or false", why);
        field_set_int(field_of(spec, config), spec->width, truth);
        return NULL;
    }
    const Node *culprit = read_name(spec, node, &index, why);
    if (culprit != NULL)
        return culprit;
    if (spec->type == KEY_NAME)
        set_text(field_of(spec, config), spec->width, node->text);
    else
        field_set_int(field_of(spec, config), spec->width, index);
    return NULL;
}

const Node *value_set(const KeySpec *spec, Config *config, const Node *node, Str *why) {
    const Node *culprit = NULL;
    switch (spec->type) {
    case KEY_BOOL:
    case KEY_ENUM:
    case KEY_NAME:
        return set_choice(spec, config, node, why);
    case KEY_INT:
    case KEY_DOUBLE:
    case KEY_PAIR:
        return set_number(spec, config, node, why);
    case KEY_INTS:
        return set_ints(spec, config, node, why);
    case KEY_TEXTS:
        return set_texts(spec, config, node, why);
    case KEY_TRIPLES:
        return set_triples(spec, config, node, why);
    case KEY_TIME:
        return set_time(spec, config, node, why);
    case KEY_MODEL:
        if (node->kind != NODE_SCALAR || node->text[0] == '\0')
            return wrong_type(node, "the path of a model file, or a mapping", why);
        /* fall through */
    case KEY_TEXT:
        culprit = check_text(spec, node, why);
        if (culprit == NULL)
            set_text(field_of(spec, config), spec->width, node->text);
        return culprit;
    }
    fatal("key %s has no type", spec->path);
}

void value_set_initial(const KeySpec *spec, Config *config) {
    if (spec->initial == NULL)
        return;
    Str why = {0};
    int line;
    Node *node = node_parse(spec->initial, strlen(spec->initial), &line, &why);
    DM_ASSERT(node != NULL);
    const Node *culprit = value_set(spec, config, node, &why);
    DM_ASSERT(culprit == NULL);
    node_destroy(node);
    str_deinit(&why);
}
