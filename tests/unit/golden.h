/* A golden file that the tests of a program share. */
#ifndef DMUON_TESTS_UNIT_GOLDEN_H
#define DMUON_TESTS_UNIT_GOLDEN_H

#include "base/arena.h"
#include "base/file.h"
#include "base/json.h"

/* 0, or -1 as cmocka's set-up wants it. */
static inline int golden_open(const char *path, JsonValue **golden) {
    char *text;
    size_t nbytes;
    if (file_read(path, 0, STATUS_DATA, &text, &nbytes) != STATUS_OK)
        return -1;
    const Status status = json_parse(text, nbytes, path, STATUS_DATA, golden);
    heap_free(text);
    return status == STATUS_OK ? 0 : -1;
}

#endif
