/* A temporary directory for one test, and small files in it. */
#ifndef DMUON_TESTS_UNIT_SCRATCH_H
#define DMUON_TESTS_UNIT_SCRATCH_H

#include <ftw.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SCRATCH_PATH 1024

static inline void scratch_create(char dir[SCRATCH_PATH]) {
    const char *base = getenv("TMPDIR");
    (void)snprintf(dir, SCRATCH_PATH, "%s/dmuon-test-XXXXXX", base != NULL ? base : "/tmp");
    if (mkdtemp(dir) == NULL)
        abort();
}

static inline int scratch_remove_one(const char *path, const struct stat *info, int type, struct FTW *ftw) {
    (void)info, (void)type, (void)ftw;
    return remove(path);
}

static inline void scratch_destroy(const char *dir) {
    (void)nftw(dir, scratch_remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* "dir/name" in one of four buffers used in turn. */
static inline const char *scratch_path(const char *dir, const char *name) {
    static char path[4][SCRATCH_PATH * 2];
    static int turn;
    turn = (turn + 1) % 4;
    (void)snprintf(path[turn], sizeof path[turn], "%s/%s", dir, name);
    return path[turn];
}

static inline void scratch_write_bytes(const char *path, const void *data, size_t nbytes) {
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(data, 1, nbytes, file) != nbytes || fclose(file) != 0)
        abort();
}

static inline void scratch_write(const char *path, const char *text) {
    scratch_write_bytes(path, text, strlen(text));
}

/* The whole file as text in a static buffer of 1 MiB, or "" when it cannot be read. */
static inline const char *scratch_read(const char *path) {
    static char text[1 << 20];
    FILE *file = fopen(path, "rb");
    const size_t nbytes = file != NULL ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file != NULL)
        (void)fclose(file);
    text[nbytes] = '\0';
    return text;
}

#endif
