/* What the self-tests' programs share: the planted bug that the command line names, and checked calls. */
#ifndef CUDA_STANDIN_SELFTEST_CHECK_H
#define CUDA_STANDIN_SELFTEST_CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ERROR_EXIT 3 /* a call failed and was noticed */
#define WRONG_EXIT 1 /* the result is wrong */

/* argv[1], or "" */
extern const char *planted;

static inline int bug(const char *name) {
    return strcmp(planted, name) == 0;
}

/* Ends the program with one line; all API results are 0 when all is well. */
#define OK(call) check_result((int)(call), #call, __FILE__, __LINE__)
static inline void check_result(int result, const char *call, const char *file, int line) {
    if (result == 0)
        return;
    fprintf(stderr, "%s:%d: %s: error %d\n", file, line, call, result);
    exit(ERROR_EXIT);
}

#endif
