/* The CUDA table; KERNEL_LIST is the only list. */
#include "kernels/cuda/launch.h"

#define TABLE_ENTRY_(id, args, name) name##_cuda,

const KernelTable kernels_cuda = {"cuda", {KERNEL_LIST(TABLE_ENTRY_)}};
