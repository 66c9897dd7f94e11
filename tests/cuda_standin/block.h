/* How emulated kernels and the library that runs them know each other: the place of the running thread in its grid, the
 * description of a kernel, and the operations at which a thread waits for others. */
#ifndef CUDA_STANDIN_BLOCK_H
#define CUDA_STANDIN_BLOCK_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

namespace emu {

struct Index {
    unsigned x, y, z;
};

/* What a fiber knows of the thread of the block that it runs. */
struct FiberThread {
    Index thread;
    unsigned linear;
    bool active;
};

struct Context {
    Index thread, block, block_dim, grid_dim;
    unsigned linear;         /* thread's number in the block */
    unsigned nthreads;       /* of the block */
    unsigned started, ended; /* threads of it */
    unsigned stride, at;     /* threads start in the order at, at + stride, ... modulo nthreads */
    FiberThread *fiber;
    void *dynamic_shared;
};
extern Context context;

/* A kernel, as the compiler of its emulation sees it. */
struct Kernel {
    const void *function;
    int narguments;
    const unsigned short *size;      /* of each argument, bytes */
    const unsigned char *is_pointer; /* each argument */
    void (*run)(void **arguments);   /* one fiber: the next threads of the block, to their end */
    const char *name;                /* mangled; set by register_kernel */
};
void register_kernel(Kernel *kernel);
cudaError_t launch_kernel(Kernel *kernel, dim3 grid, dim3 block, size_t nbytes_shared, cudaStream_t stream,
                          void **arguments);

enum class Vote { NONE, BALLOT };

void sync_block();
/* All 32-bit results of a block-wide vote: how many threads brought a true predicate. */
unsigned sync_block_count(bool predicate);
/* The lanes named in `mask` meet. Gives the value that lane `source` brought or, for a ballot, the lanes whose value is
 * not 0. */
uint64_t sync_warp(unsigned mask, uint64_t value, unsigned source, Vote vote);

/* The next thread of the block that has not run yet becomes this fiber's. False: there is none. */
static inline bool next_thread() {
    Context &c = context;
    FiberThread *f = c.fiber;
    if (f->active) {
        f->active = false;
        c.ended++;
    }
    if (c.started >= c.nthreads)
        return false;
    const unsigned t = c.at;
    c.started++;
    c.at = c.at + c.stride >= c.nthreads ? c.at + c.stride - c.nthreads : c.at + c.stride;
    c.linear = f->linear = t;
    c.thread = {t % c.block_dim.x, t / c.block_dim.x % c.block_dim.y, t / c.block_dim.x / c.block_dim.y};
    f->thread = c.thread;
    f->active = true;
    return true;
}

} // namespace emu

#endif
