/* What config_load carries from reading to checking: where each key was given, and every error so far. Internal to
 * config/. */
#ifndef DMUON_CONFIG_LOAD_H
#define DMUON_CONFIG_LOAD_H

#include <stdbool.h>

#include "config/config.h"
#include "config/node.h"
#include "config/schema.h"

/* Where a value was written. All zero: nowhere, it is a default. */
typedef struct Place {
    const char *origin; /* borrowed: the file, or the argument of the command line */
    int line;           /* 0: the command line                                     */
} Place;

typedef struct Loading {
    Config *config;               /* borrowed                                                             */
    const char *file;             /* borrowed: the configuration file                                     */
    Place place[SCHEMA_MAX_KEYS]; /* of each key                                                          */
    bool bad[SCHEMA_MAX_KEYS];    /* the value was refused: rules across keys do not look at it again     */
    bool mesh_given;
    const Node *model; /* borrowed: the value of `model`, wherever it was given; NULL: missing */
    Place model_place;
    Str errors; /* owned, one per line */
    int error_count;
} Loading;

/* Applies a value, or a mapping of values, to the key or section `path`. The value of `model` is only remembered. */
void load_apply(Loading *load, const char *path, const Node *node, Place place);

/* "key.path=value". The nodes that are made must outlive `load`; *node is owned by the caller and may stay NULL. */
void override_parse(Loading *load, const char *argument, char *path, size_t capacity, Node **node);

/* Errors. load_error: "PLACE: text". load_key_error: "PLACE: KEY = VALUE: text", at the place where the key was given,
 * or the `other` one when the key is a default; names no value twice. */
void load_error(Loading *load, Place place, const char *fmt, ...) DM_PRINTF(3, 4);
void load_key_error(Loading *load, const char *key, const char *other, const char *fmt, ...) DM_PRINTF(4, 5);
void place_print(Place place, Str *out);
/* Whether the place already shows the key and its value: the command line does. */
bool place_shows(Place place, const char *key);
bool load_given(const Loading *load, const char *key);
/* Whether all the keys hold values that were accepted. The list ends with NULL. */
bool load_usable(const Loading *load, const char *const *keys);

/* Rules across keys, and against the model's dimensions. */
void validate_rules(Loading *load);
/* Values whose feature is not built. */
void unbuilt_check(Loading *load);

/* Why a key has no effect in this configuration, or NULL. */
const char *idle_reason(const char *key, const Config *config);

/* The smallest complaint of a tp degree, or false when it fits: the divisors are named. */
bool tp_misfit(const Config *config, int64_t tp, Str *why);
/* "must be a multiple of ..." when batch.global is not; false when it is. Axes that are still auto count as 1. */
bool batch_misfit(const Config *config, Str *why);

#endif
