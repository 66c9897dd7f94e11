/* Waiting with a deadline: sleeping between tests, and saying what was waited for when nobody answers. */
#ifndef DMUON_COMM_WATCHDOG_H
#define DMUON_COMM_WATCHDOG_H

#include <stddef.h>
#include <stdint.h>

/* What the calling thread is doing, for error lines. */
typedef struct WatchLabel {
    const char *what, *op, *axis, *stream; /* borrowed */
    int unit;                              /* -1: none */
    int64_t nbytes;
} WatchLabel;

typedef struct Watch {
    int64_t moved_ns; /* clock of the last progress */
    int idle;         /* fruitless tests since then */
} Watch;

void watch_set_timeout(double seconds);
void watch_set_step(int64_t step);

/* Sets the calling thread's label (borrowed until the next call); NULL: none. */
void watch_label(const WatchLabel *label);
/* "step 3 unit 1 stream gather: broadcast 'layers.0' on axis shard, 64 bytes", or what is known of it. */
void watch_describe(char *buf, size_t capacity);

void watch_begin(Watch *watch); /* at the start, and whenever something moved */
/* After a test that found nothing new: returns at once the first times, then sleeps 20 to 200 us. fatal() when nothing
 * moved for the time-out; `missing` (comm ranks, "1, 3") is made by `list` only then. */
void watch_pause(Watch *watch, void (*list)(const void *arg, char *buf, size_t capacity), const void *arg);

#endif
