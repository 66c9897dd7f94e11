/* Streams are queues that run late, on the threads that make calls: when the host waits or asks, sometimes when it
 * enqueues, and on a thread of their own when the host is silent. One operation runs at a time, to its end or, for a
 * communication, until it would block; which stream is next is drawn from the seed. */
#include "stream.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <algorithm>

#include "mem.h"

namespace standin {

constexpr uint64_t STREAM_MAGIC = 0x53545245414dull, EVENT_MAGIC = 0x4556454e54ull;
constexpr double PATIENCE_S = 0.02; /* a chosen communication is waited for: else the order would follow the clock */
constexpr long SLEEP_US = 50, SLEEP_MAX_US = 1000;

enum class Move { MOVED, WAITING, IDLE };

static std::vector<Stream *> &streams = *new std::vector<Stream *>;
static Stream *default_stream;
static Stream *chosen; /* whose communication is waited for */
static int nstreams, nevents;
static int drivers; /* threads that wait, and so run work */
static double last_move_s;

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

static void check_recorded(const Event *event, const char *api) {
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

/* ---- running ---------------------------------------------------------------------------------------------------- */

static bool run_head(Stream *s) {
    Op *op = s->queue.front();
    if (!op->ready())
        return false;
    set_current_work(op->what);
    Step step;
    {
        const DeviceMode device;
        step = op->step();
    }
    set_current_work("");
    if (step == Step::BLOCKED)
        return false;
    if (step == Step::DONE) {
        s->queue.pop_front();
        delete op;
    }
    s->patient_until = 0;
    chosen = nullptr;
    last_move_s = now_s();
    lock_wake();
    return true;
}

/* A communication whose partner is late holds everything else up for a while. False once that has been tried. */
static bool be_patient(Stream *s) {
    if (settings().policy == Policy::EAGER || !s->queue.front()->remote || !s->queue.front()->ready())
        return false;
    if (s->patient_until == 0)
        s->patient_until = now_s() + PATIENCE_S;
    chosen = now_s() < s->patient_until ? s : nullptr;
    return chosen != nullptr;
}

static size_t pick(const std::vector<Stream *> &candidates) {
    const Policy policy = settings().policy;
    if (policy == Policy::RANDOM || policy == Policy::DEMAND)
        return random_u64() % candidates.size();
    if (policy == Policy::EAGER)
        return 0;
    size_t best = 0;
    for (size_t i = 1; i < candidates.size(); i++) {
        if (candidates[i]->priority > candidates[best]->priority)
            best = i;
    }
    return best;
}

static Move move_any(bool patient) {
    if (chosen != nullptr) {
        Stream *s = chosen;
        if (run_head(s))
            return Move::MOVED;
        if (be_patient(s))
            return Move::WAITING;
    }
    std::vector<Stream *> candidates;
    for (Stream *s : streams) {
        if (!s->queue.empty())
            candidates.push_back(s);
    }
    if (settings().policy == Policy::CHANGING && !candidates.empty() && random_u64() % 16 == 0)
        candidates[random_u64() % candidates.size()]->priority = random_u64();
    while (!candidates.empty()) {
        const size_t i = pick(candidates);
        if (run_head(candidates[i]))
            return Move::MOVED;
        if (patient && be_patient(candidates[i]))
            return Move::WAITING;
        candidates.erase(candidates.begin() + (long)i);
    }
    return Move::IDLE;
}

/* Only what `s` needs: its head, or what the event that its head waits for needs. */
static bool move_for(Stream *s) {
    for (size_t depth = 0; depth < 64 && s != nullptr && !s->queue.empty(); depth++) {
        if (run_head(s))
            return true;
        const WaitOp *wait = dynamic_cast<const WaitOp *>(s->queue.front());
        s = wait != nullptr ? wait->event->where : nullptr;
    }
    return false;
}

static Move move(Stream *wanted) {
    if (settings().policy == Policy::DEMAND && wanted != nullptr && move_for(wanted))
        return Move::MOVED;
    return move_any(true);
}

/* The device runs ahead of the host by some operations; it never waits for another process here. */
static void run_ahead() {
    if (settings().policy == Policy::EAGER) {
        while (move_any(false) == Move::MOVED)
            continue;
    } else if ((int)(random_u64() % 100) < settings().ahead_percent) {
        for (uint64_t n = 1 + random_u64() % 8; n > 0 && move_any(false) == Move::MOVED; n--)
            continue;
    }
}

/* ---- waiting ---------------------------------------------------------------------------------------------------- */

static bool anything_queued() {
    for (const Stream *s : streams) {
        if (!s->queue.empty())
            return true;
    }
    return false;
}

static void print_queues() {
    for (const Stream *s : streams) {
        std::string line = std::to_string(s->queue.size()) + " queued";
        for (size_t i = 0; i < s->queue.size() && i < 4; i++)
            line += std::string(" | ") + s->queue[i]->what + (s->queue[i]->ready() ? "" : " (not yet)");
        fprintf(stderr, "standin[%d]:  stream %d: %s\n", settings().rank, s->id, line.c_str());
    }
}

/* Without a communication at a head nothing outside can help. With one, the other process may be slow. */
static void check_hang(double since_s, const char *api) {
    bool remote = false;
    for (const Stream *s : streams)
        remote = remote || (!s->queue.empty() && s->queue.front()->remote);
    if (remote && now_s() - std::max(since_s, last_move_s) < settings().hang_s)
        return;
    print_queues();
    if (!remote)
        fault("%s: deadlock: nothing that is queued can run", api);
    fault("%s: nothing moved for %.0f s: a communication without its partner?", api, settings().hang_s);
}

template <class Done> static void drive(Done done, Stream *wanted, const char *api) {
    const double since_s = now_s();
    long sleep_us = SLEEP_US;
    drivers++;
    while (!done()) {
        const Move moved = move(wanted);
        if (moved == Move::MOVED) {
            lock_yield();
            sleep_us = SLEEP_US;
            continue;
        }
        if (moved == Move::IDLE)
            check_hang(since_s, api);
        lock_sleep(sleep_us);
        sleep_us = std::min(sleep_us * 5 / 4, SLEEP_MAX_US);
    }
    drivers--;
}

void wait_stream(Stream *stream, const char *api) {
    drive([stream] { return stream->queue.empty(); }, stream, api);
}

void wait_event(Event *event, const char *api) {
    check_recorded(event, api);
    const uint64_t version = event->recorded;
    drive([event, version] { return event->completed >= version; }, event->where, api);
}

void wait_device(const char *api) {
    drive([] { return !anything_queued(); }, nullptr, api);
}

static void poll(Stream *wanted, const char *api) {
    Move moved = Move::MOVED;
    for (uint64_t n = 1 + random_u64() % 16; n > 0 && moved == Move::MOVED; n--)
        moved = move(wanted);
    if (moved == Move::IDLE && anything_queued())
        check_hang(0, api);
}

void poll_stream(Stream *stream, const char *api) {
    poll(stream, api);
}

void poll_event(Event *event, const char *api) {
    check_recorded(event, api);
    poll(event->where, api);
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

/* Work on the default stream is ordered with all blocking streams: it runs at once, after them. */
void enqueue(cudaStream_t handle, Op *op, const char *api) {
    Stream *s = stream_of(handle, api);
    if (op->what[0] == '\0')
        op->describe("%s", api);
    if (s != default_stream)
        check_device(s, op, api);
    if (!anything_queued())
        last_move_s = now_s();
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

/* ---- the device by itself --------------------------------------------------------------------------------------- */

/* A host that sits in MPI makes no calls, and a GPU would go on without it. */
static void *pump(void *) {
    const double silence_s = 1e-3 * settings().pump_ms;
    const struct timespec nap = {0, 5000000};
    for (;;) {
        nanosleep(&nap, nullptr);
        if (now_s() - last_call_s() < silence_s)
            continue;
        const Lock lock;
        while (drivers == 0 && now_s() - last_call_s() >= silence_s && move_any(false) == Move::MOVED)
            lock_yield();
    }
    return nullptr;
}

void streams_start() {
    default_stream = stream_create(0);
    pthread_t thread;
    if (settings().pump_ms != 0 && pthread_create(&thread, nullptr, pump, nullptr) == 0)
        pthread_detach(thread);
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
