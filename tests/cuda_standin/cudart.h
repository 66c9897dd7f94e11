/* Errors as the CUDA runtime hands them out. */
#ifndef CUDA_STANDIN_CUDART_H
#define CUDA_STANDIN_CUDART_H

#include "call.h"

namespace standin {

/* An error code that says no more than how things are; it is remembered all the same. */
cudaError_t answer(cudaError_t code);
/* Becomes the calling thread's last error, and must not go unnoticed; gives it back. */
cudaError_t keep_error(cudaError_t error, const char *api);

} // namespace standin

/* Counts the call and, if it is its turn, fails it. */
#define API_CALL(error, ...)                                                                                           \
    const ApiCall call(__func__, __builtin_return_address(0), ##__VA_ARGS__);                                          \
    if (call.fails)                                                                                                    \
    return keep_error(error, __func__)

#endif
