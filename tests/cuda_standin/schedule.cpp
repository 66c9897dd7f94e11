/* When queued work runs: on the threads that make calls, when the host waits or asks, sometimes when it enqueues, and
 * on a thread of their own when the host is silent. One operation runs at a time, to its end or, for a communication,
 * until it would block; which stream is next is drawn from the seed. */
#include "schedule.h"

#include <pthread.h>
#include <stdio.h>
#include <time.h>
#include <algorithm>

#include "call.h"
#include "mem.h"

namespace standin {

constexpr double PATIENCE_S = 0.02; /* a chosen communication is waited for: else the order would follow the clock */
constexpr long SLEEP_US = 50, SLEEP_MAX_US = 1000;
constexpr int MOVES_PER_POLL = 8;

enum class Move { MOVED, WAITING, IDLE };

static Stream *chosen; /* whose communication is waited for */
static int drivers;    /* threads that wait, and so run work */
static double last_move_s;

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
    const uint64_t before = random_mark();
    std::vector<Stream *> candidates;
    for (Stream *s : all_streams()) {
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
    random_return(before); /* how often the host asks in vain must not matter */
    return Move::IDLE;
}

/* Only what `s` needs: its head, or what the event that its head waits for needs. */
static bool move_for(Stream *s) {
    for (size_t depth = 0; depth < 64 && s != nullptr && !s->queue.empty(); depth++) {
        if (run_head(s))
            return true;
        s = s->queue.front()->needs();
    }
    return false;
}

static Move move(Stream *wanted) {
    if (settings().policy == Policy::DEMAND && wanted != nullptr && move_for(wanted))
        return Move::MOVED;
    return move_any(true);
}

/* The device runs ahead of the host by some operations; it never waits for another process here. */
void run_ahead() {
    if (settings().policy == Policy::EAGER) {
        while (move_any(false) == Move::MOVED)
            continue;
    } else if ((int)(random_u64() % 100) < settings().ahead_percent) {
        for (uint64_t n = 1 + random_u64() % 8; n > 0 && move_any(false) == Move::MOVED; n--)
            continue;
    }
}

/* ---- waiting ---------------------------------------------------------------------------------------------------- */

bool anything_queued() {
    for (const Stream *s : all_streams()) {
        if (!s->queue.empty())
            return true;
    }
    return false;
}

void print_queues() {
    for (const Stream *s : all_streams()) {
        std::string line = std::to_string(s->queue.size()) + " queued";
        for (size_t i = 0; i < s->queue.size() && i < 4; i++)
            line += std::string(" | ") + s->queue[i]->what + (s->queue[i]->ready() ? "" : " (not yet)");
        fprintf(stderr, "standin[%d]:  stream %d: %s\n", settings().rank, s->id, line.c_str());
    }
}

void schedule_arrival() {
    if (!anything_queued())
        last_move_s = now_s();
}

/* Without a communication at a head nothing outside can help. With one, the other process may be slow. */
static void check_hang(double since_s, const char *api) {
    bool remote = false;
    for (const Stream *s : all_streams())
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
    for (int n = 0; n < MOVES_PER_POLL && moved == Move::MOVED; n++)
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

void schedule_start() {
    pthread_t thread;
    if (settings().pump_ms != 0 && pthread_create(&thread, nullptr, pump, nullptr) == 0)
        pthread_detach(thread);
}

} // namespace standin
