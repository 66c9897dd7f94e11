/* The mesh: coordinates by arithmetic, one communicator per axis. */
#include "mesh/mesh.h"

#include <stdlib.h>

#include "base/fatal.h"

const char *axis_name(Axis axis) {
    static const char *const name[AXIS_COUNT] = {
        [AXIS_REPLICATE] = "replicate", [AXIS_SHARD] = "shard", [AXIS_TP] = "tp", [AXIS_DATA] = "data"};
    DM_ASSERT(axis >= 0 && axis < AXIS_COUNT);
    return name[axis];
}

MeshCoord mesh_coord(MeshShape shape, int rank) {
    DM_ASSERT(rank >= 0 && rank < mesh_size(shape));
    return (MeshCoord){
        .replicate = rank / (shape.shard * shape.tp), .shard = rank / shape.tp % shape.shard, .tp = rank % shape.tp};
}

void mesh_print(MeshShape shape, Str *out) {
    const int nranks = mesh_size(shape);
    str_printf(out, "replicate %d x shard %d x tp %d = %d rank%s", shape.replicate, shape.shard, shape.tp, nranks,
               nranks == 1 ? "" : "s");
}

void mesh_write(MeshShape shape, JsonWriter *w) {
    json_begin_object(w, "mesh");
    json_int(w, "replicate", shape.replicate);
    json_int(w, "shard", shape.shard);
    json_int(w, "tp", shape.tp);
    json_end_object(w);
}

static int common_divisor(int a, int b) {
    while (b != 0) {
        const int rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* A mesh of `nranks` that keeps as much of the wanted tp, then of the wanted shard, as divides it. */
static MeshShape mesh_that_fits(MeshShape wanted, int nranks) {
    const int tp = common_divisor(wanted.tp, nranks);
    const int shard = common_divisor(wanted.shard, nranks / tp);
    return (MeshShape){.replicate = nranks / tp / shard, .shard = shard, .tp = tp};
}

static Status check_size(MeshShape shape, int nranks) {
    const int64_t need = (int64_t)shape.replicate * shape.shard * shape.tp;
    if (need == nranks)
        return STATUS_OK;
    const char *ntasks = getenv("SLURM_NTASKS");
    if (nranks == 1 && ntasks != NULL && atoi(ntasks) > 1)
        return STATUS_FAIL(
            STATUS_CONFIG,
            "mesh {replicate: %d, shard: %d, tp: %d} needs %lld ranks, but each of the %s Slurm tasks is an MPI "
            "world of its own: start with mpirun, or with srun --mpi=pmix",
            shape.replicate, shape.shard, shape.tp, (long long)need, ntasks);
    const MeshShape fit = mesh_that_fits(shape, nranks);
    return STATUS_FAIL(
        STATUS_CONFIG,
        "mesh {replicate: %d, shard: %d, tp: %d} needs %lld ranks, but %d were started: start %lld, or set mesh: "
        "{replicate: %d, shard: %d, tp: %d}",
        shape.replicate, shape.shard, shape.tp, (long long)need, nranks, (long long)need, fit.replicate, fit.shard,
        fit.tp);
}

Status mesh_create(Mesh *mesh, MeshShape shape, World *world) {
    DM_ASSERT(shape.replicate >= 1 && shape.shard >= 1 && shape.tp >= 1);
    TRY(check_size(shape, world->size));
    const MeshCoord at = mesh_coord(shape, world->rank);
    *mesh = (Mesh){.shape = shape, .coord = at, .world = world->comm};
    const struct {
        int color, key;
    } split[AXIS_COUNT] = {[AXIS_REPLICATE] = {at.shard * shape.tp + at.tp, at.replicate},
                           [AXIS_SHARD] = {at.replicate * shape.tp + at.tp, at.shard},
                           [AXIS_TP] = {at.replicate * shape.shard + at.shard, at.tp},
                           [AXIS_DATA] = {at.tp, at.replicate * shape.shard + at.shard}};
    for (int axis = 0; axis < AXIS_COUNT; axis++)
        TRY(comm_split(world->comm, axis_name((Axis)axis), split[axis].color, split[axis].key, &mesh->axis[axis]));
    return STATUS_OK;
}

void mesh_destroy(Mesh *mesh) {
    for (int axis = 0; axis < AXIS_COUNT; axis++)
        comm_destroy(mesh->axis[axis]);
    *mesh = (Mesh){0};
}
