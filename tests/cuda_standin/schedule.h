/* The order in which queued work runs, and waiting for it. */
#ifndef CUDA_STANDIN_SCHEDULE_H
#define CUDA_STANDIN_SCHEDULE_H

#include "stream.h"

namespace standin {

void schedule_start();
void schedule_arrival(); /* an operation is about to be queued */
void run_ahead();        /* one was: perhaps the device does some work, without waiting for another process */

/* The host waits: runs queued work until the stream is empty, the event has been reached, nothing is queued. */
void wait_stream(Stream *stream, const char *api);
void wait_event(Event *event, const char *api);
void wait_device(const char *api);
/* The host asks: some queued work runs. */
void poll_stream(Stream *stream, const char *api);
void poll_event(Event *event, const char *api);

bool anything_queued();
void print_queues();

} // namespace standin

#endif
