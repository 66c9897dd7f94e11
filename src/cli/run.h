/* The commands that start MPI: train, --eval, --sample. */
#ifndef DMUON_CLI_RUN_H
#define DMUON_CLI_RUN_H

#include <stdbool.h>

#include "cli/args.h"

/* From MPI_Init to MPI_Finalize. *is_root: whether this rank is the one to print a failure. */
DM_NODISCARD Status run_ranks(const Args *args, int *argc, char ***argv, bool *is_root);

#endif
