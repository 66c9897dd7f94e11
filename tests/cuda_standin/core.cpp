/* Settings, randomness, faults, the lock, and the counting of calls. Statics are made on first use and never destroyed:
 * the program's constructors make calls before this library's have all run, and its last calls come during exit. */
#include "standin.h"

#include <errno.h>
#include <execinfo.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <atomic>
#include <map>

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
static std::atomic<double> last_call;

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

double last_call_s() {
    return last_call.load();
}

/* ---- counting and failing calls --------------------------------------------------------------------------------- */

struct Site {
    std::string api;
    long first; /* number of its first call */
};
using Group = std::map<std::string, int64_t>;

static std::map<std::string, Group> &counts() {
    static auto &c = *new std::map<std::string, Group>;
    return c;
}

static std::map<std::pair<std::string, const void *>, Site> &sites() {
    static auto &s = *new std::map<std::pair<std::string, const void *>, Site>;
    return s;
}

static std::map<std::string, int> &handles() {
    static auto &h = *new std::map<std::string, int>;
    return h;
}

static long ncalls;
static char failed_api[64]; /* the first call that was made to fail, or gave an error by itself */
static bool injected;

void count(const char *group, const char *name, int64_t n) {
    counts()[group][name] += n;
}

static bool count_call(const char *api, const void *site) {
    last_call = now_s();
    ncalls++;
    count("calls", api, 1);
    sites().emplace(std::make_pair(std::string(api), site), Site{api, ncalls});
    if (settings().fail_at != 0 && ncalls == settings().fail_at)
        injected = true;
    if (injected)
        note_error(api);
    return injected;
}

ApiCall::ApiCall(const char *api, const void *site) : fails(count_call(api, site)) {
}

ApiCall::~ApiCall() {
    last_call = now_s();
}

void note_error(const char *api) {
    if (failed_api[0] == '\0')
        snprintf(failed_api, sizeof failed_api, "%s", api);
}

bool failure_injected() {
    return injected;
}

void leak_count(const char *kind, int change) {
    handles()[kind] += change;
}

void check_leaks() {
    if (!settings().leaks)
        return;
    std::string left;
    for (const auto &entry : handles()) {
        if (entry.second != 0)
            left += (left.empty() ? "" : ", ") + std::to_string(entry.second) + " " + entry.first;
    }
    if (!left.empty())
        fault("exit with %s not given back", left.c_str());
}

void check_unnoticed_errors() {
    if (failed_api[0] != '\0')
        fault("%s failed and the program still exits 0: an error went unchecked", failed_api);
}

static void write_group(FILE *file, const char *name, const Group &group) {
    fprintf(file, ",\n \"%s\": {", name);
    const char *comma = "";
    for (const auto &entry : group) {
        fprintf(file, "%s\n  \"%s\": %lld", comma, entry.first.c_str(), (long long)entry.second);
        comma = ",";
    }
    fprintf(file, "}");
}

/* {"counted": n, "calls": {...}, ..., "sites": [{"api": ..., "call": number of the first}, ...]} */
void counts_write() {
    const char *base = getenv("DM_STANDIN_COUNTS");
    if (base == nullptr || *base == '\0')
        return;
    std::string path = base;
    if (settings().rank != 0)
        path += "." + std::to_string(settings().rank);
    FILE *file = fopen(path.c_str(), "w");
    if (file == nullptr)
        fault("DM_STANDIN_COUNTS=%s: %s", path.c_str(), strerror(errno));
    fprintf(file, "{\"counted\": %ld", ncalls);
    for (const auto &group : counts())
        write_group(file, group.first.c_str(), group.second);
    fprintf(file, ",\n \"sites\": [");
    const char *comma = "";
    for (const auto &entry : sites()) {
        fprintf(file, "%s\n  {\"api\": \"%s\", \"call\": %ld}", comma, entry.second.api.c_str(), entry.second.first);
        comma = ",";
    }
    fprintf(file, "]}\n");
    fclose(file);
}

} // namespace standin
