/* The reading half of json.h (json_write.c is the other). The text is checked strictly, parsed by cJSON, and turned
 * into a tree of our own, in which members are found by bisection and elements by index. */
#include "base/json.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/fatal.h"
#include "base/json_check.h"

typedef enum JsonType { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT } JsonType;

struct JsonValue {
    JsonType type;
    int count;                /* items of a container                             */
    double number;            /* of a number; 0 or 1 for a bool                   */
    char *key;                /* owned; NULL unless a member of an object         */
    char *string;             /* owned                                            */
    JsonValue *items;         /* owned [count], in the order of the text          */
    const JsonValue **sorted; /* owned [count], members of an object by key       */
};

static int compare_keys(const void *a, const void *b) {
    return strcmp((*(const JsonValue *const *)a)->key, (*(const JsonValue *const *)b)->key);
}

static void sort_members(JsonValue *object) {
    object->sorted = HEAP_ALLOC(const JsonValue *, object->count);
    for (int i = 0; i < object->count; i++)
        object->sorted[i] = &object->items[i];
    qsort(object->sorted, (size_t)object->count, sizeof *object->sorted, compare_keys);
}

static JsonType type_of(const cJSON *source) {
    if (cJSON_IsObject(source))
        return JSON_OBJECT;
    if (cJSON_IsArray(source))
        return JSON_ARRAY;
    if (cJSON_IsString(source))
        return JSON_STRING;
    if (cJSON_IsNumber(source))
        return JSON_NUMBER;
    return cJSON_IsBool(source) ? JSON_BOOL : JSON_NULL;
}

/* Recursion is bounded by JSON_MAX_DEPTH. */
static void convert(const cJSON *source, JsonValue *value) {
    value->type = type_of(source);
    value->key = source->string != NULL ? heap_strdup(source->string) : NULL;
    if (value->type == JSON_STRING)
        value->string = heap_strdup(source->valuestring);
    if (value->type == JSON_NUMBER)
        value->number = source->valuedouble;
    if (value->type == JSON_BOOL)
        value->number = cJSON_IsTrue(source) ? 1 : 0;
    value->count = cJSON_GetArraySize(source);
    if (value->count == 0)
        return;
    value->items = HEAP_ALLOC(JsonValue, value->count);
    int i = 0;
    for (const cJSON *child = source->child; child != NULL; child = child->next)
        convert(child, &value->items[i++]);
    if (value->type == JSON_OBJECT)
        sort_members(value);
}

/* The first key that stands twice in one object, or NULL. */
static const char *find_duplicate(const JsonValue *value) {
    for (int i = 1; value->sorted != NULL && i < value->count; i++) {
        if (strcmp(value->sorted[i - 1]->key, value->sorted[i]->key) == 0)
            return value->sorted[i]->key;
    }
    for (int i = 0; i < value->count; i++) {
        const char *duplicate = find_duplicate(&value->items[i]);
        if (duplicate != NULL)
            return duplicate;
    }
    return NULL;
}

static void free_content(JsonValue *value) {
    for (int i = 0; i < value->count; i++)
        free_content(&value->items[i]);
    heap_free(value->items);
    heap_free(value->sorted);
    heap_free(value->string);
    heap_free(value->key);
}

void json_free(JsonValue *root) {
    if (root == NULL)
        return;
    free_content(root);
    heap_free(root);
}

/* `text` ends in NUL. */
static Status parse_terminated(const char *text, size_t nbytes, const char *what, Status whose, JsonValue **root) {
    TRY(json_check(text, nbytes, what, whose));
    cJSON *source = cJSON_Parse(text);
    if (source == NULL)
        return STATUS_FAIL(whose, "%s: %zu bytes of JSON: out of memory", what, nbytes); /* the text itself is sound */
    JsonValue *value = HEAP_ALLOC(JsonValue, 1);
    convert(source, value);
    cJSON_Delete(source);
    const char *duplicate = find_duplicate(value);
    if (duplicate != NULL) {
        const Status status = STATUS_FAIL(whose, "%s: the key \"%s\" stands twice in one object", what, duplicate);
        json_free(value);
        return status;
    }
    *root = value;
    return STATUS_OK;
}

Status json_parse(const char *text, size_t nbytes, const char *what, Status whose, JsonValue **root) {
    *root = NULL;
    char *copy = heap_alloc(nbytes + 1); /* the caller's text need not end in NUL */
    memcpy(copy, text, nbytes);
    const Status status = parse_terminated(copy, nbytes, what, whose, root);
    heap_free(copy);
    return status;
}

const JsonValue *json_get(const JsonValue *object, const char *key) {
    if (!json_is_object(object))
        return NULL;
    int low = 0;
    int high = object->count;
    while (low < high) {
        const int middle = low + (high - low) / 2;
        const int order = strcmp(object->sorted[middle]->key, key);
        if (order == 0)
            return object->sorted[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

int json_count(const JsonValue *container) {
    return container != NULL ? container->count : 0;
}

const JsonValue *json_at(const JsonValue *container, int index) {
    if (index < 0 || index >= json_count(container))
        return NULL;
    return &container->items[index];
}

const char *json_key(const JsonValue *member) {
    return member != NULL ? member->key : NULL;
}

const char *json_as_string(const JsonValue *value) {
    return value != NULL ? value->string : NULL;
}

bool json_as_int(const JsonValue *value, int64_t *out) {
    double number = 0;
    if (!json_as_double(value, &number) || fabs(number) > 0x1p53 || floor(number) != number)
        return false;
    *out = (int64_t)number;
    return true;
}

bool json_as_double(const JsonValue *value, double *out) {
    if (value == NULL || value->type != JSON_NUMBER)
        return false;
    *out = value->number;
    return true;
}

bool json_as_bool(const JsonValue *value, bool *out) {
    if (value == NULL || value->type != JSON_BOOL)
        return false;
    *out = value->number > 0;
    return true;
}

bool json_is_object(const JsonValue *value) {
    return value != NULL && value->type == JSON_OBJECT;
}

bool json_is_array(const JsonValue *value) {
    return value != NULL && value->type == JSON_ARRAY;
}
