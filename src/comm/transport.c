/* Choosing the transport, and the links of communicators. */
#include "comm/transport.h"

#include <string.h>

#include "base/fatal.h"
#include "comm/queued.h"
#include "comm/world.h"

/* Between the memories of devices; what this program was built with. */
static const Transport *const transports[] = {
#ifdef DM_CUDA
    &transport_nccl,
#endif
    NULL,
};

static const Transport *in_use;

const Transport *transport_in_use(void) {
    return in_use;
}

static const Transport *find(const char *name) {
    for (int i = 0; transports[i] != NULL; i++)
        if (strcmp(transports[i]->name, name) == 0)
            return transports[i];
    return NULL;
}

Status transport_choose(const char *asked, const char *backend, const char **name) {
    const bool gpu = strcmp(backend, "cuda") == 0;
    *name = strcmp(asked, "auto") != 0 ? asked : gpu ? "nccl" : "mpi";
    if (strcmp(*name, "nccl") == 0 && !gpu)
        return STATUS_FAIL(STATUS_CONFIG,
                           "comm.transport: nccl moves the memory of GPUs, and this run is on device %s: leave it at "
                           "auto, or set comm.transport: mpi",
                           backend);
    if (strcmp(*name, "mpi") != 0 && find(*name) == NULL)
        return STATUS_FAIL(STATUS_CONFIG, "comm.transport: %s is not built into this program (`make CUDA=1` adds it)",
                           *name);
    return STATUS_OK;
}

void transport_use(const char *name, Device *device) {
    in_use = find(name);
    if (in_use != NULL)
        device_set_pause(device, queued_pause, NULL);
}

void comm_prepare(Comm *comm, Stream *stream) {
    const StreamKind kind = stream_kind(stream);
    if (in_use != NULL && comm->size > 1 && comm->link[kind] == NULL)
        comm->link[kind] = in_use->open(comm, stream);
}

static void close_links(Comm *comm) {
    for (int kind = 0; kind < STREAM_COUNT; kind++) {
        if (comm->link[kind] != NULL)
            in_use->close(comm->link[kind]);
        comm->link[kind] = NULL;
    }
}

void transport_end(Device *device) {
    if (in_use == NULL)
        return;
    for (int kind = 0; kind < STREAM_COUNT; kind++)
        stream_sync(device_stream(device, (StreamKind)kind));
    queued_end();
    for (Comm *comm = comm_first(); comm != NULL; comm = comm->next)
        close_links(comm);
    device_set_pause(device, NULL, NULL);
    in_use = NULL;
}
