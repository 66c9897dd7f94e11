/* The commands that start MPI: train, --eval, --sample. */
#ifndef DMUON_CLI_RUN_H
#define DMUON_CLI_RUN_H

#include <stdbool.h>

#include "cli/args.h"

/* From MPI_Init to MPI_Finalize. *reported: a failure is printed already, by rank 0. It is printed before MPI_Finalize,
 * because mpirun kills the other ranks, unheard, as soon as the first one ends with an exit code. */
DM_NODISCARD Status run_ranks(const Args *args, int *argc, char ***argv, bool *reported);

/* Reports a mistake in the command line, which all ranks make alike, once. False: mpirun did not start this process,
 * the caller reports. */
bool run_refuse(int *argc, char ***argv);

#endif
