#include "call.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <atomic>
#include <map>

namespace standin {

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

static std::atomic<double> last_call;
static long ncalls;
static char failed_api[64]; /* the first call that was made to fail, or gave an error by itself */
static bool injected;

void count(const char *group, const char *name, int64_t n) {
    counts()[group][name] += n;
}

static int timed_records;

void count_from_here() {
    timed_records++;
}

void count_launch(const char *name) {
    char interval[64];
    snprintf(interval, sizeof interval, "launches after timed record %d", timed_records);
    count("kernels", name, 1);
    count(interval, name, 1);
}

static bool count_call(const char *api, const void *site, Numbered numbered) {
    last_call = now_s();
    count("calls", api, 1);
    const bool first = sites().emplace(std::make_pair(std::string(api), site), Site{api, ncalls + 1}).second;
    if (first || numbered == Numbered::ALWAYS) {
        ncalls++;
        injected = injected || ncalls == settings().fail_at;
    }
    if (injected)
        note_error(api);
    return injected;
}

ApiCall::ApiCall(const char *api, const void *site, Numbered numbered) : fails(count_call(api, site, numbered)) {
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

double last_call_s() {
    return last_call.load();
}

} // namespace standin
