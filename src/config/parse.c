/* YAML text to a tree of nodes: the one place that meets libyaml. */
#include "config/node.h"

#include <string.h>

#include <yaml.h>

#include "base/arena.h"

enum { DEPTH_MAX = 16, PRINT_MAX = 100 };

typedef struct Builder {
    yaml_parser_t parser;
    yaml_event_t event; /* the current one; deleted by the next */
    int *line;
    Str *why;
} Builder;

static int mark_line(yaml_mark_t mark) {
    return (int)mark.line + 1;
}

/* Steps to the next event. false: the text is no YAML. */
static bool advance(Builder *b) {
    yaml_event_delete(&b->event);
    if (yaml_parser_parse(&b->parser, &b->event))
        return true;
    memset(&b->event, 0, sizeof b->event);
    *b->line = mark_line(b->parser.error == YAML_READER_ERROR ? b->parser.mark : b->parser.problem_mark);
    str_printf(b->why, "is not valid YAML: %s", b->parser.problem != NULL ? b->parser.problem : "unknown problem");
    return false;
}

static Node *refuse(Builder *b, const char *why) {
    *b->line = mark_line(b->event.start_mark);
    str_append(b->why, why);
    return NULL;
}

static Node *node_create(NodeKind kind, int line) {
    Node *node = HEAP_ALLOC(Node, 1);
    node->kind = kind;
    node->line = line;
    return node;
}

/* Whether the event carries what a configuration has no use for. */
static bool has_tag_or_anchor(const yaml_event_t *event) {
    switch (event->type) {
    case YAML_SCALAR_EVENT:
        return event->data.scalar.tag != NULL || event->data.scalar.anchor != NULL;
    case YAML_SEQUENCE_START_EVENT:
        return event->data.sequence_start.tag != NULL || event->data.sequence_start.anchor != NULL;
    case YAML_MAPPING_START_EVENT:
        return event->data.mapping_start.tag != NULL || event->data.mapping_start.anchor != NULL;
    default:
        return event->type == YAML_ALIAS_EVENT;
    }
}

static Node *build_scalar(Builder *b) {
    const char *text = (const char *)b->event.data.scalar.value;
    if (strlen(text) != b->event.data.scalar.length)
        return refuse(b, "has a NUL character inside a value");
    Node *node = node_create(NODE_SCALAR, mark_line(b->event.start_mark));
    node->text = heap_strdup(text);
    node->plain = b->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    return node;
}

static Node *build(Builder *b, int depth);

/* Items of the container whose start event is current, up to its end event. */
static Node *build_items(Builder *b, Node *node, int depth) {
    const yaml_event_type_t end = node->kind == NODE_LIST ? YAML_SEQUENCE_END_EVENT : YAML_MAPPING_END_EVENT;
    Node **link = &node->first;
    while (advance(b)) {
        if (b->event.type == end)
            return node;
        Node *key = NULL;
        if (node->kind == NODE_MAP) {
            key = build(b, depth + 1);
            if (key != NULL && key->kind != NODE_SCALAR)
                (void)refuse(b, "has a key that is not a word");
            if (key == NULL || key->kind != NODE_SCALAR || !advance(b)) {
                node_destroy(key);
                break;
            }
        }
        Node *item = build(b, depth + 1);
        if (item != NULL && key != NULL) {
            item->key = heap_strdup(key->text);
            item->key_line = key->line;
        }
        node_destroy(key);
        if (item == NULL)
            break;
        *link = item;
        link = &item->next;
    }
    node_destroy(node);
    return NULL;
}

/* The node that begins with the current event. */
static Node *build(Builder *b, int depth) {
    if (has_tag_or_anchor(&b->event))
        return refuse(b, "uses a YAML anchor, alias or tag, which a configuration cannot have; put text that begins "
                         "with & * or ! in quotes");
    if (depth > DEPTH_MAX)
        return refuse(b, "is nested too deeply");
    const int line = mark_line(b->event.start_mark);
    if (b->event.type == YAML_SCALAR_EVENT)
        return build_scalar(b);
    if (b->event.type == YAML_SEQUENCE_START_EVENT)
        return build_items(b, node_create(NODE_LIST, line), depth);
    return build_items(b, node_create(NODE_MAP, line), depth);
}

static Node *build_document(Builder *b) {
    if (!advance(b) || !advance(b)) /* the start of the stream, the start of the document */
        return NULL;
    if (b->event.type == YAML_STREAM_END_EVENT) {
        Node *empty = node_text("");
        empty->plain = true;
        empty->line = 1;
        return empty;
    }
    Node *root = advance(b) ? build(b, 0) : NULL;
    if (root == NULL)
        return NULL;
    bool good = advance(b) && advance(b); /* the end of the document, the end of the stream */
    if (good && b->event.type != YAML_STREAM_END_EVENT) {
        (void)refuse(b, "holds more than one YAML document");
        good = false;
    }
    if (!good) {
        node_destroy(root);
        return NULL;
    }
    return root;
}

static int count_lines(const char *text, size_t nbytes) {
    int count = 1;
    for (size_t i = 0; i + 1 < nbytes; i++)
        count += text[i] == '\n';
    return count;
}

Node *node_parse(const char *text, size_t nbytes, int *line, Str *why) {
    Builder b = {.line = line, .why = why};
    *line = 0;
    if (!yaml_parser_initialize(&b.parser)) {
        str_append(why, "cannot be parsed: out of memory");
        return NULL;
    }
    yaml_parser_set_input_string(&b.parser, (const unsigned char *)text, nbytes);
    Node *root = build_document(&b);
    if (root == NULL && *line > count_lines(text, nbytes))
        *line = count_lines(text, nbytes); /* libyaml misses a bracket on the line after the last */
    yaml_event_delete(&b.event);
    yaml_parser_delete(&b.parser);
    return root;
}

Node *node_text(const char *text) {
    Node *node = node_create(NODE_SCALAR, 0);
    node->text = heap_strdup(text);
    return node;
}

void node_destroy(Node *node) {
    while (node != NULL) {
        Node *next = node->next;
        node_destroy(node->first);
        heap_free(node->key);
        heap_free(node->text);
        heap_free(node);
        node = next;
    }
}

bool node_is_empty(const Node *node) {
    return node->kind == NODE_SCALAR && node->plain && node->text[0] == '\0';
}

int node_count(const Node *node) {
    int count = 0;
    for (const Node *item = node->first; item != NULL; item = item->next)
        count++;
    return count;
}

static void print_part(const Node *node, Str *out) {
    if (node->kind == NODE_SCALAR) {
        str_printf(out, node->plain ? "%s" : "\"%s\"", node->text);
        return;
    }
    str_append(out, node->kind == NODE_LIST ? "[" : "{");
    for (const Node *item = node->first; item != NULL; item = item->next) {
        if (item->key != NULL)
            str_printf(out, "%s: ", item->key);
        print_part(item, out);
        str_append(out, item->next != NULL ? ", " : "");
    }
    str_append(out, node->kind == NODE_LIST ? "]" : "}");
}

void node_print(const Node *node, Str *out) {
    Str whole = {0};
    print_part(node, &whole);
    if (whole.len > PRINT_MAX) {
        str_append_n(out, whole.text, PRINT_MAX);
        str_append(out, "...");
    } else if (whole.len > 0) {
        str_append(out, whole.text);
    }
    str_deinit(&whole);
}
