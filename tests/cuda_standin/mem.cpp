/* Device memory: one reservation of addresses that are never used twice. Every allocation ends at the end of its pages
 * and has an unmapped page on either side. Its pages are closed; the SIGSEGV handler opens those that device work
 * touches and reports every other access. Bytes that belong to nobody, before and after, keep a pattern that is
 * checked.
 */
#include "mem.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <map>

#include "block.h"
#include "call.h"
#include "stream.h"

namespace standin {

constexpr size_t PAGE = 4096, HUGE_PAGE = 2 << 20, ALIGN = 256, RESERVED = 1ull << 38;
constexpr int FRESH = 0xff; /* NaN in binary32, binary64 and bfloat16 */

static char *arena;
static size_t arena_next, used;
static int nallocations;
static thread_local __attribute__((tls_model("initial-exec"))) int device_depth;
static std::vector<Allocation *> &opened = *new std::vector<Allocation *>;

static std::map<uintptr_t, Allocation> &allocations() {
    static auto &a = *new std::map<uintptr_t, Allocation>;
    return a;
}

static std::map<uintptr_t, size_t> &pinned() {
    static auto &p = *new std::map<uintptr_t, size_t>;
    return p;
}

static size_t round_up(size_t n, size_t unit) {
    return (n + unit - 1) / unit * unit;
}

bool is_device_memory(const void *p) {
    return p >= arena && p < arena + RESERVED;
}

/* The allocation whose pages, or the guard page behind them, hold p. */
static Allocation *find(const void *p) {
    if (!is_device_memory(p))
        return nullptr;
    auto after = allocations().upper_bound((uintptr_t)p);
    if (after == allocations().begin())
        return nullptr;
    Allocation *a = &(--after)->second;
    return (const char *)p < a->base + a->mapped + PAGE ? a : nullptr;
}

const Allocation *find_allocation(const void *p) {
    return find(p);
}

bool is_pinned(const void *p, size_t nbytes) {
    auto after = pinned().upper_bound((uintptr_t)p);
    if (after == pinned().begin())
        return false;
    --after;
    return (uintptr_t)p + nbytes <= after->first + after->second;
}

size_t memory_used() {
    return used;
}

/* ---- opening and closing ---------------------------------------------------------------------------------------- */

DeviceMode::DeviceMode() {
    device_depth++;
}

DeviceMode::~DeviceMode() {
    device_depth--;
}

static void open_pages(Allocation *a) {
    if (a->open)
        return;
    if (mprotect(a->base, a->mapped, PROT_READ | PROT_WRITE) != 0)
        fault("mprotect of %zu bytes failed", a->mapped);
    a->open = true;
    opened.push_back(a);
}

void memory_close() {
    for (Allocation *a : opened) {
        if (a->live)
            mprotect(a->base, a->mapped, PROT_NONE);
        a->open = false;
    }
    opened.clear();
}

static struct sigaction previous, previous_trap;

[[noreturn]] static void report_access(const char *p, const Allocation *a) {
    if (device_depth == 0)
        fault("host code touched device memory at %p (allocation #%d)", p, a != nullptr ? a->id : -1);
    const emu::Context &c = emu::context;
    if (a == nullptr)
        fault("%s touched %p, which is no device memory; block (%u,%u,%u) thread (%u,%u,%u)", current_work(), p,
              c.block.x, c.block.y, c.block.z, c.thread.x, c.thread.y, c.thread.z);
    if (!a->live)
        fault("%s touched allocation #%d after cudaFree", current_work(), a->id);
    fault("%s touched %p, %ld bytes past allocation #%d of %zu bytes; block (%u,%u,%u) thread (%u,%u,%u)",
          current_work(), p, (long)(p - a->user) - (long)a->nbytes, a->id, a->nbytes, c.block.x, c.block.y, c.block.z,
          c.thread.x, c.thread.y, c.thread.z);
}

static void on_segv(int, siginfo_t *info, void *) {
    const char *p = (const char *)info->si_addr;
    if (!is_device_memory(p) && device_depth == 0) { /* not ours: once more, under who was here before */
        sigaction(SIGSEGV, &previous, nullptr);
        return;
    }
    Allocation *a = find(p);
    if (device_depth == 0 || a == nullptr || !a->live || a->open || p >= a->base + a->mapped)
        report_access(p, a);
    open_pages(a);
}

/* The emulated kernels are compiled to trap at what a GPU would not do. */
static void on_trap(int, siginfo_t *, void *) {
    if (device_depth == 0) {
        sigaction(SIGILL, &previous_trap, nullptr);
        return;
    }
    const emu::Context &c = emu::context;
    fault("%s: misaligned address, or index beyond its array; block (%u,%u,%u) thread (%u,%u,%u)", current_work(),
          c.block.x, c.block.y, c.block.z, c.thread.x, c.thread.y, c.thread.z);
}

void memory_start() {
    arena = (char *)mmap(nullptr, RESERVED, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (arena == MAP_FAILED) {
        perror("standin: no address space for device memory");
        _exit(FAULT_EXIT);
    }
    struct sigaction action = {};
    action.sa_sigaction = on_segv;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGSEGV, &action, &previous);
    action.sa_sigaction = on_trap;
    sigaction(SIGILL, &action, &previous_trap);
}

/* ---- allocation ------------------------------------------------------------------------------------------------- */

/* Closing and opening huge pages costs little: large allocations begin at one. */
static Allocation place(size_t nbytes) {
    Allocation a = {};
    const size_t size = round_up(nbytes, ALIGN);
    a.mapped = round_up(size, PAGE);
    arena_next += PAGE;
    if (a.mapped >= HUGE_PAGE)
        arena_next = round_up((size_t)arena + arena_next, HUGE_PAGE) - (size_t)arena;
    if (arena_next + a.mapped + PAGE > RESERVED)
        fault("cudaMalloc: the stand-in's addresses are used up");
    a.base = arena + arena_next;
    a.user = a.base + a.mapped - size;
    a.nbytes = nbytes;
    a.live = true;
    a.id = ++nallocations;
    a.device = current_device();
    arena_next += a.mapped;
    return a;
}

void *memory_allocate(size_t nbytes) {
    if (nbytes > settings().memory - used)
        return nullptr;
    Allocation *a = nullptr;
    {
        const Allocation placed = place(nbytes);
        a = &(allocations()[(uintptr_t)placed.base] = placed);
    }
    if (a->mapped >= HUGE_PAGE)
        madvise(a->base, a->mapped, MADV_HUGEPAGE);
    open_pages(a);
    memset(a->base, FRESH, a->mapped);
    used += nbytes;
    leak_count("device allocations", 1);
    return a->user;
}

static void check_fresh(const char *begin, const char *end, const Allocation *a) {
    for (const char *p = begin; p < end; p++) {
        if ((unsigned char)*p != FRESH)
            fault("something wrote %ld bytes past allocation #%d of %zu bytes", (long)(p - a->user) - (long)a->nbytes,
                  a->id, a->nbytes);
    }
}

static void check_margins(Allocation *a) {
    const DeviceMode device;
    check_fresh(a->base, a->user, a);
    check_fresh(a->user + a->nbytes, a->base + a->mapped, a);
}

void memory_check_margins() {
    for (auto &entry : allocations()) {
        if (entry.second.live)
            check_margins(&entry.second);
    }
}

void memory_free(void *p) {
    Allocation *a = find(p);
    if (a == nullptr || a->user != p)
        fault("cudaFree(%p): not what cudaMalloc gave", p);
    if (!a->live)
        fault("cudaFree: allocation #%d is freed twice", a->id);
    check_unused(a->base, a->mapped, "cudaFree");
    check_margins(a);
    memory_close();
    a->live = false;
    used -= a->nbytes;
    madvise(a->base, a->mapped, MADV_DONTNEED);
    mprotect(a->base, a->mapped, PROT_NONE);
    leak_count("device allocations", -1);
}

void *pinned_allocate(size_t nbytes) {
    const size_t size = round_up(nbytes, PAGE);
    void *p = aligned_alloc(PAGE, size);
    if (p == nullptr)
        return nullptr;
    memset(p, FRESH, size);
    pinned()[(uintptr_t)p] = nbytes;
    leak_count("pinned allocations", 1);
    return p;
}

void pinned_free(void *p) {
    auto found = pinned().find((uintptr_t)p);
    if (found == pinned().end())
        fault("cudaFreeHost(%p): not what cudaMallocHost gave", p);
    check_unused((const char *)p, found->second, "cudaFreeHost");
    pinned().erase(found);
    free(p);
    leak_count("pinned allocations", -1);
}

/* ---- checks of arguments ---------------------------------------------------------------------------------------- */

void check_device_range(const char *api, const char *argument, const void *p, size_t nbytes) {
    if (nbytes == 0)
        return;
    const Allocation *a = find(p);
    if (a == nullptr)
        fault("%s: %s = %p is not device memory", api, argument, p);
    if (!a->live)
        fault("%s: %s lies in allocation #%d, which was freed", api, argument, a->id);
    const char *begin = (const char *)p;
    if (begin < a->user || nbytes > (size_t)(a->user + a->nbytes - begin))
        fault("%s: %s needs %zu bytes from offset %ld of allocation #%d of %zu bytes", api, argument, nbytes,
              (long)(begin - a->user), a->id, a->nbytes);
}

void check_kernel_pointer(Op *op, int argument, const void *p) {
    if (p == nullptr)
        return;
    if (!is_device_memory(p))
        fault("%s: argument %d = %p is a host pointer", op->what, argument, p);
    const Allocation *a = find(p);
    if (a == nullptr || !a->live)
        fault("%s: argument %d = %p points to device memory that is %s", op->what, argument, p,
              a != nullptr ? "freed" : "not allocated");
    op->use(p, 1);
}

/* An address of this process's own memory, by the form of user addresses and by asking the kernel. */
static bool is_host_address(uintptr_t word) {
    if (word < 1ull << 32 || word >> 47 != 0)
        return false;
    unsigned char resident = 0;
    return mincore((void *)(word / PAGE * PAGE), PAGE, &resident) == 0;
}

/* A struct passed by value: its words that look like pointers must be device pointers. */
void check_kernel_words(Op *op, int argument, const void *value, size_t nbytes) {
    for (size_t at = 0; at + sizeof(uintptr_t) <= nbytes; at += sizeof(uintptr_t)) {
        uintptr_t word = 0;
        memcpy(&word, (const char *)value + at, sizeof word);
        if (is_device_memory((const void *)word) || is_host_address(word))
            check_kernel_pointer(op, argument, (const void *)word);
    }
}

} // namespace standin
