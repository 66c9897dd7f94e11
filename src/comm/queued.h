/* Operations that a transport has queued on the device: the flight record's entries end when their event has passed,
 * and a host that waits for the device looks here for what is stuck. By the thread that queues. */
#ifndef DMUON_COMM_QUEUED_H
#define DMUON_COMM_QUEUED_H

#include "comm/flight.h"
#include "comm/transport.h"
#include "comm/watchdog.h"

/* An operation that was just queued on `stream`; `entry` is its entry in the flight record, begun. */
void queued_add(Comm *comm, Stream *stream, const WatchLabel *label, FlightEntry *entry);

/* What the host does between two looks at the device (device_set_pause). fatal() when a link is broken, or when nothing
 * moved for comm.timeout_s. */
void queued_pause(void *arg, int tries);
/* Nothing is queued any more: forgets all. */
void queued_end(void);
/* This process ends for a failure: no peer shall wait for what it has queued. Only by the thread that queues. */
void queued_abort(void);

#endif
