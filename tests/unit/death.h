/* Whether a piece of code ends the process: it runs in a child, whose exit code and last words come back. */
#ifndef DMUON_TESTS_DEATH_H
#define DMUON_TESTS_DEATH_H

#include <sys/wait.h>
#include <unistd.h>

/* Runs body(arg) in a child. Gives its exit code (0 when it returned, 128 + signal when killed); text [capacity >= 1]
 * receives what it wrote to stderr, NUL-terminated. -1 when no child could be made. */
static inline int death_run(void (*body)(void *arg), void *arg, char *text, size_t capacity) {
    int ends[2];
    if (pipe(ends) != 0)
        return -1;
    const pid_t child = fork();
    if (child == 0) {
        (void)dup2(ends[1], STDERR_FILENO);
        body(arg);
        _exit(0);
    }
    (void)close(ends[1]);
    size_t len = 0;
    ssize_t n = 1;
    while (n > 0 && len + 1 < capacity) {
        n = read(ends[0], text + len, capacity - 1 - len);
        len += n > 0 ? (size_t)n : 0;
    }
    text[len] = '\0';
    (void)close(ends[0]);
    int state = 0;
    if (child < 0 || waitpid(child, &state, 0) != child)
        return -1;
    return WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
}

#endif
