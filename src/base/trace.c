#include "base/trace.h"

#include <pthread.h>
#include <stdatomic.h>

enum { RING_SPANS = 65536 };

static atomic_bool enabled;
static pthread_mutex_t ring_lock = PTHREAD_MUTEX_INITIALIZER;
static TraceSpan ring[RING_SPANS]; /* guarded by ring_lock; untouched pages cost nothing */
static int64_t ring_added;         /* guarded by ring_lock; spans since the last drain  */

void trace_enable(bool on) {
    atomic_store(&enabled, on);
}

bool trace_enabled(void) {
    return atomic_load_explicit(&enabled, memory_order_relaxed);
}

void trace_add(const char *name, int track, int unit, int64_t begin_ns, int64_t end_ns) {
    if (!trace_enabled())
        return;
    (void)pthread_mutex_lock(&ring_lock);
    ring[ring_added % RING_SPANS] =
        (TraceSpan){.begin_ns = begin_ns, .end_ns = end_ns, .name = name, .track = track, .unit = unit};
    ring_added++;
    (void)pthread_mutex_unlock(&ring_lock);
}

int trace_drain(TraceSpan *out, int capacity) {
    (void)pthread_mutex_lock(&ring_lock);
    const int64_t held = ring_added < RING_SPANS ? ring_added : RING_SPANS;
    const int64_t count = held < capacity ? held : capacity;
    /* Like the ring itself, a short buffer keeps the newest. */
    for (int64_t i = 0; i < count; i++)
        out[i] = ring[(ring_added - count + i) % RING_SPANS];
    ring_added = 0;
    (void)pthread_mutex_unlock(&ring_lock);
    return (int)count;
}
