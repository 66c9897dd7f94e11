/* What the calls of the NCCL stand-in share. */
#ifndef CUDA_STANDIN_COMMUNICATOR_H
#define CUDA_STANDIN_COMMUNICATOR_H

#include <nccl.h>

#include "call.h"

namespace standin {

/* A fault unless the communicator is there and complete. */
void check_comm(ncclComm *comm, const char *api);
/* ncclInvalidArgument, noted, unless 0 <= rank < size. */
ncclResult_t check_ranks(int size, int rank, const char *api);

} // namespace standin

/* Counts the call and, if it is its turn, fails it. */
#define NCCL_CALL(error, ...)                                                                                          \
    const ApiCall call(__func__, __builtin_return_address(0), ##__VA_ARGS__);                                          \
    if (call.fails)                                                                                                    \
    return error

#endif
