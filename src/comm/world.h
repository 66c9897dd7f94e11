/* MPI's life: init with MPI_THREAD_MULTIPLE, the error handler, the abort hook, sub-communicators, finalize. */
#ifndef DMUON_COMM_WORLD_H
#define DMUON_COMM_WORLD_H

#include "comm/comm.h"

typedef struct World {
    Comm *comm; /* owned; "world"                                  */
    int rank, size;
    int local_rank; /* among the ranks of this node                    */
    int local_size;
    char host[128];
    char *hosts; /* owned; world.size names of 128 bytes, by rank   */
} World;

typedef struct CommOptions {
    double timeout_s; /* watchdog of every wait                          */
} CommOptions;

/* Installs the error handler, fatal's hook (MPI_Abort) and log's root. After it no failure leaves MPI unfinalised:
 * world_finalize. */
DM_NODISCARD Status world_init(World *world, int *argc, char ***argv);
/* Applies the options that come from the configuration. */
void world_set_options(World *world, const CommOptions *options);
/* All ranks meet, then MPI_Finalize. Nothing but the return from main follows it. */
void world_finalize(World *world);

/* What comm.transport means on a device backend: *name becomes "mpi" or "nccl". STATUS_CONFIG when it cannot be. */
DM_NODISCARD Status transport_choose(const char *asked, const char *backend, const char **name);
/* All collectives on streams of `device` go this way from here on. */
void transport_use(const char *name, Device *device);
/* Waits for the streams and closes what comm_prepare made. Collective over the world; before the device and the
 * communicators end. */
void transport_end(Device *device);

/* The ranks that bring the same `color`, ordered by `key`; `name` is copied. Collective over world. */
DM_NODISCARD Status comm_split(Comm *parent, const char *name, int color, int key, Comm **out);
void comm_destroy(Comm *comm);
/* A communicator of this rank alone, without MPI: unit tests, tools. */
Comm *comm_self_create(const char *name);

/* The step that error lines name. */
void comm_set_step(int64_t step);

/* Tests only: the n-th collective from now on with this operation is dropped (its buffers are left as
 * they are, a reduce or gather still copies the local part). -1: none. */
void comm_debug_drop(CommOp op, int64_t nth);

#endif
