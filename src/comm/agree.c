/* One rank's failure becomes everyone's, with that rank's words. */
#include "comm/comm.h"

#include <string.h>

#include "base/arena.h"
#include "base/fatal.h"
#include "base/str.h"
#include "comm/collective.h"

static int lowest_failing(Comm *comm, Status local, Status *theirs) {
    const int32_t mine = (int32_t)local;
    int32_t *all = HEAP_ALLOC(int32_t, comm->size);
    host_all_gather(comm, &mine, all, (int64_t)sizeof mine);
    int failing = -1;
    for (int r = comm->size - 1; r >= 0; r--)
        if (all[r] != (int32_t)STATUS_OK)
            failing = r;
    *theirs = failing >= 0 ? (Status)all[failing] : STATUS_OK;
    heap_free(all);
    return failing;
}

Status comm_agree(Comm *comm, Status local) {
    if (comm->size == 1)
        return local;
    Status status;
    const int failing = lowest_failing(comm, local, &status);
    if (failing < 0)
        return STATUS_OK;
    Str words = {0};
    if (failing == comm->rank) {
        int rank;
        const char *host;
        comm_identity(&rank, &host);
        str_printf(&words, "rank %d (%s): %s", rank, host, status_trail());
    }
    uint64_t nbytes = words.len;
    host_broadcast(comm, &nbytes, (int64_t)sizeof nbytes, failing);
    char *text = failing == comm->rank ? words.text : heap_alloc((size_t)nbytes + 1);
    host_broadcast(comm, text, (int64_t)nbytes, failing);
    if (failing != comm->rank) {
        status_trail_set(text);
        heap_free(text);
    }
    str_deinit(&words);
    return status;
}
