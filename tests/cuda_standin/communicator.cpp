/* Stand-in for libnccl.so.2: making, splitting and closing communicators. */
#include <stdio.h>
#include <sys/random.h>

#include "communicator.h"
#include "transfer.h"

using namespace standin;

STANDIN_API ncclResult_t ncclGetVersion(int *version) {
    NCCL_CALL(ncclInternalError);
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

STANDIN_API ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    NCCL_CALL(ncclSystemError);
    unsigned long long number = 0;
    if (getrandom(&number, sizeof number, 0) != sizeof number)
        return ncclSystemError;
    *id = {};
    snprintf(id->internal, sizeof id->internal, "/%s%016llx", SHARED_PREFIX, number);
    sweep_abandoned();
    return ncclSuccess;
}

static bool has_met(ncclComm *comm) {
    if (!comm->met && comm->shared->arrived() >= comm->size) {
        comm->met = true;
        comm->shared->forget_name();
    }
    return comm->met;
}

/* Waits for something that the other ranks do, with the lock given up. */
template <class Done> static void wait_for_ranks(Done done, const char *api, const char *what) {
    const double since_s = now_s();
    while (!done()) {
        if (now_s() - since_s > settings().hang_s)
            fault("%s: %s for %.0f s", api, what, settings().hang_s);
        lock_sleep(200);
    }
}

static ncclResult_t comm_open(ncclComm **out, const std::string &name, int size, int rank, bool blocking) {
    ncclComm *comm = new ncclComm{};
    comm->size = size;
    comm->rank = rank;
    comm->name = name;
    comm->shared = std::make_unique<Shared>(name, size, rank, current_device());
    if (!comm->shared->is_open()) {
        delete comm;
        note_error("ncclCommInitRank");
        return ncclSystemError;
    }
    leak_count("communicators", 1);
    *out = comm;
    if (!blocking)
        return has_met(comm) ? ncclSuccess : ncclInProgress;
    wait_for_ranks([comm] { return has_met(comm); }, "ncclCommInitRank", "not all ranks have come");
    if (comm->shared->devices_differ())
        return ncclSuccess;
    note_error("ncclCommInitRank"); /* NCCL takes one rank per GPU */
    return ncclInvalidUsage;
}

static bool is_blocking(const ncclConfig_t *config) {
    return config == nullptr || config->blocking != 0; /* undefined: blocking */
}

ncclResult_t standin::check_ranks(int size, int rank, const char *api) {
    if (rank >= 0 && rank < size)
        return ncclSuccess;
    note_error(api);
    return ncclInvalidArgument;
}

STANDIN_API ncclResult_t ncclCommInitRank(ncclComm_t *comm, int size, ncclUniqueId id, int rank) {
    NCCL_CALL(ncclSystemError);
    if (check_ranks(size, rank, __func__) != ncclSuccess)
        return ncclInvalidArgument;
    return comm_open(comm, id.internal, size, rank, true);
}

STANDIN_API ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int size, ncclUniqueId id, int rank,
                                                ncclConfig_t *config) {
    NCCL_CALL(ncclSystemError);
    if (check_ranks(size, rank, __func__) != ncclSuccess)
        return ncclInvalidArgument;
    return comm_open(comm, id.internal, size, rank, is_blocking(config));
}

void standin::check_comm(ncclComm *comm, const char *api) {
    if (comm == nullptr || comm->shared == nullptr)
        fault("%s: the communicator was destroyed, or is none", api);
    if (!has_met(comm))
        fault("%s: the communicator's ranks have not all come yet", api);
}

/* All ranks offer colour and key; nobody offers for the next split before all have read this one's. */
STANDIN_API ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *out, ncclConfig_t *config) {
    NCCL_CALL(ncclSystemError);
    check_comm(comm, __func__);
    const int round = ++comm->nsplits;
    Shared *shared = comm->shared.get();
    const auto all = [comm, shared](std::atomic<int> SplitSlot::*counter, int least) {
        for (int r = 0; r < comm->size; r++) {
            if ((shared->split_slot(r)->*counter).load() < least)
                return false;
        }
        return true;
    };
    wait_for_ranks([&] { return all(&SplitSlot::seen, round - 1); }, __func__, "not all ranks have come");
    SplitSlot *mine = shared->split_slot(comm->rank);
    mine->color = color;
    mine->key = key;
    mine->brought = round;
    wait_for_ranks([&] { return all(&SplitSlot::brought, round); }, __func__, "not all ranks have come");
    int size = 0, rank = 0;
    for (int r = 0; r < comm->size; r++) {
        const SplitSlot *other = shared->split_slot(r);
        size += other->color == color;
        rank += other->color == color && (other->key < key || (other->key == key && r < comm->rank));
    }
    mine->seen = round;
    *out = nullptr;
    if (color == NCCL_SPLIT_NOCOLOR)
        return ncclSuccess;
    const std::string name = comm->name + "." + std::to_string(round) + "." + std::to_string(color);
    return comm_open(out, name, size, rank, is_blocking(config));
}

/* The structure stays, so that a late use is known for what it is. */
static void comm_close(ncclComm *comm) {
    comm->shared.reset();
    leak_count("communicators", -1);
}

STANDIN_API ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    NCCL_CALL(ncclInternalError);
    check_comm(comm, __func__);
    return ncclSuccess;
}

STANDIN_API ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    const Lock lock;
    if (comm == nullptr)
        return ncclSuccess;
    check_comm(comm, __func__);
    if (comm->finished != comm->issued)
        fault("ncclCommDestroy: %d of the communicator's operations have not ended",
              (int)(comm->issued - comm->finished));
    comm_close(comm);
    return ncclSuccess;
}

STANDIN_API ncclResult_t ncclCommAbort(ncclComm_t comm) {
    const Lock lock;
    if (comm == nullptr)
        return ncclSuccess;
    comm->aborted = true; /* what is queued ends without having been done */
    comm_close(comm);
    return ncclSuccess;
}

STANDIN_API ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error) {
    NCCL_CALL(ncclInternalError, Numbered::FIRST);
    *error = has_met(comm) ? ncclSuccess : ncclInProgress;
    return ncclSuccess;
}

STANDIN_API ncclResult_t ncclCommCount(const ncclComm_t comm, int *size) {
    NCCL_CALL(ncclInternalError);
    *size = comm->size;
    return ncclSuccess;
}

STANDIN_API ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank) {
    NCCL_CALL(ncclInternalError);
    *rank = comm->rank;
    return ncclSuccess;
}

STANDIN_API const char *ncclGetErrorString(ncclResult_t result) {
    static const char *const texts[] = {
        "no error",         "unhandled cuda error", "unhandled system error", "internal error",
        "invalid argument", "invalid usage",        "remote process exited",  "NCCL operation in progress"};
    return (size_t)result < sizeof texts / sizeof *texts ? texts[result] : "unknown result code";
}

STANDIN_API const char *ncclGetLastError(ncclComm_t) {
    return failure_injected() ? "a failure that was asked for" : "";
}
