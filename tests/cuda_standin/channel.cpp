#include "channel.h"

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <algorithm>

namespace standin {

size_t channel_put(Channel *channel, const char *from, size_t nbytes) {
    const uint64_t written = channel->written.load(std::memory_order_relaxed);
    const uint64_t room = CHANNEL_BYTES - (written - channel->read.load(std::memory_order_acquire));
    const size_t n = std::min<size_t>(nbytes, room), at = written % CHANNEL_BYTES;
    const size_t before_end = std::min(n, CHANNEL_BYTES - at);
    memcpy(channel->ring + at, from, before_end);
    memcpy(channel->ring, from + before_end, n - before_end);
    channel->written.store(written + n, std::memory_order_release);
    return n;
}

size_t channel_take(Channel *channel, char *to, size_t nbytes) {
    const uint64_t read = channel->read.load(std::memory_order_relaxed);
    const uint64_t there = channel->written.load(std::memory_order_acquire) - read;
    const size_t n = std::min<size_t>(nbytes, there), at = read % CHANNEL_BYTES;
    const size_t before_end = std::min(n, CHANNEL_BYTES - at);
    memcpy(to, channel->ring + at, before_end);
    memcpy(to + before_end, channel->ring, n - before_end);
    channel->read.store(read + n, std::memory_order_release);
    return n;
}

void sweep_abandoned() {
    constexpr time_t AGE_S = 600; /* no rank waits for the others so long */
    const std::string where = "/dev/shm/";
    DIR *dir = opendir(where.c_str());
    if (dir == nullptr)
        return;
    while (const struct dirent *entry = readdir(dir)) {
        const std::string path = where + entry->d_name;
        struct stat info;
        if (strncmp(entry->d_name, SHARED_PREFIX, strlen(SHARED_PREFIX)) == 0 && stat(path.c_str(), &info) == 0 &&
            info.st_mtime + AGE_S < time(nullptr))
            unlink(path.c_str());
    }
    closedir(dir);
}

Shared::Shared(const std::string &name, int size, int rank, int device) : meeting_(nullptr), size_(size), name_(name) {
    const size_t n = (size_t)size;
    nbytes_ = sizeof(Meeting) + n * sizeof(SplitSlot) + n * n * sizeof(Channel);
    const int file = shm_open(name.c_str(), O_RDWR | O_CREAT, 0600);
    if (file < 0)
        return;
    if (ftruncate(file, (off_t)nbytes_) == 0) {
        void *mapped = mmap(nullptr, nbytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        meeting_ = mapped != MAP_FAILED ? (Meeting *)mapped : nullptr;
    }
    close(file);
    if (meeting_ == nullptr)
        return;
    split_slot(rank)->device = device;
    meeting_->arrived++;
}

Shared::~Shared() {
    if (meeting_ != nullptr)
        munmap(meeting_, nbytes_);
}

void Shared::forget_name() {
    shm_unlink(name_.c_str());
}

bool Shared::devices_differ() {
    for (int r = 1; r < size_; r++) {
        for (int other = 0; other < r; other++) {
            if (split_slot(r)->device == split_slot(other)->device)
                return false;
        }
    }
    return true;
}

SplitSlot *Shared::split_slot(int rank) {
    return (SplitSlot *)(meeting_ + 1) + rank;
}

Channel *Shared::channel(int from, int to) {
    return (Channel *)(split_slot(size_)) + (size_t)from * (size_t)size_ + (size_t)to;
}

} // namespace standin
