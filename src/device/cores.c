/* The affinity mask, not the machine: containers, batch systems and mpirun --bind-to narrow it. */
#include "device/cores.h"

#include <sched.h>
#include <stddef.h>

int cores_available(void) {
    /* A kernel with more processors than the set has room for answers EINVAL: try again with a larger set. */
    for (size_t ncpus = 1024; ncpus <= 1 << 20; ncpus *= 2) {
        cpu_set_t *set = CPU_ALLOC(ncpus);
        if (set == NULL)
            return 1;
        const size_t nbytes = CPU_ALLOC_SIZE(ncpus);
        const int failed = sched_getaffinity(0, nbytes, set);
        const int count = failed ? 0 : CPU_COUNT_S(nbytes, set);
        CPU_FREE(set);
        if (count > 0)
            return count;
    }
    return 1;
}
