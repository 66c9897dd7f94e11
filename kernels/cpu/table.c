/* The table of this copy of the kernels; KERNEL_LIST is the only list. */
#include "kernels/cpu/isa.h"

#define TABLE_QUOTE_(text) #text
#define TABLE_STRING_(text) TABLE_QUOTE_(text)
#define TABLE_ENTRY_(id, args, name) [KERNEL_##id] = ISA_NAME(name),

const KernelTable ISA_NAME(kernels_cpu) = {.name = TABLE_STRING_(DM_ISA), .fn = {KERNEL_LIST(TABLE_ENTRY_)}};
