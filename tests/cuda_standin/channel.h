/* Shared memory between the processes of one communicator: a ring of bytes for every pair of ranks, and a place to meet
 * in order to split. */
#ifndef CUDA_STANDIN_CHANNEL_H
#define CUDA_STANDIN_CHANNEL_H

#include <stddef.h>
#include <stdint.h>
#include <atomic>
#include <string>

namespace standin {

constexpr size_t CHANNEL_BYTES = 64 << 10;

/* What memory between processes is called: this and a number. */
constexpr const char *SHARED_PREFIX = "dm-standin.";
/* Removes what jobs left that were killed before all their ranks had met. */
void sweep_abandoned();

struct Channel {
    std::atomic<uint64_t> written, read; /* bytes, ever */
    char unused[48];
    char ring[CHANNEL_BYTES];
};
/* As many bytes as there is room, or as there are; gives their number. */
size_t channel_put(Channel *channel, const char *from, size_t nbytes);
size_t channel_take(Channel *channel, char *to, size_t nbytes);

/* One per rank: what it brings to the splits of its communicator. */
struct SplitSlot {
    std::atomic<int> brought, seen; /* how many splits it has offered for, and has read the others' offers of */
    int color, key;
    std::atomic<int> device; /* GPU of the rank, set before it arrives */
};

/* Mapped by every rank: this, then a SplitSlot for each rank, then a Channel for each pair. */
struct Meeting {
    std::atomic<int> arrived;
    char unused[60];
};

class Shared {
    Meeting *meeting_;
    size_t nbytes_;
    int size_;
    std::string name_;

  public:
    /* Maps the memory of that name, made if it is not there, and arrives. On failure is_open() is false. */
    Shared(const std::string &name, int size, int rank, int device);
    ~Shared();
    Shared(const Shared &) = delete;
    Shared &operator=(const Shared &) = delete;

    bool is_open() const {
        return meeting_ != nullptr;
    }
    int arrived() const {
        return meeting_->arrived.load();
    }
    void forget_name();    /* once all have come: nobody will look for it again */
    bool devices_differ(); /* once all have come */
    SplitSlot *split_slot(int rank);
    Channel *channel(int from, int to);
};

} // namespace standin

#endif
