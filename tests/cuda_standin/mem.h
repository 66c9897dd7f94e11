/* Device memory that only device work may touch, and the register of pinned host memory. */
#ifndef CUDA_STANDIN_MEM_H
#define CUDA_STANDIN_MEM_H

#include "standin.h"

namespace standin {

struct Allocation {
    char *base; /* of its pages */
    size_t mapped;
    char *user; /* what the program was given: ends with the last page, but for alignment */
    size_t nbytes;
    bool live, open;
    int id, device;
};

void memory_start();
size_t memory_used();
void *memory_allocate(size_t nbytes); /* NULL: more than there is */
void memory_free(void *p);
void *pinned_allocate(size_t nbytes);
void pinned_free(void *p);
void memory_check_margins(); /* at exit: the bytes around every allocation are untouched */

bool is_device_memory(const void *p); /* lies in the reserved addresses, allocated or not */
const Allocation *find_allocation(const void *p);
bool is_pinned(const void *p, size_t nbytes);
/* What a kernel's argument says: a fault if it points to host memory or to device memory that is none; `op` notes it.
 */
void check_kernel_pointer(Op *op, int argument, const void *p);
void check_kernel_words(Op *op, int argument, const void *value, size_t nbytes);

/* While one lives in a thread, that thread is the device: the allocations that it touches open under its hands. */
class DeviceMode {
  public:
    DeviceMode();
    ~DeviceMode();
    DeviceMode(const DeviceMode &) = delete;
    DeviceMode &operator=(const DeviceMode &) = delete;
};
void memory_close(); /* shuts what DeviceMode opened; called before the lock is given up */

} // namespace standin

#endif
