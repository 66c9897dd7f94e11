/* Threads of the device: creation, niceness, timer slack. */
#include "device/thread.h"

#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

Status thread_start(pthread_t *thread, const char *name, void *(*body)(void *), void *arg) {
    static const int own_fault[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP};
    sigset_t blocked, before;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof own_fault / sizeof own_fault[0]; i++)
        sigdelset(&blocked, own_fault[i]);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    const int failed = pthread_create(thread, NULL, body, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed)
        return STATUS_FAIL(STATUS_DEVICE,
                           "cannot start thread %s: %s (raise `ulimit -u` or lower the number of threads)", name,
                           strerror(failed));
    pthread_setname_np(*thread, name);
    return STATUS_OK;
}

void thread_add_nice(int add) {
    const id_t self = (id_t)gettid();
    (void)setpriority(PRIO_PROCESS, self, getpriority(PRIO_PROCESS, self) + add);
}

void thread_sharpen_sleep(void) {
    (void)prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
}
