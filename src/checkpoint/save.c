/* The saver: one copy of the state, one thread, one save in flight. */
#include "checkpoint/save.h"

#include <pthread.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/fatal.h"
#include "base/str.h"
#include "checkpoint/set.h"
#include "checkpoint/snapshot.h"
#include "checkpoint/writer.h"

struct Saver {
    SaverOptions options;
    Comm *comm; /* owned: the writing threads meet here and nowhere else */
    SetTensors set;
    Snapshot snapshot;
    bool have_snapshot;
    pthread_t thread;
    pthread_mutex_t lock;
    bool in_flight; /* a thread to join                    */
    bool done;      /* under lock: the thread has finished */
    bool reported;
    double waited_ms; /* for the save before the next one */
    SaveReport report;
};

Status saver_create(Saver **saver, const SaverOptions *options) {
    Saver *s = HEAP_ALLOC(Saver, 1);
    *s = (Saver){.options = *options, .reported = true};
    pthread_mutex_init(&s->lock, NULL);
    set_tensors_create(&s->set, options->plan);
    *saver = s;
    return comm_split(options->world, "checkpoint", 0, comm_rank(options->world), &s->comm);
}

static void join(Saver *s) {
    if (!s->in_flight)
        return;
    pthread_join(s->thread, NULL);
    s->in_flight = false;
}

void saver_destroy(Saver *s) {
    if (!s)
        return;
    join(s);
    if (s->have_snapshot)
        snapshot_destroy(&s->snapshot);
    set_tensors_destroy(&s->set);
    comm_destroy(s->comm);
    pthread_mutex_destroy(&s->lock);
    heap_free(s);
}

static void *write_set(void *arg) {
    Saver *s = arg;
    SaveReport *report = &s->report;
    const int64_t start = clock_ns();
    status_trail_clear();
    report->status = writer_run(&s->options, s->comm, &s->snapshot, report);
    report->write_ms = clock_ms_since(start);
    if (report->status != STATUS_OK)
        str_format(report->trail, sizeof report->trail, "%.4000s", status_trail());
    set_path(report->dir, s->options.run_dir, report->state.step);
    pthread_mutex_lock(&s->lock);
    s->done = true;
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

void saver_begin(Saver *s, const SaveState *state, bool background) {
    DM_ASSERT(s->reported && !s->in_flight);
    s->report = (SaveReport){.state = *state, .wait_ms = s->waited_ms};
    s->waited_ms = 0;
    const int64_t start = clock_ns();
    if (!s->have_snapshot)
        snapshot_create(&s->snapshot, &s->set, comm_rank(s->options.world));
    s->have_snapshot = true;
    snapshot_take(&s->snapshot, s->options.parallel, s->options.plan, device_stream(s->options.device, STREAM_COMPUTE),
                  s->options.world);
    s->report.copy_ms = clock_ms_since(start);
    s->reported = false;
    s->done = false;
    if (background && pthread_create(&s->thread, NULL, write_set, s) == 0)
        s->in_flight = true;
    else
        write_set(s);
}

bool saver_poll(Saver *s, bool wait, SaveReport *report) {
    if (s->reported)
        return false;
    if (wait && s->in_flight) {
        const int64_t start = clock_ns();
        join(s);
        s->waited_ms += clock_ms_since(start);
    }
    pthread_mutex_lock(&s->lock);
    const bool done = s->done;
    pthread_mutex_unlock(&s->lock);
    if (!done)
        return false;
    join(s);
    s->reported = true;
    *report = s->report;
    return true;
}
