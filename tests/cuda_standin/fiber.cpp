/* Runs one block: its threads are fibers, started and resumed in an order drawn from the seed, each until it waits for
 * others or ends. Threads that never wait run one after another on the same fiber. x86-64 only. */
#include "fiber.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <algorithm>

#include "block.h"
#include "standin.h"

namespace emu {

using standin::current_work;
using standin::fault;
using standin::random_u64;

constexpr size_t STACK = 32 << 10, MAX_THREADS = 1024, HUGE_PAGE = 2 << 20;
constexpr uint64_t CANARY = 0x5afe57acdeadbeefull;

struct Fiber : FiberThread {
    void *stack_pointer;
    uint64_t *lowest; /* word of the stack: the canary */
    uint64_t result;  /* of the warp operation that it waited for */
};

struct Warp {
    unsigned exist, waiting; /* lanes */
    unsigned mask[32], source[32];
    uint64_t value[32];
    Vote vote[32];
    Fiber *fiber[32];
};

Context context;

/* A bag of fibers. */
struct Bag {
    size_t n;
    Fiber *fiber[MAX_THREADS];

    void add(Fiber *f) {
        fiber[n++] = f;
    }
    Fiber *take(size_t i) {
        Fiber *f = fiber[i];
        fiber[i] = fiber[--n];
        return f;
    }
};

static Bag idle, ready, at_barrier;
static bool in_order; /* seed 0 */
static Warp warps[MAX_THREADS / 32];
static Fiber *current;
static void *scheduler_stack; /* where run_block waits while fibers run */
static const Kernel *kernel;
static void **kernel_arguments;
static uint64_t shuffle; /* a cheap generator of its own: one draw for every switch */
static unsigned votes, last_votes;

/* void fiber_switch(void **save, void *to): keeps what the calling convention says a callee keeps. */
extern "C" void standin_fiber_switch(void **save, void *to);
asm(R"(
.text
.globl standin_fiber_switch
.hidden standin_fiber_switch
.type standin_fiber_switch, @function
standin_fiber_switch:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    pop %rcx
    jmp *%rcx
.size standin_fiber_switch, . - standin_fiber_switch
)");

static void fiber_main() {
    for (;;) {
        kernel->run(kernel_arguments);
        idle.add(current);
        standin_fiber_switch(&current->stack_pointer, scheduler_stack);
    }
}

static char *stacks() {
    static char *pool;
    if (pool != nullptr)
        return pool;
    const size_t size = STACK * MAX_THREADS;
    char *mapped = (char *)mmap(nullptr, size + HUGE_PAGE, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED)
        fault("no memory for the stacks of emulated threads");
    pool = mapped + (HUGE_PAGE - (uintptr_t)mapped % HUGE_PAGE) % HUGE_PAGE;
    madvise(pool, size, MADV_HUGEPAGE);
    return pool;
}

/* Stacks begin at different offsets: else all of them would share a few sets of the cache. */
static Fiber *new_fiber() {
    static size_t made;
    Fiber *f = new Fiber{};
    char *stack = stacks() + STACK * made;
    f->lowest = (uint64_t *)stack;
    *f->lowest = CANARY;
    void **top = (void **)(stack + STACK - made * 7 % 61 * 64);
    made++;
    *--top = nullptr;
    *--top = (void *)fiber_main;
    for (int i = 0; i < 6; i++)
        *--top = nullptr;
    f->stack_pointer = top;
    return f;
}

static bool any_to_run() {
    return ready.n != 0 || context.started < context.nthreads;
}

/* A fiber that can go on, or one that will start the next threads. */
static Fiber *pick() {
    shuffle = shuffle * 6364136223846793005ull + 1442695040888963407ull;
    if (ready.n != 0 && (context.started >= context.nthreads || shuffle >> 60 < 12)) {
        return ready.take(in_order ? ready.n - 1 : (shuffle >> 33 & 0xffffff) * ready.n >> 24);
    }
    return idle.n != 0 ? idle.take(idle.n - 1) : new_fiber();
}

/* The calling fiber waits until it is picked again; it has put itself where it will be found. */
static void yield() {
    Fiber *me = current;
    Fiber *next = any_to_run() ? pick() : nullptr;
    if (*me->lowest != CANARY)
        fault("%s: the stack of an emulated thread overflowed (%zu bytes)", current_work(), STACK);
    if (next != me) {
        if (next != nullptr) {
            current = next;
            context.fiber = next;
        }
        standin_fiber_switch(&me->stack_pointer, next != nullptr ? next->stack_pointer : scheduler_stack);
    }
    context.thread = me->thread;
    context.linear = me->linear;
}

unsigned sync_block_count(bool predicate) {
    votes += predicate;
    at_barrier.add(current);
    if (at_barrier.n == context.nthreads) {
        std::copy_n(at_barrier.fiber, at_barrier.n, ready.fiber + ready.n);
        ready.n += at_barrier.n;
        at_barrier.n = 0;
        last_votes = votes; /* stays until all have met again */
        votes = 0;
    }
    yield();
    return last_votes;
}

void sync_block() {
    sync_block_count(false);
}

static void release_lanes(Warp *w, unsigned mask) {
    unsigned ballot = 0;
    for (unsigned rest = mask; rest != 0; rest &= rest - 1) {
        const int l = __builtin_ctz(rest);
        if (w->mask[l] != mask)
            fault("%s: lanes of a warp meet with masks %08x and %08x", current_work(), mask, w->mask[l]);
        ballot |= (w->value[l] != 0 ? 1u : 0u) << l;
    }
    for (unsigned rest = mask; rest != 0; rest &= rest - 1) {
        const int l = __builtin_ctz(rest);
        const unsigned source = w->source[l];
        if (w->vote[l] == Vote::BALLOT)
            w->fiber[l]->result = ballot;
        else /* a lane that is not in the mask has nothing to give */
            w->fiber[l]->result = mask >> source & 1 ? w->value[source] : ~0ull;
        ready.add(w->fiber[l]);
    }
    w->waiting &= ~mask;
}

uint64_t sync_warp(unsigned mask, uint64_t value, unsigned source, Vote vote) {
    Warp *w = &warps[current->linear / 32];
    const unsigned lane = current->linear % 32;
    mask &= w->exist;
    if (!(mask >> lane & 1))
        fault("%s: lane %u calls a warp function with mask %08x, which leaves it out", current_work(), lane, mask);
    w->mask[lane] = mask;
    w->source[lane] = source;
    w->value[lane] = value;
    w->vote[lane] = vote;
    w->fiber[lane] = current;
    w->waiting |= 1u << lane;
    if ((w->waiting & mask) == mask)
        release_lanes(w, mask);
    yield();
    return current->result;
}

static unsigned gcd(unsigned a, unsigned b) {
    return b == 0 ? a : gcd(b, a % b);
}

static void begin_block() {
    Context &c = context;
    c.started = c.ended = 0;
    c.stride = 1;
    c.at = 0;
    votes = 0;
    for (unsigned i = 0; i * 32 < c.nthreads; i++) {
        const unsigned rest = c.nthreads - i * 32;
        warps[i].waiting = 0;
        warps[i].exist = rest >= 32 ? ~0u : (1u << rest) - 1;
    }
    in_order = standin::settings().seed == 0;
    if (in_order)
        return;
    do {
        c.stride = 1 + (unsigned)(random_u64() % c.nthreads);
    } while (gcd(c.stride, c.nthreads) != 1);
    c.at = (unsigned)(random_u64() % c.nthreads);
    shuffle = random_u64();
}

void run_block(const Kernel *which, void **arguments) {
    kernel = which;
    kernel_arguments = arguments;
    begin_block();
    const Context &c = context;
    while (c.ended < c.nthreads) {
        if (!any_to_run())
            fault("%s: block (%u,%u,%u): %u of %u threads ended, %zu wait at __syncthreads, the others for lanes that "
                  "never come",
                  current_work(), c.block.x, c.block.y, c.block.z, c.ended, c.nthreads, at_barrier.n);
        current = pick();
        context.fiber = current;
        standin_fiber_switch(&scheduler_stack, current->stack_pointer);
    }
}

} // namespace emu
