/* The thread pool behind KernelCtx. Idle threads sleep on a condition variable. A kernel never waits for a thread that
 * did not wake up in time to join it: with more threads than cores that would cost a time slice per kernel. */
#include "device/pool.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/arena.h"
#include "base/fatal.h"
#include "base/str.h"
#include "device/thread.h"

typedef void (*Body)(void *arg, int item, int thread);

typedef struct Member {
    Pool *pool;
    int index;        /* 0 is the caller */
    pthread_t thread; /* not for 0       */
    Arena scratch;    /* owned           */
} Member;

struct Pool {
    KernelCtx ctx;
    int nthreads, nstarted, add_nice;
    Member *member; /* [nthreads], owned */

    pthread_mutex_t mutex; /* guards all below but `next` */
    pthread_cond_t work;   /* a job opened, or stop       */
    pthread_cond_t idle;   /* active became 0             */
    bool stop, open;       /* open: threads may still join the job */
    uint64_t job;          /* counts jobs, so that a thread joins each once */
    int active;            /* threads inside the job, the caller aside */
    Body body;
    void *arg;
    int nitems;
    atomic_int next; /* the next item to run */
};

static void run_items(Pool *pool, Body body, void *arg, int nitems, int thread) {
    for (;;) {
        const int item = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed);
        if (item >= nitems)
            return;
        body(arg, item, thread);
    }
}

static void *member_main(void *arg) {
    Member *self = arg;
    Pool *pool = self->pool;
    uint64_t seen = 0;
    if (pool->add_nice > 0)
        thread_add_nice(pool->add_nice);
    pthread_mutex_lock(&pool->mutex);
    while (!pool->stop) {
        if (!pool->open || pool->job == seen) {
            pthread_cond_wait(&pool->work, &pool->mutex);
            continue;
        }
        seen = pool->job;
        pool->active++;
        const Body body = pool->body;
        void *body_arg = pool->arg;
        const int nitems = pool->nitems;
        pthread_mutex_unlock(&pool->mutex);
        run_items(pool, body, body_arg, nitems, self->index);
        pthread_mutex_lock(&pool->mutex);
        if (--pool->active == 0)
            pthread_cond_signal(&pool->idle);
    }
    pthread_mutex_unlock(&pool->mutex);
    return NULL;
}

static void pool_parallel(const KernelCtx *ctx, int nitems, Body body, void *arg) {
    Pool *pool = ctx->self;
    if (pool->nthreads == 1 || nitems <= 1) {
        for (int item = 0; item < nitems; item++)
            body(arg, item, 0);
        return;
    }
    pthread_mutex_lock(&pool->mutex);
    pool->body = body;
    pool->arg = arg;
    pool->nitems = nitems;
    atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
    pool->job++;
    pool->open = true;
    if (nitems >= pool->nthreads)
        pthread_cond_broadcast(&pool->work);
    else
        for (int i = 1; i < nitems; i++)
            pthread_cond_signal(&pool->work);
    pthread_mutex_unlock(&pool->mutex);

    run_items(pool, body, arg, nitems, 0);

    pthread_mutex_lock(&pool->mutex);
    pool->open = false;
    while (pool->active > 0)
        pthread_cond_wait(&pool->idle, &pool->mutex);
    pthread_mutex_unlock(&pool->mutex);
}

static void *pool_scratch(const KernelCtx *ctx, int thread, size_t nbytes) {
    Pool *pool = ctx->self;
    DM_ASSERT(thread >= 0 && thread < pool->nthreads);
    Arena *arena = &pool->member[thread].scratch;
    if (arena->capacity < nbytes) {
        /* Half as much again: kernels that grow their request step by step do not end up here each time. */
        const size_t capacity = (nbytes + nbytes / 2 + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
        arena_deinit(arena);
        *arena = (Arena){0};
        if (arena_init(arena, capacity, "kernel scratch") != STATUS_OK)
            fatal("%s", status_trail());
    }
    arena_rewind(arena, 0);
    return nbytes > 0 || arena->base != NULL ? arena_push(arena, nbytes) : NULL;
}

Status pool_create(Pool **out, int nthreads, int add_nice) {
    DM_ASSERT(nthreads >= 1);
    Pool *pool = HEAP_ALLOC(Pool, 1);
    *pool = (Pool){.nthreads = nthreads, .nstarted = 1, .add_nice = add_nice};
    pool->ctx = (KernelCtx){.nthreads = nthreads, .parallel = pool_parallel, .scratch = pool_scratch, .self = pool};
    pool->member = HEAP_ALLOC(Member, nthreads);
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->work, NULL);
    pthread_cond_init(&pool->idle, NULL);
    for (int i = 0; i < nthreads; i++) {
        char name[16];
        str_format(name, sizeof name, "dm-pool-%d", i % 10000);
        pool->member[i] = (Member){.pool = pool, .index = i};
        const Status status =
            i == 0 ? STATUS_OK : thread_start(&pool->member[i].thread, name, member_main, &pool->member[i]);
        if (status != STATUS_OK) {
            pool_destroy(pool);
            return status;
        }
        pool->nstarted = i + 1;
    }
    *out = pool;
    return STATUS_OK;
}

void pool_destroy(Pool *pool) {
    if (pool == NULL)
        return;
    pthread_mutex_lock(&pool->mutex);
    pool->stop = true;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->mutex);
    for (int i = 1; i < pool->nstarted; i++)
        pthread_join(pool->member[i].thread, NULL);
    for (int i = 0; i < pool->nthreads; i++)
        arena_deinit(&pool->member[i].scratch);
    pthread_cond_destroy(&pool->idle);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->mutex);
    heap_free(pool->member);
    heap_free(pool);
}

const KernelCtx *pool_ctx(const Pool *pool) {
    return &pool->ctx;
}
