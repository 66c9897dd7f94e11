/* The commands that never initialise MPI: --plan, --check, --help, --help-config, --version. */
#ifndef DMUON_CLI_OFFLINE_H
#define DMUON_CLI_OFFLINE_H

#include "cli/args.h"

/* The command is COMMAND_PLAN or a later one. Prints to stdout. */
DM_NODISCARD Status offline_run(const Args *args);

#endif
