/* The learning-rate factor of a step; pure. README, "Schedule". */
#ifndef DMUON_OPTIM_SCHEDULE_H
#define DMUON_OPTIM_SCHEDULE_H

#include "config/config.h"

/* Steps of the run: train.steps, or the smaller of it and floor(epochs*E/global) when epochs > 0. */
int64_t schedule_total_steps(const Config *config, int64_t samples_per_epoch);
/* step counts from 1 to total. */
double schedule_factor(const Config *config, int64_t step, int64_t total);

#endif
