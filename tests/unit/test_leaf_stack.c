/* The binary counter over leaves: the tree of the definition, in the memory it promises. */
#include "tests/unit/bits.h"

#include <stdlib.h>

#include "optim/clip.h"
#include "parallel/leaf_stack.h"
#include "parallel/plan.h"

enum { LEAVES_MAX = 17, NELEM = 37 };

typedef struct Fixture {
    Device *device;
    Stream *stream;
    Arena arena;
    LeafStack stack;
    float leaf[LEAVES_MAX][NELEM];
} Fixture;

/* Magnitudes over twelve decades and both signs: every order of additions gives other bits. */
static void fill_leaves(Fixture *f) {
    uint64_t x = 12345;
    for (int i = 0; i < LEAVES_MAX; i++)
        for (int e = 0; e < NELEM; e++) {
            x = x * 6364136223846793005ULL + 1442695040888963407ULL;
            const double mantissa = (double)(int64_t)(x >> 11) / 9007199254740992.0 - 0.5;
            f->leaf[i][e] = (float)ldexp(mantissa, (int)((x >> 3) % 24));
        }
}

static void fixture_init(Fixture *f, int64_t leaves) {
    const DeviceOptions options = {.name = "cpu", .threads = 1};
    *f = (Fixture){0};
    assert_int_equal(device_create(&f->device, &options), STATUS_OK);
    f->stream = device_stream(f->device, STREAM_COMPUTE);
    leaf_stack_layout(&f->stack, &f->arena, NELEM, leaves);
    assert_null(f->stack.base);
    const size_t nbytes = f->arena.used;
    assert_int_equal(device_arena_init(f->device, &f->arena, nbytes, "leaves"), STATUS_OK);
    leaf_stack_layout(&f->stack, &f->arena, NELEM, leaves);
    fill_leaves(f);
}

static void fixture_deinit(Fixture *f) {
    device_arena_deinit(f->device, &f->arena);
    device_destroy(f->device);
}

/* One step; gives the most rows that were in use. */
static int run_step(Fixture *f, int64_t leaves) {
    int most = 0;
    for (int64_t i = 0; i < leaves; i++) {
        if (f->stack.used + 1 > most)
            most = f->stack.used + 1;
        memcpy(leaf_stack_next(&f->stack), f->leaf[i], sizeof f->leaf[i]);
        leaf_stack_push(&f->stack, f->stream);
        assert_int_equal(f->stack.count, i + 1);
    }
    leaf_stack_fold(&f->stack, f->stream);
    assert_int_equal(f->stack.used, 0);
    assert_int_equal(f->stack.count, 0);
    return most;
}

static void expect_tree(const Fixture *f, int64_t leaves) {
    float expected[NELEM], column[LEAVES_MAX];
    for (int e = 0; e < NELEM; e++) {
        for (int64_t i = 0; i < leaves; i++)
            column[i] = f->leaf[i][e];
        expected[e] = clip_tree_f32(column, leaves);
    }
    assert_bits_equal_f32(f->stack.base, expected, NELEM, "sum over leaves");
}

static void test_sum_has_the_bits_of_the_tree_over_the_leaves(void **state) {
    (void)state;
    for (int64_t leaves = 1; leaves <= LEAVES_MAX; leaves++) {
        Fixture f;
        fixture_init(&f, leaves);
        run_step(&f, leaves);
        expect_tree(&f, leaves);
        fixture_deinit(&f);
    }
}

/* The twin: the data tells orders apart. */
static void test_another_order_of_the_same_leaves_has_other_bits(void **state) {
    (void)state;
    Fixture f;
    fixture_init(&f, LEAVES_MAX);
    for (int64_t leaves = 3; leaves <= LEAVES_MAX; leaves++) {
        int different = 0;
        for (int e = 0; e < NELEM; e++) {
            float column[LEAVES_MAX], chain = 0.0F;
            for (int64_t i = 0; i < leaves; i++) {
                column[i] = f.leaf[i][e];
                chain = i == 0 ? f.leaf[0][e] : f.leaf[i][e] + chain;
            }
            different += bits_of_f32(clip_tree_f32(column, leaves)) != bits_of_f32(chain);
        }
        if (leaves > 3)
            assert_true(different > 0); /* a tree over three leaves is the chain */
        else
            assert_int_equal(different, 0);
    }
    fixture_deinit(&f);
}

static void test_depth_is_the_number_of_binary_digits_and_is_reached(void **state) {
    (void)state;
    for (int64_t leaves = 1; leaves <= LEAVES_MAX; leaves++) {
        Fixture f;
        int digits = 0;
        for (int64_t n = leaves; n > 0; n >>= 1)
            digits++;
        fixture_init(&f, leaves);
        assert_int_equal(plan_stack_depth(leaves), digits);
        assert_int_equal(f.stack.depth, digits);
        assert_int_equal(run_step(&f, leaves), digits);
        assert_true(f.arena.used >= (size_t)digits * NELEM * sizeof(float));
        fixture_deinit(&f);
    }
}

static void test_a_second_step_starts_from_nothing(void **state) {
    (void)state;
    for (int64_t leaves = 1; leaves <= LEAVES_MAX; leaves++) {
        Fixture f;
        fixture_init(&f, leaves);
        run_step(&f, leaves);
        for (int64_t i = 0; i < leaves; i++)
            for (int e = 0; e < NELEM; e++)
                f.leaf[i][e] *= 3.0F;
        run_step(&f, leaves);
        expect_tree(&f, leaves);
        fixture_deinit(&f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sum_has_the_bits_of_the_tree_over_the_leaves),
        cmocka_unit_test(test_another_order_of_the_same_leaves_has_other_bits),
        cmocka_unit_test(test_depth_is_the_number_of_binary_digits_and_is_reached),
        cmocka_unit_test(test_a_second_step_starts_from_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
