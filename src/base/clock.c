#include "base/clock.h"

#include <errno.h>
#include <time.h>

enum { NS_PER_US = 1000, NS_PER_S = 1000000000 };

int64_t clock_ns(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * NS_PER_S + now.tv_nsec;
}

double clock_ms_since(int64_t start_ns) {
    return (double)(clock_ns() - start_ns) * 1e-6;
}

double clock_wall_s(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

void clock_sleep_us(int64_t us) {
    if (us <= 0)
        return;
    /* An absolute deadline, so that signals do not lengthen the sleep. */
    const int64_t deadline = clock_ns() + us * NS_PER_US;
    const struct timespec until = {.tv_sec = (time_t)(deadline / NS_PER_S), .tv_nsec = (long)(deadline % NS_PER_S)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
        continue;
}
