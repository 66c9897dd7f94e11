/* A YAML document as a tree with line numbers. Internal to config/; libyaml is met in parse.c only. */
#ifndef DMUON_CONFIG_NODE_H
#define DMUON_CONFIG_NODE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/str.h"

typedef enum NodeKind { NODE_SCALAR, NODE_LIST, NODE_MAP } NodeKind;

typedef struct Node {
    NodeKind kind;
    bool plain;         /* a scalar without quotes: it may be a number, a boolean or nothing at all */
    int line;           /* where the value begins, from 1            */
    int key_line;       /* where the key stands; members of a map    */
    char *key;          /* owned; members of a map, NULL otherwise   */
    char *text;         /* owned; scalars                            */
    struct Node *first; /* owned; items of a list or members of a map */
    struct Node *next;  /* owned by the container                    */
} Node;

/* One document. On failure NULL, the reason is appended to `why` and *line says where. An empty document is an empty
 * plain scalar. Anchors, aliases, tags and several documents are refused. */
Node *node_parse(const char *text, size_t nbytes, int *line, Str *why);
/* A scalar as if it had been written in quotes. */
Node *node_text(const char *text);
void node_destroy(Node *node);

/* Nothing written after the colon. */
bool node_is_empty(const Node *node);
int node_count(const Node *node);
/* The value for a message, cut when it is long. */
void node_print(const Node *node, Str *out);

#endif
