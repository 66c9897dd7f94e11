/* MPI's life, and how communicators come to be. */
#include "comm/world.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <mpi.h>

#include "base/arena.h"
#include "base/fatal.h"
#include "base/log.h"
#include "base/str.h"
#include "comm/collective.h"
#include "comm/flight.h"
#include "comm/queued.h"
#include "comm/rollcall.h"
#include "comm/watchdog.h"

#define HOST_BYTES 128

static MPI_Errhandler error_handler;
static int identity_rank;
static char identity_host[HOST_BYTES] = "localhost";
static const char *all_hosts; /* borrowed from the World */

void comm_identity(int *rank, const char **host) {
    *rank = identity_rank;
    *host = identity_host;
}

const char *comm_host(int rank) {
    return all_hosts != NULL ? all_hosts + (ptrdiff_t)rank * HOST_BYTES : "?";
}

/* MPI passes further arguments that depend on the implementation. */
static void on_mpi_error(MPI_Comm *comm, int *code, ...) {
    char name[MPI_MAX_OBJECT_NAME] = "?", text[MPI_MAX_ERROR_STRING] = "?", what[512];
    int length;
    MPI_Comm_get_name(*comm, name, &length);
    MPI_Error_string(*code, text, &length);
    watch_describe(what, sizeof what);
    fatal("MPI error on communicator '%s': %s (%s)", name, text, what);
}

static void abort_job(int exit_code) {
    int initialized = 0, finalized = 0;
    flight_failed();
    queued_abort();
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    if (initialized && !finalized)
        MPI_Abort(MPI_COMM_WORLD, exit_code);
}

static void find_identity(World *world) {
    if (gethostname(world->host, sizeof world->host - 1) != 0)
        str_format(world->host, sizeof world->host, "unknown");
    MPI_Comm_rank(MPI_COMM_WORLD, &world->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world->size);
    identity_rank = world->rank;
    memcpy(identity_host, world->host, sizeof identity_host);
    fatal_set_identity(world->size > 1 ? world->rank : -1, world->host);
    fatal_set_hook(abort_job);
    log_set(LOG_INFO, world->rank == 0);
}

static void find_neighbours(World *world) {
    MPI_Comm node;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, world->rank, MPI_INFO_NULL, &node);
    MPI_Comm_rank(node, &world->local_rank);
    MPI_Comm_size(node, &world->local_size);
    MPI_Comm_free(&node);
    world->hosts = heap_alloc((size_t)world->size * HOST_BYTES);
    host_all_gather(world->comm, world->host, world->hosts, HOST_BYTES);
    all_hosts = world->hosts;
}

/* The channels of a communicator whose host channel is there. */
static Comm *comm_wrap(const char *name, Channel *host) {
    Comm *comm = comm_self_create(name);
    comm->rank = channel_rank(host);
    comm->size = channel_size(host);
    if (comm->size == 1) {
        channel_destroy(host);
        return comm;
    }
    comm->channel[COMM_HOST] = host;
    for (int kind = 0; kind < STREAM_COUNT; kind++)
        comm->channel[kind] = channel_duplicate(host, name);
    comm->leader = channel_world_rank(host, 0);
    comm_register(comm);
    return comm;
}

Status world_init(World *world, int *argc, char ***argv) {
    int provided = MPI_THREAD_SINGLE;
    *world = (World){0};
    MPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, &provided);
    if (provided < MPI_THREAD_MULTIPLE) {
        MPI_Finalize();
        return STATUS_FAIL(STATUS_CONFIG,
                           "this MPI library gives thread level %d, but MPI_THREAD_MULTIPLE (%d) is needed: "
                           "use an Open MPI that was built with it",
                           provided, MPI_THREAD_MULTIPLE);
    }
    MPI_Comm_create_errhandler(on_mpi_error, &error_handler);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, error_handler); /* communicators made from it inherit the handler */
    MPI_Comm_set_errhandler(MPI_COMM_SELF, error_handler);
    find_identity(world);
    world->comm = comm_wrap("world", channel_world("world"));
    find_neighbours(world);
    rollcall_open(world->size);
    return STATUS_OK;
}

void world_set_options(World *world, const CommOptions *options) {
    DM_ASSERT(world->comm != NULL);
    watch_set_timeout(options->timeout_s);
}

void world_finalize(World *world) {
    host_barrier(world->comm);
    rollcall_close();
    comm_destroy(world->comm);
    all_hosts = NULL;
    heap_free(world->hosts);
    *world = (World){0};
    MPI_Errhandler_free(&error_handler);
    MPI_Finalize();
}

Comm *comm_self_create(const char *name) {
    Comm *comm = HEAP_ALLOC(Comm, 1);
    comm->size = 1;
    str_format(comm->name, sizeof comm->name, "%s", name);
    return comm;
}

Status comm_split(Comm *parent, const char *name, int color, int key, Comm **out) {
    DM_ASSERT(color >= 0);
    if (strlen(name) >= sizeof parent->name)
        return STATUS_FAIL(STATUS_CONFIG, "communicator name '%s' is longer than %zu characters", name,
                           sizeof parent->name - 1);
    if (parent->size == 1) {
        *out = comm_self_create(name);
        return STATUS_OK;
    }
    host_barrier(parent); /* wait for late ranks here, asleep and with a deadline; MPI's own calls spin */
    *out = comm_wrap(name, channel_split(parent->channel[COMM_HOST], name, color, key));
    return STATUS_OK;
}

void comm_destroy(Comm *comm) {
    if (comm == NULL)
        return;
    comm_forget(comm);
    for (int kind = 0; kind < COMM_CHANNELS; kind++)
        channel_destroy(comm->channel[kind]);
    heap_free(comm);
}
