/* The loader gives what a direct computation gives, whatever the split of leaves over ranks. */
#include "data/loader.h"

#include "tests/unit/bits.h"
#include "tests/unit/scratch.h"

#include <unistd.h>

#include "data/order.h"

enum { T = 4, B = 2, WINDOWS = 37 };

static char dir[SCRATCH_PATH];
static Dataset *dataset;
static Dataset *bad_dataset; /* a byte 200 in the last window, vocabulary 200 */

static LoaderOptions options_of(const int64_t *leaf, int64_t per_rank, int64_t leaves, int64_t first_sample) {
    return (LoaderOptions){.dataset = dataset,
                           .seed = 99,
                           .shuffle = true,
                           .B = B,
                           .T = T,
                           .leaves_per_step = leaves,
                           .leaf = leaf,
                           .per_rank = per_rank,
                           .first_sample = first_sample};
}

/* Leaf `leaf` of step `step`, straight from the order and the data set. */
static void check_leaf(const LoaderOptions *o, int64_t step, int64_t leaf, const int32_t *tokens,
                       const int32_t *targets) {
    for (int64_t row = 0; row < B; row++) {
        int32_t want[T], want_targets[T];
        const int64_t sample = o->first_sample + step * o->leaves_per_step * B + leaf * B + row;
        const int64_t window = order_window(o->seed, WINDOWS, sample, o->shuffle);
        assert_int_equal(dataset_window(dataset, window, want, want_targets), STATUS_OK);
        assert_memory_equal(tokens + row * T, want, sizeof want);
        assert_memory_equal(targets + row * T, want_targets, sizeof want_targets);
    }
}

static void check_loader(const LoaderOptions *options, int64_t steps) {
    Loader *loader;
    assert_int_equal(loader_create(&loader, options), STATUS_OK);
    for (int64_t step = 0; step < steps; step++)
        for (int64_t j = 0; j < options->per_rank; j++) {
            const int32_t *tokens, *targets;
            assert_int_equal(loader_next(loader, &tokens, &targets), STATUS_OK);
            check_leaf(options, step, options->leaf[j], tokens, targets);
        }
    loader_destroy(loader);
}

/* 37 windows and steps of 8 samples: batches straddle the ends of epochs. */
static void test_loader_equals_the_direct_computation(void **state) {
    (void)state;
    const int64_t all[] = {0, 1, 2, 3}, second[] = {2, 3}, rounds[] = {1, 3}, one[] = {2};
    const LoaderOptions cases[] = {options_of(all, 4, 4, 0), options_of(second, 2, 4, 0), options_of(rounds, 2, 4, 0),
                                   options_of(one, 1, 4, 0), options_of(all, 4, 4, 24)};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_loader(&cases[i], 12);
}

static void test_unshuffled_batches_straddle_epochs(void **state) {
    (void)state;
    const int64_t leaf[] = {0};
    LoaderOptions options = options_of(leaf, 1, 1, 36);
    options.shuffle = false;
    Loader *loader;
    const int32_t *tokens, *targets;
    assert_int_equal(loader_create(&loader, &options), STATUS_OK);
    assert_int_equal(loader_next(loader, &tokens, &targets), STATUS_OK);
    assert_int_equal(tokens[0], 36 * T); /* the last window of epoch 0 */
    assert_int_equal(tokens[T], 0);      /* the first of epoch 1       */
    assert_int_equal(targets[T - 1], 37 * T);
    loader_destroy(loader);
}

static void test_resuming_needs_one_number(void **state) {
    (void)state;
    const int64_t leaf[] = {0, 1};
    const LoaderOptions whole = options_of(leaf, 2, 2, 0), rest = options_of(leaf, 2, 2, 5 * 2 * B);
    Loader *a, *b;
    const int32_t *tokens_a, *targets_a, *tokens_b, *targets_b;
    assert_int_equal(loader_create(&a, &whole), STATUS_OK);
    assert_int_equal(loader_create(&b, &rest), STATUS_OK);
    for (int i = 0; i < 10; i++)
        assert_int_equal(loader_next(a, &tokens_a, &targets_a), STATUS_OK);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(loader_next(a, &tokens_a, &targets_a), STATUS_OK);
        assert_int_equal(loader_next(b, &tokens_b, &targets_b), STATUS_OK);
        assert_memory_equal(tokens_a, tokens_b, B * T * sizeof *tokens_a);
    }
    loader_destroy(a);
    loader_destroy(b);
}

/* The thread runs ahead; what was handed out must not change under the caller. */
static void test_a_borrowed_leaf_stays_until_the_next_call(void **state) {
    (void)state;
    const int64_t leaf[] = {0};
    const LoaderOptions options = options_of(leaf, 1, 1, 0);
    Loader *loader;
    const int32_t *tokens, *targets;
    assert_int_equal(loader_create(&loader, &options), STATUS_OK);
    for (int64_t step = 0; step < 5; step++) {
        assert_int_equal(loader_next(loader, &tokens, &targets), STATUS_OK);
        (void)usleep(2000); /* time for the thread to do wrong */
        check_leaf(&options, step, 0, tokens, targets);
    }
    loader_destroy(loader);
}

static void test_failures_of_the_thread_reach_the_caller(void **state) {
    (void)state;
    const int64_t leaf[] = {0};
    LoaderOptions options = options_of(leaf, 1, 1, 0);
    Loader *loader;
    const int32_t *tokens, *targets;
    options.dataset = bad_dataset;
    options.shuffle = false;
    assert_int_equal(loader_create(&loader, &options), STATUS_OK);
    assert_int_equal(loader_next(loader, &tokens, &targets), STATUS_OK); /* windows 0, 1 are good */
    for (int i = 0; i < 2; i++) {
        status_trail_clear();
        assert_int_equal(loader_next(loader, &tokens, &targets), STATUS_DATA);
        assert_non_null(strstr(status_trail(), "bad.txt: token 14 (byte 14) has id 200"));
        assert_non_null(strstr(status_trail(), "src/data/"));
    }
    loader_destroy(loader);
}

static void test_a_loader_that_nobody_reads_ends(void **state) {
    (void)state;
    const int64_t leaf[] = {0, 1, 2};
    const LoaderOptions options = options_of(leaf, 3, 3, 0);
    for (int i = 0; i < 100; i++) {
        Loader *loader;
        assert_int_equal(loader_create(&loader, &options), STATUS_OK);
        loader_destroy(loader);
    }
    loader_destroy(NULL);
}

static void test_a_ring_beyond_63_bits_is_refused(void **state) {
    (void)state;
    const int64_t leaf[] = {0};
    LoaderOptions options = options_of(leaf, 1, 1, 0);
    Loader *loader;
    options.B = (int64_t)1 << 31;
    options.T = (int64_t)1 << 31;
    assert_int_equal(loader_create(&loader, &options), STATUS_NO_MEMORY);
    assert_null(loader);
}

static Status open_bytes(Dataset **opened, const char *name, const unsigned char *bytes, size_t nbytes, int64_t vocab) {
    const char *path = scratch_path(dir, name);
    const DatasetOptions options = {
        .pattern = path, .key = "data.train", .format = FORMAT_TEXT, .seq_len = T, .vocab_size = vocab};
    scratch_write_bytes(path, bytes, nbytes);
    return dataset_open(opened, &options, path);
}

static int open_all(void **state) {
    (void)state;
    unsigned char bytes[WINDOWS * T + 1] = {0};
    scratch_create(dir);
    bytes[14] = 200;
    Status status = open_bytes(&bad_dataset, "bad.txt", bytes, 17, 200);
    for (int i = 0; i < WINDOWS * T + 1; i++)
        bytes[i] = (unsigned char)i;
    if (status == STATUS_OK)
        status = open_bytes(&dataset, "good.txt", bytes, sizeof bytes, 256);
    return status == STATUS_OK ? 0 : -1;
}

static int close_all(void **state) {
    (void)state;
    dataset_close(dataset);
    dataset_close(bad_dataset);
    scratch_destroy(dir);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loader_equals_the_direct_computation),
        cmocka_unit_test(test_unshuffled_batches_straddle_epochs),
        cmocka_unit_test(test_resuming_needs_one_number),
        cmocka_unit_test(test_a_borrowed_leaf_stays_until_the_next_call),
        cmocka_unit_test(test_failures_of_the_thread_reach_the_caller),
        cmocka_unit_test(test_a_loader_that_nobody_reads_ends),
        cmocka_unit_test(test_a_ring_beyond_63_bits_is_refused),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
