/* Communicators of one rank do the local copy and nothing else; the tree that all sums follow. */
#include "comm/comm.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "comm/collective.h"
#include "comm/world.h"
#include "tests/unit/death.h"

#define N 2000

static Comm *comm;
static Device *device;
static float src[N], dst[N];

static int open_device(void **state) {
    (void)state;
    comm = comm_self_create("shard");
    for (int i = 0; i < N; i++)
        src[i] = (float)i;
    return device_create(&device, &(DeviceOptions){.name = "cpu", .threads = 1}) == STATUS_OK ? 0 : -1;
}

static int close_device(void **state) {
    (void)state;
    device_destroy(device);
    comm_destroy(comm);
    return 0;
}

static const CommTag tag = {.what = "test", .unit = -1, .payload = 8000};

static void expect_copy(Stream *stream, const char *what) {
    stream_sync(stream);
    if (memcmp(src, dst, sizeof src) != 0)
        fail_msg("%s is not a copy", what);
    memset(dst, 0, sizeof dst);
}

static void test_every_collective_of_one_rank_is_a_copy(void **state) {
    (void)state;
    for (int kind = 0; kind < STREAM_COUNT; kind++) {
        Stream *stream = device_stream(device, (StreamKind)kind);
        comm_reduce(comm, stream, src, dst, N, DTYPE_F32, 0, tag);
        expect_copy(stream, "reduce");
        comm_all_reduce(comm, stream, src, dst, N, DTYPE_F32, tag);
        expect_copy(stream, "all_reduce");
        comm_reduce_scatter(comm, stream, src, dst, N, DTYPE_F32, tag);
        expect_copy(stream, "reduce_scatter");
        comm_all_gather(comm, stream, src, dst, N, DTYPE_F32, tag);
        expect_copy(stream, "all_gather");
        comm_gather(comm, stream, src, dst, N, DTYPE_F32, 0, tag);
        expect_copy(stream, "gather");
        comm_scatter(comm, stream, src, dst, N, DTYPE_F32, 0, tag);
        expect_copy(stream, "scatter");
        memcpy(dst, src, sizeof dst);
        comm_broadcast(comm, stream, dst, N, DTYPE_F32, 0, tag);
        expect_copy(stream, "broadcast");
    }
}

static void test_one_rank_counts_nothing(void **state) {
    (void)state;
    CommCount counts[COMM_OP_COUNT];
    comm_all_reduce(comm, device_stream(device, STREAM_COMPUTE), src, dst, N, DTYPE_F32, tag);
    comm_take_counts(comm, counts);
    for (int op = 0; op < COMM_OP_COUNT; op++)
        assert_true(counts[op].calls == 0 && counts[op].payload_bytes == 0 && counts[op].bus_bytes == 0);
}

static void test_host_calls_of_one_rank_keep_the_values(void **state) {
    (void)state;
    uint64_t u = 7;
    double x = -2.5, y = -3.5;
    char word[] = "word", copy[sizeof word];
    host_sum_u64(comm, &u, 1);
    host_sum_f64(comm, &x, 1);
    host_max_f64(comm, &y, 1);
    host_broadcast(comm, word, sizeof word, 0);
    host_all_gather(comm, word, copy, sizeof word);
    host_barrier(comm);
    assert_true(u == 7 && x == -2.5 && y == -3.5);
    assert_string_equal(copy, "word");
}

static void test_agreement_of_one_rank_is_its_own_outcome(void **state) {
    (void)state;
    assert_int_equal(comm_agree(comm, STATUS_OK), STATUS_OK);
    assert_int_equal(comm_agree(comm, STATUS_FAIL(STATUS_DATA, "no such file")), STATUS_DATA);
    assert_int_equal(strncmp(status_trail(), "no such file", 12), 0);
}

static void test_splitting_one_rank_gives_one_rank(void **state) {
    (void)state;
    Comm *part = NULL;
    assert_int_equal(comm_split(comm, "tp", 3, 0, &part), STATUS_OK);
    assert_int_equal(comm_size(part), 1);
    assert_string_equal(comm_name(part), "tp");
    comm_destroy(part);
}

static void test_a_dropped_collective_of_one_rank_still_copies(void **state) {
    (void)state;
    Stream *stream = device_stream(device, STREAM_COMPUTE);
    comm_debug_drop(COMM_REDUCE, 0);
    comm_reduce(comm, stream, src, dst, N, DTYPE_F32, 0, tag);
    comm_debug_drop(COMM_REDUCE, -1);
    expect_copy(stream, "reduce");
}

static float tree_of(const float *x, int n) {
    if (n == 1)
        return x[0];
    int left = 1;
    while (2 * left < n)
        left *= 2;
    return tree_of(x, left) + tree_of(x + left, n - left);
}

static void test_tree_sum_splits_at_the_largest_power_of_two_below(void **state) {
    (void)state;
    static float part[40][N], sum[N];
    const void *at[40];
    for (int r = 0; r < 40; r++)
        for (int i = 0; i < N; i++) {
            const uint64_t bits = hash_mix64((uint64_t)r * N + (uint64_t)i);
            part[r][i] = ldexpf((float)(int32_t)(bits >> 32), (int)(bits % 41) - 20);
            at[r] = part[r];
        }
    for (int count = 1; count <= 40; count++) {
        tree_sum(DTYPE_F32, sum, at, count, N);
        for (int i = 0; i < N; i++) {
            float column[40];
            for (int r = 0; r < count; r++)
                column[r] = part[r][i];
            assert_true(sum[i] == tree_of(column, count));
        }
    }
    /* In place of any part. */
    for (int r = 0; r < 5; r++) {
        float kept[N];
        memcpy(kept, part[r], sizeof kept);
        tree_sum(DTYPE_F32, sum, at, 5, N);
        tree_sum(DTYPE_F32, part[r], at, 5, N);
        assert_memory_equal(part[r], sum, sizeof sum);
        memcpy(part[r], kept, sizeof kept);
    }
}

static void test_tree_sum_of_counts_wraps(void **state) {
    (void)state;
    const uint64_t a = UINT64_MAX, b = 3, c = 5;
    const void *part[] = {&a, &b, &c};
    uint64_t sum = 0;
    tree_sum(DTYPE_U64, &sum, part, 3, 1);
    assert_true(sum == 7);
}

static void reduce_bytes(void *arg) {
    (void)arg;
    comm_reduce(comm, device_stream(device, STREAM_COMPUTE), src, dst, 4, DTYPE_U8, 0, tag);
}

static void reduce_to_nobody(void *arg) {
    (void)arg;
    comm_reduce(comm, device_stream(device, STREAM_COMPUTE), src, dst, 4, DTYPE_F32, 1, tag);
}

static void test_misuse_is_a_bug(void **state) {
    (void)state;
    char text[512];
    assert_int_equal(death_run(reduce_bytes, NULL, text, sizeof text), 6);
    assert_non_null(strstr(text, "DTYPE_F32"));
    assert_int_equal(death_run(reduce_to_nobody, NULL, text, sizeof text), 6);
    assert_non_null(strstr(text, "run.root"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_collective_of_one_rank_is_a_copy),
        cmocka_unit_test(test_one_rank_counts_nothing),
        cmocka_unit_test(test_host_calls_of_one_rank_keep_the_values),
        cmocka_unit_test(test_agreement_of_one_rank_is_its_own_outcome),
        cmocka_unit_test(test_splitting_one_rank_gives_one_rank),
        cmocka_unit_test(test_a_dropped_collective_of_one_rank_still_copies),
        cmocka_unit_test(test_tree_sum_splits_at_the_largest_power_of_two_below),
        cmocka_unit_test(test_tree_sum_of_counts_wraps),
        cmocka_unit_test(test_misuse_is_a_bug),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
