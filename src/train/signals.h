/* A request to stop: SIGUSR1, SIGTERM, SIGINT, or the wall-time budget. The handlers are installed first in main; the
 * flag rides on the loss reduction of the step, so that all ranks stop after the same one. A second SIGINT ends the
 * process with 130. */
#ifndef DMUON_TRAIN_SIGNALS_H
#define DMUON_TRAIN_SIGNALS_H

#include <stdbool.h>

void signals_install(void);
/* The signal that asked to stop, or 0. */
int signals_pending(void);

#endif
