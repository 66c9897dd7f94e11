/* Spans in a ring buffer: what ran when, on which stream. Export is the business of metrics/. */
#ifndef DMUON_BASE_TRACE_H
#define DMUON_BASE_TRACE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct TraceSpan {
    int64_t begin_ns, end_ns; /* clock_ns                                       */
    const char *name;         /* borrowed, a literal or a name with run lifetime */
    int track;                /* 0 compute, 1.. the communication streams        */
    int unit;                 /* -1 when it belongs to no unit                   */
} TraceSpan;

/* Off until enabled; a disabled trace costs one load. Thread-safe. The ring keeps the last 65536 spans. */
void trace_enable(bool on);
bool trace_enabled(void);
void trace_add(const char *name, int track, int unit, int64_t begin_ns, int64_t end_ns);
/* Copies out all spans in the order they were added and empties the ring; gives the count, at most `capacity`. */
int trace_drain(TraceSpan *out, int capacity);

#endif
