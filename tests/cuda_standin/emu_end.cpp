/* What the launchers in kernels/cuda refer to. In the emulation only the kernels run, never the launchers. */
#include <stdlib.h>

#include "kernels/cuda/table.h"

void kernels_cuda_failed(const char *, int) {
    abort();
}
