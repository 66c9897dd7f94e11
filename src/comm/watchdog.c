/* Ranks may share cores: a waiting thread must leave its core to whoever it waits for, so it sleeps. */
#include "comm/watchdog.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/fatal.h"
#include "comm/collective.h"

#define TESTS_BEFORE_SLEEP 4
#define SLEEP_MIN_US 20
#define SLEEP_MAX_US 200
#define TURN_US 250000
#define MAX_TURNS 12

static _Atomic double timeout_s = 600.0;
static _Atomic int64_t current_step = -1;
static _Thread_local const WatchLabel *current_label;

void watch_set_timeout(double seconds) {
    DM_ASSERT(seconds > 0.0);
    timeout_s = seconds;
}

void watch_set_step(int64_t step) {
    current_step = step;
}

void watch_label(const WatchLabel *label) {
    current_label = label;
}

void watch_describe(char *buf, size_t capacity) {
    const WatchLabel *label = current_label;
    const int64_t step = current_step;
    char where[48] = "", unit[24] = "";
    if (step >= 0)
        snprintf(where, sizeof where, "step %" PRId64 " ", step);
    if (label == NULL) {
        snprintf(buf, capacity, "%soutside a collective", where);
        return;
    }
    if (label->unit >= 0)
        snprintf(unit, sizeof unit, "unit %d ", label->unit);
    snprintf(buf, capacity, "%s%sstream %s: %s '%s' on axis %s, %" PRId64 " bytes", where, unit, label->stream,
             label->op, label->what, label->axis, label->nbytes);
}

/* Ranks that wait for the same peer give up at the same time: the lowest speaks first, and its abort silences the rest.
 */
static void take_turns(void) {
    int rank;
    const char *host;
    comm_identity(&rank, &host);
    clock_sleep_us(TURN_US * (int64_t)(rank < MAX_TURNS ? rank : MAX_TURNS));
}

void watch_begin(Watch *watch) {
    *watch = (Watch){.moved_ns = clock_ns()};
}

void watch_pause(Watch *watch, void (*list)(const void *arg, char *buf, size_t capacity), const void *arg) {
    if (++watch->idle <= TESTS_BEFORE_SLEEP)
        return;
    const int doublings = watch->idle - TESTS_BEFORE_SLEEP - 1;
    const int sleep_us = doublings < 4 ? SLEEP_MIN_US << doublings : SLEEP_MAX_US;
    const double limit_s = timeout_s;
    if ((double)(clock_ns() - watch->moved_ns) > limit_s * 1e9) {
        char what[512], missing[256];
        watch_describe(what, sizeof what);
        list(arg, missing, sizeof missing);
        take_turns();
        fatal("%s: no answer in %g s (waiting for rank %s of this axis; comm.timeout_s)", what, limit_s, missing);
    }
    clock_sleep_us(sleep_us);
}
