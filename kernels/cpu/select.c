/* Which of the three tables this processor runs. Compiled with the generic copy only: it must not need a vector unit.
 */
#include "kernels/cpu/isa.h"

#ifdef DM_ISA_generic

#include <stdlib.h>
#include <string.h>

static bool runs_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static bool runs_avx512(void) {
    return runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
}

static const KernelTable *best(void) {
    if (runs_avx512())
        return &kernels_cpu_avx512;
    return runs_avx2() ? &kernels_cpu_avx2 : &kernels_cpu_generic;
}

const KernelTable *kernels_cpu_select(void) {
    __builtin_cpu_init();
    const char *wanted = getenv("DMUON_ISA");
    if (wanted == NULL)
        return best();
    if (strcmp(wanted, "generic") == 0)
        return &kernels_cpu_generic;
    if (strcmp(wanted, "avx2") == 0)
        return runs_avx2() ? &kernels_cpu_avx2 : NULL;
    if (strcmp(wanted, "avx512") == 0)
        return runs_avx512() ? &kernels_cpu_avx512 : NULL;
    return NULL;
}

#endif
