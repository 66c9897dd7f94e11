/* A temporary directory of the test program: set-up and tear-down of each test, or of all. */
#ifndef DMUON_TESTS_UNIT_SCRATCH_DIR_H
#define DMUON_TESTS_UNIT_SCRATCH_DIR_H

#include "tests/unit/scratch.h"

static char dir[SCRATCH_PATH];

static inline int make_dir(void **state) {
    (void)state;
    scratch_create(dir);
    return 0;
}

static inline int remove_dir(void **state) {
    (void)state;
    scratch_destroy(dir);
    return 0;
}

#endif
