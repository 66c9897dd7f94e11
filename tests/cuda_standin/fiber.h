/* Running the threads of one block. */
#ifndef CUDA_STANDIN_FIBER_H
#define CUDA_STANDIN_FIBER_H

#include "block.h"

namespace emu {

/* context.block, block_dim, grid_dim, nthreads and dynamic_shared are set. */
void run_block(const Kernel *kernel, void **arguments);

} // namespace emu

#endif
