/* Errors as the CUDA runtime hands them out. */
#ifndef CUDA_STANDIN_CUDART_H
#define CUDA_STANDIN_CUDART_H

#include "standin.h"

namespace standin {

/* Becomes the calling thread's last error, and must not go unnoticed; gives it back. */
cudaError_t keep_error(cudaError_t error, const char *api);

} // namespace standin

#endif
