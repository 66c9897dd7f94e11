/* How many cores this process may use. */
#ifndef DMUON_DEVICE_CORES_H
#define DMUON_DEVICE_CORES_H

/* Cores in the affinity mask of the calling process, at least 1. */
int cores_available(void);

#endif
