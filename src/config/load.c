/* From the file, the model's file and the overrides to one checked Config, with every error in one report. */
#include "config/load.h"

#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "base/file.h"
#include "config/value.h"

enum { PATH_BYTES = 256, FILE_LIMIT = 1 << 20 };

/* Short forms of sections: a scalar sets these keys. */
static const struct {
    const char *section;
    const char *keys[2];
} short_forms[] = {
    {"numerics", {"numerics.mode", NULL}},
    {"parallel.reshard_after_forward", {"parallel.reshard_after_forward.muon", "parallel.reshard_after_forward.adamw"}},
};

static void unknown_key(Loading *load, const char *path, Place place) {
    char nearest[PATH_BYTES];
    bool misplaced;
    schema_nearest(path, nearest, sizeof nearest, &misplaced);
    load_error(load, place, "%s key '%s'; the nearest valid key is '%s'", misplaced ? "misplaced" : "unknown", path,
               nearest);
}

static void apply_key(Loading *load, int index, const Node *node, Place place) {
    const KeySpec *spec = schema_key(index);
    Str why = {0}, value = {0};
    const Node *culprit = value_set(spec, load->config, node, &why);
    load->place[index] = place;
    if (culprit == NULL) {
        load->bad[index] = false; /* a later source replaces an earlier one */
    } else {
        load->bad[index] = true;
        if (place.line > 0 && culprit != node)
            place.line = culprit->line;
        node_print(node, &value);
        if (place_shows(place, spec->path))
            load_error(load, place, "%s", why.text);
        else
            load_error(load, place, "%s%s%s: %s", spec->path, value.len > 0 ? " = " : "",
                       value.len > 0 ? value.text : "", why.text);
    }
    str_deinit(&why);
    str_deinit(&value);
}

static void check_duplicate(Loading *load, const char *path, const Node *first, const Node *member, Place place) {
    for (const Node *earlier = first; earlier != member; earlier = earlier->next) {
        if (strcmp(earlier->key, member->key) == 0) {
            load_error(load, place, "duplicate key '%s', first given in line %d", path, earlier->key_line);
            return;
        }
    }
}

static void apply_members(Loading *load, const char *section, const Node *map, Place place) {
    char path[PATH_BYTES];
    for (const Node *member = map->first; member != NULL; member = member->next) {
        if (place.line > 0)
            place.line = member->key_line;
        (void)snprintf(path, sizeof path, "%s%s%s", section, section[0] != '\0' ? "." : "", member->key);
        check_duplicate(load, path, map->first, member, place);
        load_apply(load, path, member, place);
    }
}

/* A scalar for a section that has a short form. */
static bool apply_short_form(Loading *load, const char *path, const Node *node, Place place) {
    if (node->kind != NODE_SCALAR || node_is_empty(node))
        return false;
    for (size_t i = 0; i < sizeof short_forms / sizeof short_forms[0]; i++) {
        if (strcmp(short_forms[i].section, path) != 0)
            continue;
        for (int k = 0; k < 2 && short_forms[i].keys[k] != NULL; k++)
            apply_key(load, schema_index(short_forms[i].keys[k]), node, place);
        return true;
    }
    return false;
}

static void apply_section(Loading *load, const char *path, const Node *node, Place place) {
    if (apply_short_form(load, path, node, place) || node_is_empty(node))
        return; /* a section whose keys are all commented out is empty */
    if (node->kind == NODE_MAP) {
        apply_members(load, path, node, place);
        return;
    }
    Str keys = {0};
    schema_section_keys(path, &keys);
    load_error(load, place, "'%s' must be a mapping with keys of %s", path[0] != '\0' ? path : "the file", keys.text);
    str_deinit(&keys);
}

void load_apply(Loading *load, const char *path, const Node *node, Place place) {
    const int index = schema_find(path);
    if (strcmp(path, "mesh") == 0 || str_starts_with(path, "mesh."))
        load->mesh_given = true;
    if (index >= 0 && schema_key(index)->type == KEY_MODEL) {
        load->model = node;
        load->model_place = place;
    } else if (index >= 0) {
        apply_key(load, index, node, place);
    } else if (path[0] == '\0' || schema_is_section(path)) {
        apply_section(load, path, node, place);
    } else {
        unknown_key(load, path, place);
    }
}

/* Reads a file into a tree; NULL when that is an error, which is then recorded. */
static Node *read_tree(Loading *load, const char *path, Place place) {
    char *text = NULL;
    size_t nbytes = 0;
    if (file_read(path, FILE_LIMIT, STATUS_CONFIG, &text, &nbytes) != STATUS_OK) {
        load_error(load, place, "%.*s", status_sentence(), status_trail());
        status_trail_clear();
        return NULL;
    }
    Str why = {0};
    int line;
    Node *root = node_parse(text, nbytes, &line, &why);
    if (root == NULL)
        load_error(load, (Place){.origin = path, .line = line > 0 ? line : 1}, "%s", why.text);
    str_deinit(&why);
    heap_free(text);
    return root;
}

static void check_required(Loading *load, const char *section, const char *file) {
    for (int i = 0; i < schema_count(); i++) {
        const KeySpec *spec = schema_key(i);
        const bool inside = str_starts_with(spec->path, "model.");
        if (spec->initial != NULL || spec->type == KEY_MODEL || inside != (section[0] != '\0'))
            continue;
        if (load->place[i].origin == NULL) {
            load->bad[i] = true;
            load_error(load, (Place){0}, "missing key '%s'%s%s: %s", spec->path, file[0] != '\0' ? " in " : "", file,
                       spec->help);
        }
    }
}

/* The model's keys, from its file or from the mapping. */
static void apply_model(Loading *load, Node **tree) {
    const int index = schema_index("model");
    const Node *node = load->model;
    Place place = load->model_place;
    bool readable = node != NULL;
    if (node == NULL) {
        load_error(load, (Place){0}, "missing key 'model': %s", schema_key(index)->help);
    } else if (node->kind != NODE_MAP) {
        apply_key(load, index, node, place);
        *tree = load->bad[index] ? NULL : read_tree(load, load->config->model_path, place);
        node = *tree;
        place = (Place){.origin = load->config->model_path, .line = 1};
        readable = node != NULL;
    }
    if (readable)
        apply_section(load, "model", node, place);
    else /* nothing is known about the dimensions: the rules about them stay silent */
        for (int i = 0; i < schema_count(); i++)
            load->bad[i] = load->bad[i] || str_starts_with(schema_key(i)->path, "model.");
}

typedef struct Override {
    char path[PATH_BYTES];
    Node *node; /* owned; NULL when it was refused */
    const char *argument;
} Override;

static bool replaces_model(const Override *override) {
    return override->node != NULL && strcmp(override->path, "model") == 0 && override->node->kind == NODE_SCALAR;
}

/* File first, then the model, which an override may have replaced, then the other overrides in their order. */
static void apply_sources(Loading *load, const Node *root, Override *overrides, int count) {
    Node *model_tree = NULL;
    load_apply(load, "", root, (Place){.origin = load->file, .line = root->line > 0 ? root->line : 1});
    for (int i = 0; i < count; i++) {
        if (replaces_model(&overrides[i]))
            load_apply(load, "model", overrides[i].node, (Place){.origin = overrides[i].argument});
    }
    if (load->model == NULL) { /* perhaps the command line has it all */
        for (int i = 0; i < count; i++) {
            if (overrides[i].node != NULL && strcmp(overrides[i].path, "model") == 0)
                load_apply(load, "model", overrides[i].node, (Place){.origin = overrides[i].argument});
        }
    }
    apply_model(load, &model_tree);
    for (int i = 0; i < count; i++) {
        const Place place = {.origin = overrides[i].argument};
        if (overrides[i].node == NULL || replaces_model(&overrides[i]))
            continue;
        if (strcmp(overrides[i].path, "model") == 0)
            apply_section(load, "model", overrides[i].node, place);
        else
            load_apply(load, overrides[i].path, overrides[i].node, place);
    }
    if (load->model != NULL && (load->model->kind == NODE_MAP || model_tree != NULL))
        check_required(load, "model", load->config->model_path);
    check_required(load, "", "");
    if (!load->mesh_given)
        load_error(load, (Place){0}, "missing key 'mesh': a mapping with replicate, shard, tp; a missing axis is 1");
    node_destroy(model_tree);
}

/* Defaults that follow from other keys. */
static void derive_defaults(Loading *load) {
    Config *config = load->config;
    NsConfig *ns = &config->optimizer.muon.ns;
    if (!load_given(load, "optimizer.muon.ns.restarts")) {
        while (ns->restart_count > 0 && ns->restarts[ns->restart_count - 1] >= ns->steps)
            ns->restarts[--ns->restart_count] = 0;
    }
    if (!load_given(load, "optimizer.clip.max_norm") &&
        (config->optimizer.clip.muon_max_norm > 0 || config->optimizer.clip.adamw_max_norm > 0))
        config->optimizer.clip.max_norm = 0;
    if (config->run.dir[0] == '\0' && !load->bad[schema_index("run.dir")]) {
        const char *name = str_base_name(config->path);
        size_t len = strlen(name);
        if (str_ends_with(name, ".yaml"))
            len -= strlen(".yaml");
        else if (str_ends_with(name, ".yml"))
            len -= strlen(".yml");
        str_format(config->run.dir, sizeof config->run.dir, "runs/%.*s", (int)(len < 256 ? len : 256), name);
    }
}

static void collect_warnings(const Loading *load, Str *warnings) {
    for (int i = 0; i < schema_count(); i++) {
        const char *key = schema_key(i)->path;
        const char *reason = load->place[i].origin != NULL ? idle_reason(key, load->config) : NULL;
        if (reason == NULL)
            continue;
        place_print(load->place[i], warnings);
        str_printf(warnings, ": %s has no effect: %s\n", key, reason);
    }
}

static void load_begin(Loading *load, Config *config, const char *file) {
    memset(config, 0, sizeof *config);
    *load = (Loading){.config = config, .file = file};
    if (strlen(file) < sizeof config->path)
        str_format(config->path, sizeof config->path, "%s", file);
    else
        load_error(load, (Place){0}, "the path is longer than %zu bytes", sizeof config->path - 1);
    for (int i = 0; i < schema_count(); i++)
        value_set_initial(schema_key(i), config);
}

static Status load_end(Loading *load) {
    Status status = STATUS_OK;
    if (load->error_count > 0) {
        int shown = 1;
        for (const char *c = load->errors.text; *c != '\0'; c++)
            shown += *c == '\n';
        if (shown < load->error_count)
            str_printf(&load->errors, "\n%s: and %d more errors", load->file, load->error_count - shown);
        status = STATUS_FAIL(STATUS_CONFIG, "%s", load->errors.text);
    }
    str_deinit(&load->errors);
    return status;
}

static void check_all(Loading *load) {
    derive_defaults(load);
    validate_rules(load);
    unbuilt_check(load);
}

Status config_load(Config *config, const char *path, char *const *overrides, int override_count, Str *warnings) {
    Loading load;
    Override *given = HEAP_ALLOC(Override, override_count + 1);
    load_begin(&load, config, path);
    for (int i = 0; i < override_count; i++) {
        given[i].argument = overrides[i];
        override_parse(&load, overrides[i], given[i].path, sizeof given[i].path, &given[i].node);
    }
    Node *root = load.error_count > 0 && config->path[0] == '\0' ? NULL : read_tree(&load, path, (Place){0});
    if (root != NULL) {
        apply_sources(&load, root, given, override_count);
        check_all(&load);
        if (warnings != NULL && load.error_count == 0)
            collect_warnings(&load, warnings);
    }
    for (int i = 0; i < override_count; i++)
        node_destroy(given[i].node);
    node_destroy(root);
    heap_free(given);
    return load_end(&load);
}

Status config_load_text(Config *config, const char *yaml, size_t nbytes, const char *what) {
    Loading load;
    Str why = {0};
    int line;
    load_begin(&load, config, what);
    Node *root = node_parse(yaml, nbytes, &line, &why);
    if (root == NULL) {
        load_error(&load, (Place){.origin = what, .line = line > 0 ? line : 1}, "%s", why.text);
    } else {
        apply_sources(&load, root, NULL, 0);
        check_all(&load);
    }
    str_deinit(&why);
    node_destroy(root);
    return load_end(&load);
}
