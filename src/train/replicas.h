/* log.replica_check_every: what several replicate rows hold must have the same bits. */
#ifndef DMUON_TRAIN_REPLICAS_H
#define DMUON_TRAIN_REPLICAS_H

#include "train/session.h"

/* Compares weights and moments over the replicate axis by hash. STATUS_COMM names the first tensor that differs, its
 * shard and the two rows. Collective; drains first. */
DM_NODISCARD Status replicas_check(Session *session);

#endif
