/* The pool behind kernels: every item once, scratch per thread, and cores. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "device/cores.h"
#include "device/pool.h"

#define MAX_ITEMS 1000
#define MAX_THREADS 8

typedef struct Tally {
    atomic_int times[MAX_ITEMS];
    atomic_int by_thread[MAX_THREADS];
    atomic_int inside, most_inside;
    int sleep_us;
} Tally;

static void tally_item(void *arg, int item, int thread) {
    Tally *tally = arg;
    const int inside = atomic_fetch_add(&tally->inside, 1) + 1;
    if (inside > atomic_load(&tally->most_inside))
        atomic_store(&tally->most_inside, inside);
    atomic_fetch_add(&tally->times[item], 1);
    atomic_fetch_add(&tally->by_thread[thread], 1);
    if (tally->sleep_us > 0)
        clock_sleep_us(tally->sleep_us);
    atomic_fetch_sub(&tally->inside, 1);
}

static Pool *pool_of(int nthreads) {
    Pool *pool = NULL;
    assert_int_equal(pool_create(&pool, nthreads, 0), STATUS_OK);
    return pool;
}

static void test_pool_runs_every_item_exactly_once(void **state) {
    (void)state;
    static const int nitems[] = {0, 1, 2, 3, 7, 64, MAX_ITEMS};
    for (int nthreads = 1; nthreads <= MAX_THREADS; nthreads += nthreads < 4 ? 1 : 4) {
        Pool *pool = pool_of(nthreads);
        const KernelCtx *ctx = pool_ctx(pool);
        assert_int_equal(ctx->nthreads, nthreads);
        for (int round = 0; round < 200; round++) {
            Tally tally = {.sleep_us = 0};
            const int n = nitems[round % (int)(sizeof nitems / sizeof nitems[0])];
            ctx->parallel(ctx, n, tally_item, &tally);
            for (int i = 0; i < MAX_ITEMS; i++)
                assert_int_equal(tally.times[i], i < n ? 1 : 0);
            assert_int_equal(tally.inside, 0);
        }
        pool_destroy(pool);
    }
}

static void test_pool_runs_items_on_several_threads_at_once(void **state) {
    (void)state;
    Pool *pool = pool_of(3);
    const KernelCtx *ctx = pool_ctx(pool);
    Tally tally = {.sleep_us = 20000};
    ctx->parallel(ctx, 6, tally_item, &tally);
    assert_int_equal(tally.most_inside, 3);
    for (int thread = 0; thread < 3; thread++)
        assert_true(tally.by_thread[thread] >= 1);
    pool_destroy(pool);
}

static void test_pool_of_one_runs_in_the_calling_thread(void **state) {
    (void)state;
    Pool *pool = pool_of(1);
    Tally tally = {.sleep_us = 100};
    pool_ctx(pool)->parallel(pool_ctx(pool), 20, tally_item, &tally);
    assert_int_equal(tally.most_inside, 1);
    assert_int_equal(tally.by_thread[0], 20);
    pool_destroy(pool);
}

typedef struct Blocks {
    const KernelCtx *ctx;
    size_t nbytes;
    atomic_int bad;
} Blocks;

static void fill_scratch(void *arg, int item, int thread) {
    Blocks *blocks = arg;
    unsigned char *block = blocks->ctx->scratch(blocks->ctx, thread, blocks->nbytes);
    if ((uintptr_t)block % 64 != 0)
        atomic_fetch_add(&blocks->bad, 1);
    memset(block, item, blocks->nbytes);
    clock_sleep_us(200);
    for (size_t i = 0; i < blocks->nbytes; i++)
        if (block[i] != (unsigned char)item)
            atomic_fetch_add(&blocks->bad, 1);
}

static void test_scratch_is_aligned_private_to_its_thread_and_grows(void **state) {
    (void)state;
    static const size_t nbytes[] = {1, 64, 1000, 100000, 10, 3000000};
    Pool *pool = pool_of(4);
    for (size_t i = 0; i < sizeof nbytes / sizeof nbytes[0]; i++) {
        Blocks blocks = {.ctx = pool_ctx(pool), .nbytes = nbytes[i]};
        blocks.ctx->parallel(blocks.ctx, 12, fill_scratch, &blocks);
        assert_int_equal(blocks.bad, 0);
    }
    pool_destroy(pool);
}

static void test_scratch_stays_where_it_is_while_it_is_large_enough(void **state) {
    (void)state;
    Pool *pool = pool_of(1);
    const KernelCtx *ctx = pool_ctx(pool);
    void *first = ctx->scratch(ctx, 0, 5000);
    assert_ptr_equal(ctx->scratch(ctx, 0, 4000), first);
    assert_ptr_equal(ctx->scratch(ctx, 0, 5000), first);
    pool_destroy(pool);
}

static void test_cores_available_is_at_least_one(void **state) {
    (void)state;
    assert_in_range(cores_available(), 1, 1 << 20);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pool_runs_every_item_exactly_once),
        cmocka_unit_test(test_pool_runs_items_on_several_threads_at_once),
        cmocka_unit_test(test_pool_of_one_runs_in_the_calling_thread),
        cmocka_unit_test(test_scratch_is_aligned_private_to_its_thread_and_grows),
        cmocka_unit_test(test_scratch_stays_where_it_is_while_it_is_large_enough),
        cmocka_unit_test(test_cores_available_is_at_least_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
