/* The one table of configuration keys. Parsing, overrides, defaults, the printed reference, the dumps and the
 * comparison of two configurations are loops over it. Internal to config/. */
#ifndef DMUON_CONFIG_SCHEMA_H
#define DMUON_CONFIG_SCHEMA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

typedef enum KeyType {
    KEY_MODEL,   /* the path of a model file, or an inline mapping: a key and a section at once */
    KEY_BOOL,    /* bool                                                                        */
    KEY_INT,     /* int or int64_t by `width`; `word` is another spelling of one value          */
    KEY_DOUBLE,  /* double                                                                      */
    KEY_ENUM,    /* an enum or bool by `width`: the position in `names`                         */
    KEY_NAME,    /* char[width]: one of `names`                                                 */
    KEY_TEXT,    /* char[width]                                                                 */
    KEY_TIME,    /* char[width]: "H:MM:SS"; the seconds go to the double at `extra`             */
    KEY_PAIR,    /* two doubles, one after the other                                            */
    KEY_INTS,    /* [capacity] int or int64_t, their number in the int at `extra`               */
    KEY_TEXTS,   /* [capacity] char[width], likewise; `word` stands for the empty list          */
    KEY_TRIPLES, /* the coefficients of NsConfig: one of `names`, or [capacity][3] doubles       */
} KeyType;

typedef enum KeyClass {
    CLASS_FREE,     /* a resume may change it                                             */
    CLASS_IDENTITY, /* a resume may change it only when checkpoint.allow_changes names it */
    CLASS_NEVER,    /* a resume may not change it                                         */
} KeyClass;

typedef struct KeySpec {
    const char *path; /* dotted */
    KeyType type;
    KeyClass identity;
    size_t offset, width; /* of the field in Config, of one element for lists; bytes        */
    size_t extra;         /* offset of the count (lists) or of the seconds (time)           */
    int capacity;         /* lists                                                          */
    const char *initial;  /* default as YAML text; NULL: required                           */
    double min, max;      /* numbers, and each number of a list                             */
    bool min_open, max_open;
    const char *names;     /* "a|b|c"                                                        */
    const char *word;      /* "auto"                                                         */
    int64_t word_value;    /* the value that `word` stands for; outside of min..max          */
    const char *true_name; /* what the booleans mean where they are accepted beside names    */
    const char *false_name;
    const char *help;
} KeySpec;

#define SCHEMA_MAX_KEYS 128

int schema_count(void);
const KeySpec *schema_key(int index);
/* -1 when there is no such key. schema_index: of a key that exists; anything else is our bug. */
int schema_find(const char *path);
int schema_index(const char *path);
/* Whether keys below `path` exist ("optimizer.muon"). */
bool schema_is_section(const char *path);
/* The keys directly below a section, "a, b, c". */
void schema_section_keys(const char *path, Str *out);
/* The valid key or section that looks most like `path`. *misplaced: its last component is that of `path`. */
void schema_nearest(const char *path, char *buf, size_t capacity, bool *misplaced);

/* Position of `text` in "a|b|c", or -1; the name at a position, NULL beyond the last. */
int names_find(const char *names, const char *text);
const char *names_at(const char *names, int index, char *buf, size_t capacity);
/* "a, b, c". */
void names_list(const char *names, Str *out);
/* "from 1 to 64", "above 0", ... ; empty for keys without bounds. */
void schema_bounds(const KeySpec *spec, Str *out);

#endif
