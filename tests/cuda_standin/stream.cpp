/* Streams, events, and what is put on them. When it runs is schedule.cpp's affair. */
#include "stream.h"

#include <stdarg.h>
#include <stdio.h>
#include <algorithm>

#include "call.h"
#include "graph.h"
#include "mem.h"
#include "schedule.h"

namespace standin {

constexpr uint64_t STREAM_MAGIC = 0x53545245414dull, EVENT_MAGIC = 0x4556454e54ull;

static std::vector<Stream *> &streams = *new std::vector<Stream *>;
static Stream *default_stream;
static int nstreams, nevents;

const std::vector<Stream *> &all_streams() {
    return streams;
}

void streams_start() {
    default_stream = stream_create(0);
}

void Op::describe(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
}

void Op::use(const void *begin, size_t nbytes) {
    if (nbytes != 0)
        ranges.push_back({(const char *)begin, nbytes});
}

/* ---- handles ---------------------------------------------------------------------------------------------------- */

Stream *stream_create(unsigned flags) {
    Stream *s = new Stream{};
    s->magic = STREAM_MAGIC;
    s->id = nstreams++;
    s->device = current_device();
    s->nonblocking = (flags & cudaStreamNonBlocking) != 0;
    s->priority = random_u64();
    streams.push_back(s);
    return s;
}

Stream *stream_of(cudaStream_t handle, const char *api) {
    if (handle == nullptr)
        return default_stream;
    Stream *s = (Stream *)handle;
    if (s->magic != STREAM_MAGIC)
        fault("%s: the stream was destroyed, or is none", api);
    return s;
}

/* Handles are not reused, so that one that was destroyed is known for what it is. */
void stream_destroy(cudaStream_t handle) {
    Stream *s = stream_of(handle, "cudaStreamDestroy");
    if (s == default_stream)
        fault("cudaStreamDestroy of the default stream");
    if (s->recording != nullptr)
        fault("cudaStreamDestroy: stream %d records", s->id);
    if (!s->queue.empty())
        fault("cudaStreamDestroy: stream %d still has work: %s", s->id, s->queue.front()->what);
    streams.erase(std::find(streams.begin(), streams.end(), s));
    s->magic = 0;
}

Event *event_create(unsigned flags) {
    Event *e = new Event{};
    e->magic = EVENT_MAGIC;
    e->id = ++nevents;
    e->timing = (flags & cudaEventDisableTiming) == 0;
    return e;
}

Event *event_of(cudaEvent_t handle, const char *api) {
    Event *e = (Event *)handle;
    if (e == nullptr || e->magic != EVENT_MAGIC)
        fault("%s: the event was destroyed, or is none", api);
    return e;
}

void event_destroy(cudaEvent_t handle) {
    Event *e = event_of(handle, "cudaEventDestroy");
    if (e->completed < e->recorded)
        fault("cudaEventDestroy: event %d is not reached yet", e->id);
    e->magic = 0;
}

struct RecordOp : Op {
    Event *event = nullptr;
    uint64_t version = 0;
    Step step() override {
        event->completed = std::max(event->completed, version);
        event->reached_s = now_s();
        return Step::DONE;
    }
};

struct WaitOp : Op {
    Event *event = nullptr;
    uint64_t version = 0;
    bool ready() override {
        return event->completed >= version;
    }
    Stream *needs() const override {
        return event->where;
    }
    Step step() override {
        return Step::DONE;
    }
};

void event_record(Event *event, cudaStream_t stream, const char *api) {
    RecordOp *op = new RecordOp;
    op->event = event;
    op->version = ++event->recorded;
    op->describe("record of event %d", event->id);
    event->where = stream_of(stream, api);
    enqueue(stream, op, api);
}

void check_recorded(const Event *event, const char *api) {
    if (event->recorded == 0)
        fault("%s: event %d was never recorded: waiting for it means nothing", api, event->id);
}

void event_wait(Event *event, cudaStream_t stream, const char *api) {
    check_recorded(event, api);
    WaitOp *op = new WaitOp;
    op->event = event;
    op->version = event->recorded;
    op->describe("wait for event %d", event->id);
    enqueue(stream, op, api);
}

/* Streams and memory belong to the GPU that was current where they were made. */
static void check_device(const Stream *s, const Op *op, const char *api) {
    if (s->device != current_device())
        fault("%s on a stream of GPU %d by a thread whose GPU is %d: every thread calls cudaSetDevice", api, s->device,
              current_device());
    for (const Range &r : op->ranges) {
        const Allocation *a = find_allocation(r.begin);
        if (a != nullptr && a->device != s->device)
            fault("%s on GPU %d names allocation #%d, which is on GPU %d", op->what, s->device, a->id, a->device);
    }
}

static void check_not_beside_recording(const char *api) {
    for (const Stream *s : streams) {
        if (s->recording != nullptr && !s->nonblocking)
            fault("%s on the default stream while stream %d records, which waits for it", api, s->id);
    }
}

/* Work on the default stream is ordered with all blocking streams: it runs at once, after them. */
void enqueue(cudaStream_t handle, Op *op, const char *api) {
    Stream *s = stream_of(handle, api);
    if (op->what[0] == '\0')
        op->describe("%s", api);
    if (s != default_stream)
        check_device(s, op, api);
    else
        check_not_beside_recording(api);
    if (s->recording != nullptr) {
        record(s, op);
        return;
    }
    if (!op->launch.empty())
        count_launch(op->launch.c_str());
    schedule_arrival();
    s->queue.push_back(op);
    if (s != default_stream) {
        run_ahead();
        return;
    }
    for (size_t i = streams.size(); i-- > 0;) { /* the default stream is the first */
        if (!streams[i]->nonblocking)
            wait_stream(streams[i], api);
    }
}

/* ---- checks ----------------------------------------------------------------------------------------------------- */

static const Op *user_of(const char *begin, size_t nbytes, const Stream **where) {
    for (const Stream *s : streams) {
        for (const Op *op : s->queue) {
            for (const Range &r : op->ranges) {
                if (r.begin < begin + nbytes && begin < r.begin + r.nbytes) {
                    *where = s;
                    return op;
                }
            }
        }
    }
    return nullptr;
}

bool is_used(const char *begin, size_t nbytes) {
    const Stream *where = nullptr;
    return user_of(begin, nbytes, &where) != nullptr;
}

void check_unused(const char *begin, size_t nbytes, const char *api) {
    const Stream *where = nullptr;
    const Op *op = user_of(begin, nbytes, &where);
    if (op != nullptr)
        fault("%s of memory that queued work names: %s on stream %d", api, op->what, where->id);
}

void check_queues_empty() {
    if (!anything_queued())
        return;
    print_queues();
    fault("exit with work still queued");
}

} // namespace standin
