/* The last word on a rank that was killed: MPI's launcher ends the others within a second, often without a line. The
 * lowest rank left on the same node says who it was, and what it was doing, from its flight record. */
#ifndef DMUON_COMM_LOST_H
#define DMUON_COMM_LOST_H

#include "comm/world.h"

/* Starts a thread that sleeps until lost_look. `flight_dir`: where the ranks' records are (flight.h). Collective. */
DM_NODISCARD Status lost_start(const World *world, const char *flight_dir);
/* SIGTERM came: look for neighbours that are gone. Safe in a signal handler; nothing without lost_start. */
void lost_look(void);
void lost_stop(void);

#endif
