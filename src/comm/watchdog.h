/* Waiting with a deadline: sleeping between tests, and saying what was waited for, and for whom, when nobody answers.
 */
#ifndef DMUON_COMM_WATCHDOG_H
#define DMUON_COMM_WATCHDOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/collective.h"

#define WATCH_PEERS 8
#define WATCH_TEXT 320

/* What the calling thread is doing, for error lines. */
typedef struct WatchLabel {
    const char *what, *op, *axis, *stream; /* borrowed */
    int unit;                              /* -1: none */
    int64_t nbytes;
    CommPlace place;
} WatchLabel;

/* Whom a wait is for: the first few. */
typedef struct WatchPeers {
    int count;
    int on_axis[WATCH_PEERS], in_world[WATCH_PEERS]; /* ranks */
} WatchPeers;

typedef struct Watch {
    int64_t moved_ns; /* clock of the last progress */
    int idle;         /* fruitless tests since then */
    int posted;       /* slot in the list of long waits, counted from 1; 0: none */
    bool asked;
} Watch;

void watch_set_timeout(double seconds);
void watch_set_step(int64_t step);
int64_t watch_step(void); /* -1: none */

/* Sets the calling thread's label (borrowed until the next call); NULL: none. */
void watch_label(const WatchLabel *label);
/* "step 3 unit 1 stream gather: broadcast 'layers.0' on axis shard, 64 bytes", or what is known of it. */
void watch_describe(char *buf, size_t capacity);
/* Before a line that several ranks are about to say at the same time: the lowest speaks first, and its abort silences
 * the rest. */
void watch_take_turns(void);

void watch_begin(Watch *watch); /* at the start, and whenever something moved */
/* After a test that found nothing new: returns at once the first times, then sleeps 20 to 200 us. Gives true now and
 * then, when it is time for a closer look at what is wrong. fatal() when nothing moved for the time-out; the peers are
 * made by `list` only when a wait is long. */
bool watch_pause(Watch *watch, void (*list)(const void *arg, WatchPeers *peers), const void *arg);

/* One of this rank's long waits, for those who ask: whom it is for (ranks of the world), and what it is in words. Gives
 * the number of waits. */
int watch_long_wait(WatchPeers *peers, char *text, size_t capacity);

#endif
