/* --check: what a start checks, in the same order, without MPI and without creating or changing anything. */
#ifndef DMUON_TRAIN_CHECK_H
#define DMUON_TRAIN_CHECK_H

#include "train/report.h"

/* Data, memory (all ranks on this node), run directory, the checkpoint that a start would take. Appends one line to
 * `out` for each part that passed; the trail has one sentence for each that did not, the Status is that of the first.
 */
DM_NODISCARD Status check_start(const Blueprint *blueprint, Str *out);

#endif
