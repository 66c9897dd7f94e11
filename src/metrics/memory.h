/* Memory of this process, as the kernel counts it. */
#ifndef DMUON_METRICS_MEMORY_H
#define DMUON_METRICS_MEMORY_H

#include <stddef.h>

/* Resident bytes now, and their highest value so far. 0 when the kernel does not say. */
size_t memory_rss_nbytes(void);
size_t memory_peak_rss_nbytes(void);

#endif
