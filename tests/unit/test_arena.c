/* Arenas: alignment, measuring, rewinding, and the refusal to hand out what is not there. */
#include "base/arena.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/death.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

/* A layout as the rooms write them. */
typedef struct Layout {
    char *odd;
    float *floats;
    void *nothing;
    double *doubles;
} Layout;

static void lay_out(Layout *layout, Arena *arena) {
    layout->odd = ARENA_PUSH(arena, char, 65);
    layout->floats = ARENA_PUSH(arena, float, 16);
    layout->nothing = arena_push(arena, 0);
    layout->doubles = ARENA_PUSH(arena, double, 1);
}

static void test_measuring_gives_the_size_that_placing_needs(void **state) {
    (void)state;
    Arena measure = {0};
    Layout layout;
    lay_out(&layout, &measure);
    assert_int_equal(measure.used, 128 + 64 + 64);
    assert_int_equal(measure.high, measure.used);
    assert_null(layout.odd);
    assert_null(layout.doubles);

    Arena run;
    assert_int_equal(arena_init(&run, measure.used, "test"), STATUS_OK);
    lay_out(&layout, &run);
    assert_int_equal(run.used, measure.used);
    assert_ptr_equal(layout.odd, run.base);
    assert_ptr_equal(layout.floats, run.base + 128);
    assert_ptr_equal(layout.nothing, run.base + 192);
    assert_ptr_equal(layout.doubles, run.base + 192);
    arena_deinit(&run);
    assert_null(run.base);
}

static void test_blocks_are_aligned_and_fresh_pages_are_zero(void **state) {
    (void)state;
    Arena arena;
    assert_int_equal(arena_init(&arena, 100000, "test"), STATUS_OK);
    for (size_t size = 1; size < 300; size += 7) {
        const unsigned char *block = arena_push(&arena, size);
        assert_int_equal((uintptr_t)block % ARENA_ALIGN, 0);
        for (size_t i = 0; i < size; i++)
            assert_int_equal(block[i], 0);
    }
    arena_deinit(&arena);
}

static void test_rewind_gives_the_same_place_again_and_keeps_the_high_water_mark(void **state) {
    (void)state;
    Arena arena;
    assert_int_equal(arena_init(&arena, 4096, "test"), STATUS_OK);
    (void)arena_push(&arena, 64);
    const size_t mark = arena_mark(&arena);
    char *first = arena_push(&arena, 1000);
    memset(first, 7, 1000);
    arena_rewind(&arena, mark);
    assert_int_equal(arena.used, mark);
    assert_int_equal(arena.high, 64 + 1024);
    assert_ptr_equal(arena_push(&arena, 100), first);
    assert_int_equal(arena.high, 64 + 1024);
    arena_deinit(&arena);
}

static void test_an_empty_arena_places_rather_than_measures(void **state) {
    (void)state;
    Arena arena;
    assert_int_equal(arena_init(&arena, 0, "test"), STATUS_OK);
    assert_non_null(arena_push(&arena, 0));
    arena_deinit(&arena);
}

static void test_more_memory_than_there_is_fails_and_names_the_bytes(void **state) {
    (void)state;
    Arena arena;
    const size_t huge = (size_t)1 << 46;
    assert_int_equal(arena_init(&arena, huge, "optimizer state"), STATUS_NO_MEMORY);
    assert_non_null(strstr(status_trail(), "optimizer state: 70368744177664 bytes do not fit, "));
    assert_non_null(strstr(status_trail(), " bytes of memory are available"));
    assert_null(arena.base);
    assert_int_equal(arena_init(&arena, SIZE_MAX - 5, "plan"), STATUS_NO_MEMORY);
}

static void overrun(void *arg) {
    (void)arg;
    Arena arena;
    if (arena_init(&arena, 256, "test") != STATUS_OK)
        return;
    (void)arena_push(&arena, 200);
    (void)arena_push(&arena, 1);
}

static void test_running_over_ends_the_process_with_the_numbers(void **state) {
    (void)state;
    char text[512];
    assert_int_equal(death_run(overrun, NULL, text, sizeof text), 6);
    assert_non_null(strstr(text, "arena of 256 bytes has 256 in use and is asked for 1 more"));
}

static void test_a_block_may_fill_a_capacity_that_is_not_a_multiple_of_64(void **state) {
    (void)state;
    char block[100] __attribute__((aligned(64)));
    Arena arena = {.base = block, .capacity = sizeof block};
    memset(arena_push(&arena, 100), 1, 100);
    assert_int_equal(arena.used, 128);
    arena_rewind(&arena, 0);
#ifdef __SANITIZE_ADDRESS__
    __asan_unpoison_memory_region(block, sizeof block);
#endif
}

static void test_heap_blocks_are_zeroed_and_zero_bytes_are_a_block(void **state) {
    (void)state;
    unsigned char *block = heap_alloc(1000);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(block[i], 0);
    heap_free(block);
    void *empty = heap_alloc(0);
    assert_non_null(empty);
    heap_free(empty);
    heap_free(NULL);
    char *copy = heap_strdup("text");
    assert_string_equal(copy, "text");
    heap_free(copy);
}

#ifdef __SANITIZE_ADDRESS__
static void test_gaps_the_tail_and_what_was_rewound_are_poisoned(void **state) {
    (void)state;
    Arena arena;
    assert_int_equal(arena_init(&arena, 4096, "test"), STATUS_OK);
    char *block = arena_push(&arena, 100);
    assert_false(__asan_address_is_poisoned(block + 99));
    assert_true(__asan_address_is_poisoned(block + 104));
    assert_true(__asan_address_is_poisoned(block + 128));
    char *next = arena_push(&arena, 8);
    assert_ptr_equal(next, block + 128);
    assert_false(__asan_address_is_poisoned(next));
    assert_true(__asan_address_is_poisoned(block + 127));
    arena_rewind(&arena, 0);
    assert_true(__asan_address_is_poisoned(block));
    arena_deinit(&arena);
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_measuring_gives_the_size_that_placing_needs),
        cmocka_unit_test(test_blocks_are_aligned_and_fresh_pages_are_zero),
        cmocka_unit_test(test_rewind_gives_the_same_place_again_and_keeps_the_high_water_mark),
        cmocka_unit_test(test_an_empty_arena_places_rather_than_measures),
        cmocka_unit_test(test_more_memory_than_there_is_fails_and_names_the_bytes),
        cmocka_unit_test(test_running_over_ends_the_process_with_the_numbers),
        cmocka_unit_test(test_a_block_may_fill_a_capacity_that_is_not_a_multiple_of_64),
        cmocka_unit_test(test_heap_blocks_are_zeroed_and_zero_bytes_are_a_block),
#ifdef __SANITIZE_ADDRESS__
        cmocka_unit_test(test_gaps_the_tail_and_what_was_rewound_are_poisoned),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
