/* Coordinates, and what is said of a mesh that does not fit. Axes with several ranks: tests/dist. */
#include "mesh/mesh.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void test_ranks_and_coordinates_are_inverse(void **state) {
    (void)state;
    const MeshShape shape = {.replicate = 3, .shard = 4, .tp = 2};
    for (int rank = 0; rank < mesh_size(shape); rank++) {
        const MeshCoord c = mesh_coord(shape, rank);
        assert_in_range(c.replicate, 0, 2);
        assert_in_range(c.shard, 0, 3);
        assert_in_range(c.tp, 0, 1);
        assert_int_equal(mesh_rank(shape, c), rank);
    }
}

static void test_tp_neighbours_are_closest_then_shard_then_replicate(void **state) {
    (void)state;
    const MeshShape shape = {.replicate = 2, .shard = 3, .tp = 4};
    assert_int_equal(mesh_rank(shape, (MeshCoord){0, 0, 1}), 1);
    assert_int_equal(mesh_rank(shape, (MeshCoord){0, 1, 0}), 4);
    assert_int_equal(mesh_rank(shape, (MeshCoord){1, 0, 0}), 12);
}

static World world_of(int size) {
    return (World){.comm = comm_self_create("world"), .rank = 0, .size = size, .host = "here"};
}

static void test_a_mesh_of_one_has_every_axis(void **state) {
    (void)state;
    World world = world_of(1);
    Mesh mesh;
    assert_int_equal(mesh_create(&mesh, (MeshShape){1, 1, 1}, &world), STATUS_OK);
    for (int axis = 0; axis < AXIS_COUNT; axis++) {
        assert_int_equal(comm_size(mesh.axis[axis]), 1);
        assert_int_equal(comm_rank(mesh.axis[axis]), 0);
        assert_string_equal(comm_name(mesh.axis[axis]), axis_name((Axis)axis));
    }
    assert_ptr_equal(mesh.world, world.comm);
    mesh_destroy(&mesh);
    comm_destroy(world.comm);
}

static void expect_refusal(MeshShape shape, int nranks, const char *need, const char *fit) {
    World world = world_of(nranks);
    Mesh mesh;
    assert_int_equal(mesh_create(&mesh, shape, &world), STATUS_CONFIG);
    if (strstr(status_trail(), need) == NULL || strstr(status_trail(), fit) == NULL)
        fail_msg("'%s' does not say '%s' and '%s'", status_trail(), need, fit);
    comm_destroy(world.comm);
}

static void test_a_mesh_that_does_not_fit_is_refused_with_one_that_does(void **state) {
    (void)state;
    unsetenv("SLURM_NTASKS");
    expect_refusal((MeshShape){2, 2, 2}, 6, "needs 8 ranks, but 6", "{replicate: 3, shard: 1, tp: 2}");
    expect_refusal((MeshShape){1, 4, 1}, 8, "needs 4 ranks, but 8", "{replicate: 2, shard: 4, tp: 1}");
    expect_refusal((MeshShape){1, 2, 1}, 1, "needs 2 ranks, but 1", "{replicate: 1, shard: 1, tp: 1}");
}

static void test_slurm_tasks_that_are_worlds_of_one_get_a_hint(void **state) {
    (void)state;
    assert_int_equal(setenv("SLURM_NTASKS", "4", 1), 0);
    expect_refusal((MeshShape){1, 4, 1}, 1, "4 Slurm tasks", "srun --mpi=pmix");
    assert_int_equal(unsetenv("SLURM_NTASKS"), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_and_coordinates_are_inverse),
        cmocka_unit_test(test_tp_neighbours_are_closest_then_shard_then_replicate),
        cmocka_unit_test(test_a_mesh_of_one_has_every_axis),
        cmocka_unit_test(test_a_mesh_that_does_not_fit_is_refused_with_one_that_does),
        cmocka_unit_test(test_slurm_tasks_that_are_worlds_of_one_get_a_hint),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
