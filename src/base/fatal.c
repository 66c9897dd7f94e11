#include "base/fatal.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { FATAL_EXIT_CODE = 6, LINE_BYTES = 16384, HOOK_TIMEOUT_S = 10 };

/* Set once at start-up, before there are threads. */
static char identity[320];
static void (*abort_hook)(int exit_code);

static atomic_flag someone_is_ending = ATOMIC_FLAG_INIT;
static _Thread_local bool this_thread_is_ending;

void fatal_set_identity(int rank, const char *host) {
    identity[0] = '\0';
    if (rank >= 0)
        (void)snprintf(identity, sizeof identity, "rank %d (%s): ", rank, host);
}

void fatal_set_hook(void (*hook)(int exit_code)) {
    abort_hook = hook;
}

const char *fatal_identity(void) {
    return identity;
}

/* Only the first caller speaks and aborts. A failure inside the hook itself ends the process at once; other threads
 * wait for the hook, but not for ever. */
static void claim_the_end(void) {
    if (this_thread_is_ending)
        _exit(FATAL_EXIT_CODE);
    this_thread_is_ending = true;
    if (!atomic_flag_test_and_set(&someone_is_ending))
        return;
    (void)sleep(HOOK_TIMEOUT_S);
    _exit(FATAL_EXIT_CODE);
}

/* One write, so that lines of several ranks do not mix. */
static void print_line(char *line, size_t capacity) {
    size_t len = strlen(line);
    if (len == capacity - 1)
        len--;
    line[len++] = '\n';
    size_t done = 0;
    while (done < len) {
        const ssize_t n = write(STDERR_FILENO, line + done, len - done);
        if (n <= 0)
            return;
        done += (size_t)n;
    }
}

static _Noreturn void end_process(int exit_code) {
    if (abort_hook != NULL)
        abort_hook(exit_code);
    _exit(exit_code);
}

void fatal(const char *fmt, ...) {
    claim_the_end();
    char line[LINE_BYTES];
    (void)snprintf(line, sizeof line, "dmuon-train: %s", identity);
    const size_t used = strlen(line);
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(line + used, sizeof line - used, fmt, args);
    va_end(args);
    print_line(line, sizeof line);
    end_process(FATAL_EXIT_CODE);
}

void fatal_status(Status status) {
    claim_the_end();
    char line[LINE_BYTES];
    (void)snprintf(line, sizeof line, "dmuon-train: %s%s", identity, status_trail());
    print_line(line, sizeof line);
    end_process(status_exit_code(status));
}

void fatal_assert(const char *cond, const char *file, int line) {
    fatal("internal error: %s does not hold at %s:%d", cond, file, line);
}
