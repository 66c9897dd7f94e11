/* The end of the process for a bug of ours, or for a failure where peers are already waiting inside a step. */
#ifndef DMUON_BASE_FATAL_H
#define DMUON_BASE_FATAL_H

#include "base/status.h"

/* Our bug, never input. Always on; `cond` must not have side effects. */
#define DM_ASSERT(cond) ((cond) ? (void)0 : fatal_assert(#cond, __FILE__, __LINE__))

/* Prints one line "dmuon-train: rank R (host): <text>" to stderr and calls the abort hook with exit code 6;
 * without a hook it ends the process with _exit(6). Safe from any thread. */
_Noreturn void fatal(const char *fmt, ...) DM_PRINTF(1, 2);
/* The same for a failure of the world outside that one rank meets while others wait for it: the calling thread's trail,
 * and the exit code of `status`. */
_Noreturn void fatal_status(Status status);
_Noreturn void fatal_assert(const char *cond, const char *file, int line);

/* comm/world installs MPI_Abort here. `rank` < 0 means that no rank is printed. `host` is copied. */
void fatal_set_identity(int rank, const char *host);
void fatal_set_hook(void (*hook)(int exit_code));
/* "rank 1 (node-b): ", or "" before fatal_set_identity, for lines of other rooms. Borrowed. */
const char *fatal_identity(void);

#endif
