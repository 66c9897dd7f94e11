/* Graphs: work that a stream records instead of queueing it, and queues as often as they are launched. */
#ifndef CUDA_STANDIN_GRAPH_H
#define CUDA_STANDIN_GRAPH_H

#include "stream.h"

namespace standin {

/* The stream, which records, takes over `op`: a fault if it is none that a graph may hold. */
void record(Stream *stream, Op *op);
/* A fault if the calling thread records, or any thread does for all: what waits, asks, allocates or releases is not for
 * it. */
void check_not_recording(const char *api);
void check_recordings_ended(); /* at exit */

} // namespace standin

#endif
