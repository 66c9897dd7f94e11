/* One key's value: from a YAML node into the Config, and back to text. Internal to config/. */
#ifndef DMUON_CONFIG_VALUE_H
#define DMUON_CONFIG_VALUE_H

#include "config/config.h"
#include "config/node.h"
#include "config/schema.h"

/* Sets the key's field. NULL when that went well; otherwise the field keeps its value, the broken rule is appended to
 * `why`
 * ("must be at least 0") and the offending node is returned. */
const Node *value_set(const KeySpec *spec, Config *config, const Node *node, Str *why);
/* Sets the default. */
void value_set_initial(const KeySpec *spec, Config *config);

/* The value as YAML flow text that value_set reads back to the same bits. */
void value_print(const KeySpec *spec, const Config *config, Str *out);
/* Whether the value is the default. */
bool value_is_initial(const KeySpec *spec, const Config *config);

/* Fields by type, whatever their width. */
int64_t field_int(const void *field, size_t width);
const void *key_field(const KeySpec *spec, const Config *config);

#endif
