/* What the parts of the CUDA stand-in share. The stand-in takes the place of libcudart.so.13 and libnccl.so.2 when a
 * production binary is run on a machine without a GPU: device work is queued and run late, on the host threads that
 * make calls, in an order drawn from a seed; device memory is closed to the host. Functions whose comment does not say
 * otherwise are called with the lock held. */
#ifndef CUDA_STANDIN_STANDIN_H
#define CUDA_STANDIN_STANDIN_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>
#include <string>
#include <vector>

#define STANDIN_API extern "C" __attribute__((visibility("default")))

namespace standin {

constexpr int FAULT_EXIT = 86; /* the exit code of a program that was caught */

/* How the next stream is chosen; the seed says which. */
enum class Policy {
    EAGER,    /* everything runs as soon as it can, in the order of the calls */
    RANDOM,   /* any stream, at any time */
    CHANGING, /* random priorities that change now and then */
    DEMAND,   /* only what the awaited stream needs, all else as late as possible */
    FIXED,    /* random priorities for good: starves a stream */
};

/* Read once from DM_STANDIN_*: README.md beside this file lists them. */
struct Settings {
    uint64_t seed;
    Policy policy;
    int ahead_percent; /* chance that the device runs ahead at a call */
    int rank;          /* of this process in its MPI job, 0 without one */
    int devices;
    size_t memory; /* bytes of device memory */
    int pump_ms;   /* host silence after which queued work runs by itself; 0: never */
    double hang_s; /* silence of all queues after which a wait is a fault */
    long fail_at;  /* number of the counted call that fails, and all after it; 0: none */
    bool leaks;    /* whatever is left at exit is a fault */
    bool skip_kernels;
};
const Settings &settings();

uint64_t random_u64();
uint64_t random_mark(); /* the generator's state, to go back to */
void random_return(uint64_t mark);
double now_s();

/* Says what is wrong, where from and under which seed; ends the process. With or without the lock. */
[[noreturn]] void fault(const char *format, ...) __attribute__((format(printf, 1, 2)));
const char *current_work(); /* the operation that is running, for messages; "" if none */
void set_current_work(const char *what);

/* The one lock of this process's stand-in. Taken for the length of a call, given up while a thread sleeps. */
class Lock {
  public:
    Lock();
    ~Lock();
    Lock(const Lock &) = delete;
    Lock &operator=(const Lock &) = delete;
};
void lock_sleep(long us); /* sleeps without the lock, until something moves or the time is up */
void lock_yield();        /* lets a thread in that waits for the lock */
void lock_wake();         /* something moved */

/* A piece of device memory, or of pinned host memory, that queued work names. */
struct Range {
    const char *begin;
    size_t nbytes;
};

struct Stream;

enum class Step { DONE, PROGRESS, BLOCKED };

/* Queued device work. */
struct Op {
    char what[160] = "";
    std::vector<Range> ranges;
    bool remote = false;  /* needs another process */
    bool repeats = false; /* a graph may hold it: its one step can be taken again */
    std::string launch;   /* counted under this name when it is queued */

    Op() = default;
    Op(const Op &) = delete;
    Op &operator=(const Op &) = delete;
    virtual ~Op() = default;
    virtual bool ready() {
        return true;
    }
    virtual Stream *needs() const { /* while not ready: whose work is waited for */
        return nullptr;
    }
    virtual Step step() = 0; /* runs with device memory open */
    void describe(const char *format, ...) __attribute__((format(printf, 2, 3)));
    void use(const void *begin, size_t nbytes);
};

int current_device(); /* of the calling thread */

/* The stream takes over `op`. */
void enqueue(cudaStream_t stream, Op *op, const char *api);

/* A fault unless [p, p + nbytes) lies in one live device allocation. */
void check_device_range(const char *api, const char *argument, const void *p, size_t nbytes);

} // namespace standin

#endif
