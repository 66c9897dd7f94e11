/* What the collectives of one step move, from the plan alone: what the byte counters of a run will show. */
#ifndef DMUON_PARALLEL_PLAN_COMM_H
#define DMUON_PARALLEL_PLAN_COMM_H

#include "parallel/plan.h"

/* Calls, payload and bus bytes of one applied step over all groups of each axis, as comm_take_counts defines them. What
 * runs on the world's communicator (losses, sums of squares) stands under the data axis. */
void plan_comm_bytes(const Plan *plan, const Config *config, CommCount out[AXIS_COUNT][COMM_OP_COUNT]);

#endif
