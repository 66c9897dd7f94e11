/* Configuration files for the tests of config/: small ones in a temporary directory that is the current one, so that
 * the places in messages are "a.yaml:3". */
#ifndef DMUON_TESTS_CONFIG_FIXTURE_H
#define DMUON_TESTS_CONFIG_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "config/config.h"

#define MODEL_YAML                                                                                                     \
    "family: llama\nd_model: 64\nn_layers: 2\nn_heads: 8\nn_kv_heads: 4\nhead_dim: 8\nd_ff: 176\nvocab_size: 256\n"
/* Three lines: what is appended begins at line 4. */
#define BASE_YAML "model: m.yaml\nmesh: {}\ndata: {train: t.txt, val: v.txt}\n"

static inline void write_text(const char *name, const char *text) {
    FILE *file = fopen(name, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static inline int fixture_enter(void **state) {
    char dir[] = "/tmp/dmuon-config-XXXXXX";
    (void)state;
    if (mkdtemp(dir) == NULL || chdir(dir) != 0)
        return -1;
    write_text("m.yaml", MODEL_YAML);
    return 0;
}

static inline int fixture_leave(void **state) {
    static const char *const names[] = {"m.yaml", "a.yaml", "bad.yaml", "other.yaml", "run.v2.yml"};
    char dir[256];
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        (void)unlink(names[i]);
    return getcwd(dir, sizeof dir) == NULL || chdir("/") != 0 || rmdir(dir) != 0 ? -1 : 0;
}

/* One configuration, large, reused by every test of a program. */
static Config loaded;

static inline Status load_with(const char *yaml, int count, char *const *overrides, Str *warnings) {
    write_text("a.yaml", yaml);
    return config_load(&loaded, "a.yaml", overrides, count, warnings);
}

static inline Status load_yaml(const char *yaml) {
    return load_with(yaml, 0, NULL, NULL);
}

/* BASE_YAML with one override. */
static inline Status load_override(const char *override) {
    char text[4096];
    (void)snprintf(text, sizeof text, "%s", override);
    char *const list[] = {text};
    return load_with(BASE_YAML, 1, list, NULL);
}

static inline void assert_loads_(Status status, const char *what, int line) {
    if (status != STATUS_OK)
        print_error("line %d: %s: %s\n", line, what, status_trail());
    assert_int_equal(status, STATUS_OK);
}
#define assert_loads(call) assert_loads_((call), #call, __LINE__)

/* The report has this text in it. */
static inline void assert_reported_(const char *part, int line) {
    if (strstr(status_trail(), part) == NULL)
        print_error("line %d: not reported: %s\nthe report is:\n%s\n", line, part, status_trail());
    assert_non_null(strstr(status_trail(), part));
}
#define assert_reported(part) assert_reported_((part), __LINE__)

static inline void assert_refused_(Status status, const char *part, int line) {
    if (status != STATUS_CONFIG)
        print_error("line %d: accepted, and should be refused: %s\n", line, part);
    assert_int_equal(status, STATUS_CONFIG);
    assert_reported_(part, line);
}
#define assert_refused(call, part) assert_refused_((call), (part), __LINE__)

/* Errors in the report: its lines, without the frames. */
static inline int reported_errors(void) {
    int count = 0;
    for (const char *c = status_trail(); c != NULL && *c != '\0'; c = strchr(c, '\n')) {
        c += *c == '\n';
        count += *c != ' ';
    }
    return count;
}

#endif
