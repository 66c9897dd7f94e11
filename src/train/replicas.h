/* log.replica_check_every: what several ranks hold must have the same bits. */
#ifndef DMUON_TRAIN_REPLICAS_H
#define DMUON_TRAIN_REPLICAS_H

#include "train/session.h"

/* Compares by hash weights and moments over the replicate axis (with ddp over all data-parallel ranks), and what tp
 * does not cut over the tp axis. STATUS_COMM names step, tensor and two ranks. Collective; drains first. */
DM_NODISCARD Status replicas_check(Session *session);

#endif
