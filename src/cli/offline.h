/* The commands that never initialise MPI: --plan, --check, --help, --help-config, --version. */
#ifndef DMUON_CLI_OFFLINE_H
#define DMUON_CLI_OFFLINE_H

#include "cli/args.h"

/* Whether the command is one of them. */
bool offline_is(Command command);
/* Runs it and prints to stdout. */
DM_NODISCARD Status offline_run(const Args *args);

#endif
