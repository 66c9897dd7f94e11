/* Writes one rank's files of a set and completes the set on rank 0. */
#ifndef DMUON_CHECKPOINT_WRITER_H
#define DMUON_CHECKPOINT_WRITER_H

#include "checkpoint/manifest.h"
#include "checkpoint/save.h"
#include "checkpoint/snapshot.h"

/* Collective over `comm` (host calls, agreement): temporary directory, files, trailer, rename, pruning. Fills in the
 * report's nbytes and unpruned. */
DM_NODISCARD Status writer_run(const SaverOptions *options, Comm *comm, const Snapshot *snapshot, SaveReport *report);

#endif
