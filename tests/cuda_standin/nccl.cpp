/* Stand-in for libnccl.so.2 on one machine: groups and operations. Stricter than NCCL: a communicator lives on one
 * stream, nothing is buffered, sizes, types and kinds must agree on both sides. */
#include <stdio.h>
#include <string.h>

#include "communicator.h"
#include "transfer.h"

using namespace standin;

/* ---- groups ----------------------------------------------------------------------------------------------------- */

static thread_local int group_depth;
static thread_local std::vector<Transfer *> group;

static void describe(Transfer *t) {
    if (t->collective || t->parts.empty())
        return;
    const Part &p = t->parts[0];
    char more[40] = "";
    if (t->parts.size() > 1)
        snprintf(more, sizeof more, " and %zu more in its group", t->parts.size() - 1);
    t->describe("%s %d of %zu bytes%s", p.sending ? "ncclSend to" : "ncclRecv from", p.peer, (size_t)p.message.nbytes,
                more);
}

static void enqueue_group() {
    if (group_depth != 0)
        return;
    std::vector<Transfer *> all;
    all.swap(group);
    for (Transfer *t : all) {
        describe(t);
        count("transfers", t->collective ? "collective" : "point to point", 1);
        enqueue(t->stream, t, "nccl");
    }
}

STANDIN_API ncclResult_t ncclGroupStart() {
    NCCL_CALL(ncclInternalError);
    group_depth++;
    leak_count("open groups", 1);
    return ncclSuccess;
}

STANDIN_API ncclResult_t ncclGroupEnd() {
    NCCL_CALL(ncclInternalError);
    if (group_depth == 0)
        fault("ncclGroupEnd without ncclGroupStart");
    group_depth--;
    leak_count("open groups", -1);
    enqueue_group();
    return ncclSuccess;
}

static Transfer *new_transfer(ncclComm *comm, cudaStream_t stream, const char *api) {
    check_comm(comm, api);
    if (comm->used && comm->stream != stream)
        fault("%s: communicator %s was used on another stream before", api, comm->name.c_str() + 1);
    comm->used = true;
    comm->stream = stream;
    Transfer *t = new Transfer(comm, stream);
    group.push_back(t);
    return t;
}

/* Sends and receives of one group and communicator are one operation. */
static Transfer *point_to_point(ncclComm *comm, cudaStream_t stream, const char *api) {
    for (Transfer *t : group) {
        if (t->comm == comm && !t->collective && t->stream == stream)
            return t;
    }
    return new_transfer(comm, stream, api);
}

static Transfer *new_collective(ncclComm *comm, cudaStream_t stream, size_t nbytes, const char *api) {
    Transfer *t = new_transfer(comm, stream, api);
    t->collective = true;
    t->describe("%s of %zu bytes", api, nbytes);
    count("bytes", api, (int64_t)nbytes);
    return t;
}

static void use_buffer(Transfer *t, const char *api, const char *argument, const void *p, size_t nbytes) {
    check_device_range(api, argument, p, nbytes);
    t->use(p, nbytes);
}

static Message message_of(size_t nbytes, ncclDataType_t type, Kind kind, int detail) {
    Message m = {};
    m.nbytes = nbytes;
    m.type = type;
    m.kind = kind;
    m.detail = detail;
    return m;
}

/* ---- operations ------------------------------------------------------------------------------------------------- */

static ncclResult_t add_message(bool sending, const void *p, size_t nbytes, ncclDataType_t type, int peer, Transfer *t,
                                const char *api) {
    if (check_ranks(t->comm->size, peer, api) != ncclSuccess)
        return ncclInvalidArgument;
    use_buffer(t, api, "buffer", p, nbytes);
    t->add_part(sending, peer, p, message_of(nbytes, type, Kind::POINT_TO_POINT, 0));
    count("bytes", api, (int64_t)nbytes);
    enqueue_group();
    return ncclSuccess;
}

STANDIN_API ncclResult_t ncclSend(const void *p, size_t n, ncclDataType_t type, int peer, ncclComm_t comm,
                                  cudaStream_t stream) {
    NCCL_CALL(ncclInternalError);
    return add_message(true, p, n * type_size(type), type, peer, point_to_point(comm, stream, __func__), __func__);
}

STANDIN_API ncclResult_t ncclRecv(void *p, size_t n, ncclDataType_t type, int peer, ncclComm_t comm,
                                  cudaStream_t stream) {
    NCCL_CALL(ncclInternalError);
    return add_message(false, p, n * type_size(type), type, peer, point_to_point(comm, stream, __func__), __func__);
}

STANDIN_API ncclResult_t ncclBroadcast(const void *in, void *out, size_t n, ncclDataType_t type, int root,
                                       ncclComm_t comm, cudaStream_t stream) {
    NCCL_CALL(ncclInternalError);
    const size_t nbytes = n * type_size(type);
    Transfer *t = new_collective(comm, stream, nbytes, __func__);
    if (check_ranks(comm->size, root, __func__) != ncclSuccess)
        return ncclInvalidArgument;
    use_buffer(t, __func__, "output", out, nbytes);
    const Message message = message_of(nbytes, type, Kind::BROADCAST, root);
    if (comm->rank != root) {
        t->add_part(false, root, out, message);
    } else {
        use_buffer(t, __func__, "input", in, nbytes);
        for (int r = 0; r < comm->size; r++) {
            if (r != root)
                t->add_part(true, r, in, message);
        }
        t->finish = [=] { memmove(out, in, nbytes); };
    }
    enqueue_group();
    return ncclSuccess;
}

STANDIN_API ncclResult_t ncclAllGather(const void *in, void *out, size_t n, ncclDataType_t type, ncclComm_t comm,
                                       cudaStream_t stream) {
    NCCL_CALL(ncclInternalError);
    const size_t nbytes = n * type_size(type);
    Transfer *t = new_collective(comm, stream, nbytes, __func__);
    use_buffer(t, __func__, "input", in, nbytes);
    use_buffer(t, __func__, "output", out, nbytes * (size_t)comm->size);
    const Message message = message_of(nbytes, type, Kind::ALL_GATHER, 0);
    char *own = (char *)out + nbytes * (size_t)comm->rank;
    if (in != own && (const char *)in + nbytes > (char *)out && in < (char *)out + nbytes * (size_t)comm->size)
        fault("ncclAllGather: the input lies in the output, and not at its rank's place");
    for (int r = 0; r < comm->size; r++) {
        if (r == comm->rank)
            continue;
        t->add_part(true, r, in, message);
        t->add_part(false, r, (char *)out + nbytes * (size_t)r, message);
    }
    t->finish = [=] { memmove(own, in, nbytes); };
    enqueue_group();
    return ncclSuccess;
}

/* Everyone sends everyone the part that the other reduces, `stride` bytes apart: 0 for an all-reduce. */
static void add_reduction(Transfer *t, const char *in, void *out, size_t n, size_t stride, const Message &message) {
    ncclComm *comm = t->comm;
    const size_t nbytes = message.nbytes;
    auto others = std::make_shared<std::vector<std::vector<char>>>((size_t)comm->size);
    std::vector<const char *> from;
    for (int r = 0; r < comm->size; r++) {
        std::vector<char> &theirs = (*others)[(size_t)r];
        if (r == comm->rank) {
            from.push_back(in + stride * (size_t)r);
            continue;
        }
        theirs.resize(nbytes);
        from.push_back(theirs.data());
        t->add_part(true, r, in + stride * (size_t)r, message);
        t->add_part(false, r, theirs.data(), message);
    }
    t->finish = [=] { /* `others` lives as long as this */
                      (void)others;
                      reduce(out, from, n, (ncclDataType_t)message.type, (ncclRedOp_t)message.detail);
    };
}

STANDIN_API ncclResult_t ncclAllReduce(const void *in, void *out, size_t n, ncclDataType_t type, ncclRedOp_t op,
                                       ncclComm_t comm, cudaStream_t stream) {
    NCCL_CALL(ncclInternalError);
    const size_t nbytes = n * type_size(type);
    Transfer *t = new_collective(comm, stream, nbytes, __func__);
    use_buffer(t, __func__, "input", in, nbytes);
    use_buffer(t, __func__, "output", out, nbytes);
    add_reduction(t, (const char *)in, out, n, 0, message_of(nbytes, type, Kind::ALL_REDUCE, op));
    enqueue_group();
    return ncclSuccess;
}

STANDIN_API ncclResult_t ncclReduceScatter(const void *in, void *out, size_t n, ncclDataType_t type, ncclRedOp_t op,
                                           ncclComm_t comm, cudaStream_t stream) {
    NCCL_CALL(ncclInternalError);
    const size_t nbytes = n * type_size(type);
    Transfer *t = new_collective(comm, stream, nbytes, __func__);
    use_buffer(t, __func__, "input", in, nbytes * (size_t)comm->size);
    use_buffer(t, __func__, "output", out, nbytes);
    add_reduction(t, (const char *)in, out, n, nbytes, message_of(nbytes, type, Kind::REDUCE_SCATTER, op));
    enqueue_group();
    return ncclSuccess;
}
