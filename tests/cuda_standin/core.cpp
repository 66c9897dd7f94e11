/* Settings, randomness, faults, the lock. Statics are made on first use and never destroyed:
 * the program's constructors make calls before this library's have all run, and its last calls come during exit. */
#include "standin.h"

#include <execinfo.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#include <atomic>

#include "mem.h"

namespace standin {

/* ---- settings and randomness ------------------------------------------------------------------------------------ */

static long env_long(const char *name, long otherwise) {
    const char *text = getenv(name);
    if (text == nullptr || *text == '\0')
        return otherwise;
    char *end = nullptr;
    const long value = strtol(text, &end, 10);
    if (*end != '\0' || value < 0) {
        fprintf(stderr, "standin: %s=%s is not a count\n", name, text);
        _exit(FAULT_EXIT);
    }
    return value;
}

static uint64_t random_state;

uint64_t random_u64() { /* xorshift64*, upper bits */
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state * 2685821657736338717ull >> 11;
}

uint64_t random_mark() {
    return random_state;
}

void random_return(uint64_t mark) {
    random_state = mark;
}

/* Five seeds in a row meet all policies; seed 0 is the reference: eager. */
static Policy policy_of(uint64_t seed) {
    static const Policy order[] = {Policy::RANDOM, Policy::CHANGING, Policy::DEMAND, Policy::FIXED, Policy::EAGER};
    return seed == 0 ? Policy::EAGER : order[(seed - 1) % 5];
}

static Settings read_settings() {
    Settings s = {};
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    s.rank = rank != nullptr ? atoi(rank) : 0;
    s.seed = (uint64_t)env_long("DM_STANDIN_SEED", 0);
    s.policy = policy_of(s.seed);
    s.devices = (int)env_long("DM_STANDIN_DEVICES", 8);
    s.memory = (size_t)env_long("DM_STANDIN_MEMORY", 8l << 30);
    s.pump_ms = (int)env_long("DM_STANDIN_PUMP_MS", 50);
    s.hang_s = (double)env_long("DM_STANDIN_HANG_S", 60);
    s.skip_kernels = env_long("DM_STANDIN_SKIP_KERNELS", 0) != 0;
    s.leaks = env_long("DM_STANDIN_LEAKS", 0) != 0;
    if (env_long("DM_STANDIN_FAIL_RANK", 0) == s.rank)
        s.fail_at = env_long("DM_STANDIN_FAIL", 0);
    random_state = 88172645463325252ull ^ s.seed * 0x9e3779b97f4a7c15ull ^ (uint64_t)s.rank << 32;
    for (int i = 0; i < 8; i++)
        random_u64();
    if (s.policy == Policy::RANDOM || s.policy == Policy::CHANGING)
        s.ahead_percent = (int)(random_u64() % 3) * 30;
    return s;
}

const Settings &settings() {
    static const Settings &s = *new Settings(read_settings());
    return s;
}

double now_s() {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- faults ----------------------------------------------------------------------------------------------------- */

static const char *work = "";

const char *current_work() {
    return work;
}

void set_current_work(const char *what) {
    work = what;
}

void fault(const char *format, ...) {
    char text[2048];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "standin[%d]: FAULT: %s (seed %llu)\n", settings().rank, text, (unsigned long long)settings().seed);
    void *frames[24];
    backtrace_symbols_fd(frames, backtrace(frames, 24), STDERR_FILENO);
    _exit(FAULT_EXIT);
}

/* ---- the lock --------------------------------------------------------------------------------------------------- */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
static std::atomic<int> waiting;

static void lock_take() {
    waiting++;
    pthread_mutex_lock(&mutex);
    waiting--;
}

static void lock_give() {
    memory_close();
    pthread_mutex_unlock(&mutex);
}

Lock::Lock() {
    lock_take();
}

Lock::~Lock() {
    lock_give();
}

void lock_sleep(long us) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += us * 1000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    memory_close();
    pthread_cond_timedwait(&moved, &mutex, &until);
}

void lock_yield() {
    if (waiting.load() == 0)
        return;
    lock_give();
    sched_yield();
    lock_take();
}

void lock_wake() {
    pthread_cond_broadcast(&moved);
}

} // namespace standin
