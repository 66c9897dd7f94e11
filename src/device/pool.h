/* A fixed set of threads that runs the items of one kernel at a time, and their scratch memory. */
#ifndef DMUON_DEVICE_POOL_H
#define DMUON_DEVICE_POOL_H

#include "base/status.h"
#include "kernels/kernels.h"

typedef struct Pool Pool;

/* `nthreads` counts the caller: 1 starts no thread. add_nice: see DeviceOptions.yield_to_comm; the pool's threads only.
 */
DM_NODISCARD Status pool_create(Pool **pool, int nthreads, int add_nice);
void pool_destroy(Pool *pool); /* accepts NULL */

/* What a kernel gets. Kernels of one pool run one after the other, all called by the same thread. */
const KernelCtx *pool_ctx(const Pool *pool); /* borrowed */

#endif
