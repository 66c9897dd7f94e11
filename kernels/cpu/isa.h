/* Each file of kernels/cpu is compiled once per vector unit with DM_ISA set to its name; ISA_NAME(f) is that copy's
 * symbol. */
#ifndef DMUON_KERNELS_CPU_ISA_H
#define DMUON_KERNELS_CPU_ISA_H

#include "kernels/kernels.h"

#define ISA_JOIN_(name, isa) name##_##isa
#define ISA_EXPAND_(name, isa) ISA_JOIN_(name, isa)
#define ISA_NAME(name) ISA_EXPAND_(name, DM_ISA)

/* The kernels of this copy: void gemm_avx2(const KernelCtx *ctx, const void *args) and so on. */
#define ISA_DECLARE_(id, args, name) void ISA_NAME(name)(const KernelCtx *ctx, const void *args);
KERNEL_LIST(ISA_DECLARE_)
#undef ISA_DECLARE_

#endif
