#include "transfer.h"

#include <algorithm>
#include <string.h>
#include <type_traits>

namespace standin {

static const char *kind_name(Kind kind) {
    static const char *const names[] = {"send/receive", "broadcast", "all-gather", "all-reduce", "reduce-scatter"};
    const size_t i = (size_t)kind;
    return i < sizeof names / sizeof *names ? names[i] : "something unknown";
}

Transfer::Transfer(ncclComm *of, cudaStream_t on) : comm(of), stream(on), number(of->issued++) {
    remote = true;
}

/* Operations of one communicator never overtake each other. */
bool Transfer::ready() {
    return comm->finished == number;
}

void Transfer::add_part(bool sending, int peer, const void *data, const Message &message) {
    Part p = {};
    p.sending = sending;
    p.peer = peer;
    p.channel = sending ? comm->shared->channel(comm->rank, peer) : comm->shared->channel(peer, comm->rank);
    p.data = (char *)data;
    p.message = message;
    parts.push_back(p);
}

/* Messages of one channel keep their order. */
bool Transfer::is_held_back(size_t i) const {
    for (size_t before = 0; before < i; before++) {
        const Part &p = parts[before];
        if (p.channel == parts[i].channel && p.sending == parts[i].sending && !p.finished && p.end == 0)
            return true;
    }
    return false;
}

bool Transfer::move_send(Part *p) {
    size_t moved = 0;
    if (p->header_done < sizeof p->message) {
        moved = channel_put(p->channel, (const char *)&p->message + p->header_done, sizeof p->message - p->header_done);
        p->header_done += moved;
    }
    if (p->header_done == sizeof p->message && p->data_done < p->message.nbytes) {
        const size_t n = channel_put(p->channel, p->data + p->data_done, p->message.nbytes - p->data_done);
        p->data_done += n;
        moved += n;
    }
    if (p->header_done < sizeof p->message || p->data_done < p->message.nbytes)
        return moved != 0;
    if (p->end == 0)
        p->end = p->channel->written.load();
    p->finished = p->channel->read.load() >= p->end;
    return moved != 0 || p->finished;
}

void Transfer::check_message(const Part *p, const Message &got) const {
    const Message &want = p->message;
    if (got.nbytes == want.nbytes && got.type == want.type && got.kind == want.kind && got.detail == want.detail)
        return;
    fault("%s: rank %d expects a %s of %zu bytes (type %d, root or operation %d) from rank %d, which sends a %s of %zu "
          "bytes (type %d, root or operation %d)",
          what, comm->rank, kind_name(want.kind), (size_t)want.nbytes, want.type, want.detail, p->peer,
          kind_name(got.kind), (size_t)got.nbytes, got.type, got.detail);
}

bool Transfer::move_receive(Part *p) {
    bool moved = false;
    if (p->header_done == 0) {
        if (p->channel->written.load() - p->channel->read.load() < sizeof(Message))
            return false;
        Message got;
        p->header_done = channel_take(p->channel, (char *)&got, sizeof got);
        check_message(p, got);
        moved = true;
    }
    const size_t n = channel_take(p->channel, p->data + p->data_done, p->message.nbytes - p->data_done);
    p->data_done += n;
    p->finished = p->data_done == p->message.nbytes;
    return moved || n != 0;
}

Step Transfer::step() {
    bool moved = false, all = true;
    for (size_t i = 0; i < parts.size() && !comm->aborted; i++) {
        Part *p = &parts[i];
        if (!p->finished && !is_held_back(i))
            moved |= p->sending ? move_send(p) : move_receive(p);
        all = all && p->finished;
    }
    if (!all && !comm->aborted)
        return moved ? Step::PROGRESS : Step::BLOCKED;
    if (finish && !comm->aborted)
        finish();
    comm->finished++;
    return Step::DONE;
}

/* ---- reductions ------------------------------------------------------------------------------------------------- */

size_t type_size(ncclDataType_t type) {
    switch (type) {
    case ncclInt8:
    case ncclUint8:
        return 1;
    case ncclFloat16:
    case ncclBfloat16:
        return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
        return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
        return 8;
    default:
        fault("NCCL type %d: the stand-in does not know it", (int)type);
    }
}

template <class T> static T combine(T a, T b, ncclRedOp_t op) {
    switch (op) {
    case ncclMax:
        return std::max(a, b);
    case ncclMin:
        return std::min(a, b);
    case ncclProd:
        return (T)(a * b);
    default:
        return (T)(a + b);
    }
}

template <class T> static void reduce_as(void *out, const std::vector<const char *> &in, size_t n, ncclRedOp_t op) {
    for (size_t i = 0; i < n; i++) {
        T value, next;
        memcpy(&value, in[0] + i * sizeof(T), sizeof(T));
        for (size_t r = 1; r < in.size(); r++) {
            memcpy(&next, in[r] + i * sizeof(T), sizeof(T));
            value = combine(value, next, op);
        }
        if (op == ncclAvg)
            value = (T)(value / (T)in.size());
        memcpy((char *)out + i * sizeof(T), &value, sizeof(T));
    }
}

void reduce(void *out, const std::vector<const char *> &in, size_t n, ncclDataType_t type, ncclRedOp_t op) {
    switch (type) {
    case ncclFloat32:
        return reduce_as<float>(out, in, n, op);
    case ncclFloat64:
        return reduce_as<double>(out, in, n, op);
    case ncclInt32:
        return reduce_as<int32_t>(out, in, n, op);
    case ncclUint32:
        return reduce_as<uint32_t>(out, in, n, op);
    case ncclInt64:
        return reduce_as<int64_t>(out, in, n, op);
    case ncclUint64:
        return reduce_as<uint64_t>(out, in, n, op);
    default:
        fault("a reduction of NCCL type %d: the stand-in has none", (int)type);
    }
}

} // namespace standin
