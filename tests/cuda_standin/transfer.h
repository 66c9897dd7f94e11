/* The queued work of one NCCL call, or of the calls of one group on one communicator: messages that travel at the same
 * time, and what is done with them at the end. */
#ifndef CUDA_STANDIN_TRANSFER_H
#define CUDA_STANDIN_TRANSFER_H

#include <nccl.h>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "channel.h"
#include "standin.h"

struct ncclComm {
    int size, rank;
    std::string name;
    std::unique_ptr<standin::Shared> shared;
    bool met; /* all ranks have come */
    bool aborted;
    int nsplits;
    uint64_t issued, finished; /* operations: they run in the order of the calls */
    cudaStream_t stream;       /* the first it was used on */
    bool used;
};

namespace standin {

enum class Kind : int32_t { POINT_TO_POINT, BROADCAST, ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER };

/* Goes before the bytes, and must be what the receiver expects. */
struct Message {
    uint64_t nbytes;
    int32_t type; /* ncclDataType_t */
    Kind kind;
    int32_t detail; /* root of a broadcast, operation of a reduction */
    int32_t unused;
};

/* One message under way. A send ends when its last byte has been received: NCCL promises no buffering. */
struct Part {
    bool sending;
    int peer;
    Channel *channel;
    char *data;
    Message message;
    size_t header_done, data_done;
    uint64_t end; /* position in the channel, once all has been written */
    bool finished;
};

struct Transfer : Op {
    ncclComm *comm = nullptr;
    cudaStream_t stream = nullptr;
    uint64_t number = 0; /* among the communicator's */
    bool collective = false;
    std::vector<Part> parts;
    std::function<void()> finish; /* or none */

    Transfer(ncclComm *of, cudaStream_t on);
    bool ready() override;
    Step step() override;
    void add_part(bool sending, int peer, const void *data, const Message &message);

  private:
    bool is_held_back(size_t i) const;
    bool move_send(Part *p);
    bool move_receive(Part *p);
    void check_message(const Part *p, const Message &got) const;
};

/* out[i] = the ranks' values in the order of their numbers; `in`: one pointer per rank. */
void reduce(void *out, const std::vector<const char *> &in, size_t n, ncclDataType_t type, ncclRedOp_t op);
size_t type_size(ncclDataType_t type);

} // namespace standin

#endif
