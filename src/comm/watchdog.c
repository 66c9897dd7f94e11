/* Ranks may share cores: a waiting thread must leave its core to whoever it waits for, so it sleeps. */
#include "comm/watchdog.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/fatal.h"
#include "base/str.h"
#include "comm/rollcall.h"

#define TESTS_BEFORE_SLEEP 4
#define SLEEP_MIN_US 20
#define SLEEP_MAX_US 200
#define TURN_US 250000
#define MAX_TURNS 12
#define LONG_WAIT_S 0.1 /* from here on a wait is in the list, and answers */
#define LOOK_TESTS 256  /* fruitless tests between two closer looks: about 50 ms */
#define MAX_WAITS 8
#define GRACE_MAX_S 2.5 /* from the first question to the end of the wait */
#define END_MAX_S 2.0   /* left to end all processes: the job is over within the time-out */

static _Atomic double timeout_s = 600.0;
static _Atomic int64_t current_step = -1;
static _Thread_local const WatchLabel *current_label;

/* The long waits of this process. */
static struct {
    bool used;
    WatchPeers peers;
    char text[WATCH_TEXT];
} waits[MAX_WAITS];
static pthread_mutex_t waits_lock = PTHREAD_MUTEX_INITIALIZER;

void watch_set_timeout(double seconds) {
    DM_ASSERT(seconds > 0.0);
    timeout_s = seconds;
}

void watch_set_step(int64_t step) {
    current_step = step;
}

int64_t watch_step(void) {
    return current_step;
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

void watch_take_turns(void) {
    int rank;
    const char *host;
    comm_identity(&rank, &host);
    rollcall_take_turn(TURN_US * (int64_t)(rank < MAX_TURNS ? rank : MAX_TURNS));
}

static void post(Watch *watch, const WatchPeers *peers) {
    pthread_mutex_lock(&waits_lock);
    for (int i = 0; i < MAX_WAITS && watch->posted == 0; i++)
        if (!waits[i].used) {
            waits[i].used = true;
            waits[i].peers = *peers;
            watch_describe(waits[i].text, sizeof waits[i].text);
            watch->posted = i + 1;
        }
    pthread_mutex_unlock(&waits_lock);
}

void watch_begin(Watch *watch) {
    if (watch->posted > 0) {
        pthread_mutex_lock(&waits_lock);
        waits[watch->posted - 1].used = false;
        pthread_mutex_unlock(&waits_lock);
    }
    *watch = (Watch){.moved_ns = clock_ns()};
}

int watch_long_wait(WatchPeers *peers, char *text, size_t capacity) {
    int n = 0;
    *peers = (WatchPeers){0};
    text[0] = '\0';
    pthread_mutex_lock(&waits_lock);
    for (int i = 0; i < MAX_WAITS; i++) {
        if (!waits[i].used)
            continue;
        if (n++ == 0)
            str_format(text, capacity, "%s", waits[i].text);
        for (int k = 0; k < waits[i].peers.count && peers->count < WATCH_PEERS; k++)
            peers->in_world[peers->count++] = waits[i].peers.in_world[k];
    }
    pthread_mutex_unlock(&waits_lock);
    return n;
}

/* "1, 3" */
static void list_ranks(const WatchPeers *peers, char *buf, size_t capacity) {
    size_t used = 0;
    buf[0] = '\0';
    for (int i = 0; i < peers->count && used < capacity; i++)
        used += (size_t)snprintf(buf + used, capacity - used, "%s%d", i > 0 ? ", " : "", peers->on_axis[i]);
}

static _Noreturn void give_up(const WatchPeers *peers, double limit_s) {
    char what[512], missing[128], result[640];
    const CommPlace place = current_label != NULL ? current_label->place : (CommPlace){0};
    watch_describe(what, sizeof what);
    list_ranks(peers, missing, sizeof missing);
    rollcall_result(result, sizeof result);
    watch_take_turns();
    fatal("%s: no answer in %g s (waiting for rank %s of this axis; comm.timeout_s=%g): %s; operation %" PRIu64
          " of this stream and axis, hash %016" PRIx64,
          what, limit_s, missing, timeout_s, result, place.sequence, place.hash);
}

bool watch_pause(Watch *watch, void (*list)(const void *arg, WatchPeers *peers), const void *arg) {
    if (++watch->idle <= TESTS_BEFORE_SLEEP)
        return false;
    const int doublings = watch->idle - TESTS_BEFORE_SLEEP - 1;
    const int sleep_us = doublings < 4 ? SLEEP_MIN_US << doublings : SLEEP_MAX_US;
    const double whole_s = timeout_s, limit_s = whole_s - (whole_s / 5 < END_MAX_S ? whole_s / 5 : END_MAX_S);
    const double waited_s = (double)(clock_ns() - watch->moved_ns) * 1e-9;
    const double grace_s = limit_s / 4 < GRACE_MAX_S ? limit_s / 4 : GRACE_MAX_S;
    const bool ask = waited_s > limit_s - grace_s && !watch->asked;
    WatchPeers peers;
    if (waited_s > LONG_WAIT_S && (watch->posted == 0 || ask || waited_s > limit_s)) {
        list(arg, &peers);
        post(watch, &peers);
        if (ask)
            rollcall_ask(&peers);
        watch->asked = watch->asked || ask;
        if (waited_s > limit_s)
            give_up(&peers, limit_s);
    }
    if (waited_s > LONG_WAIT_S)
        rollcall_serve();
    clock_sleep_us(sleep_us);
    return waited_s > LONG_WAIT_S && watch->idle % LOOK_TESTS == 0;
}
