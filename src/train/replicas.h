/* log.replica_check_every: what several ranks hold must have the same bits. */
#ifndef DMUON_TRAIN_REPLICAS_H
#define DMUON_TRAIN_REPLICAS_H

#include "train/session.h"

/* Compares weights and moments by hash over the replicate axis, with ddp over the shard axis, and over tp those that it
 * does not cut. STATUS_COMM names the first tensor that differs, the axis and the two ranks. Collective; drains first.
 */
DM_NODISCARD Status replicas_check(Session *session);

#endif
