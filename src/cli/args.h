/* The command line of dmuon-train: one configuration file, overrides, options; anywhere, long names only. */
#ifndef DMUON_CLI_ARGS_H
#define DMUON_CLI_ARGS_H

#include <stdbool.h>

#include "base/status.h"

typedef enum Command {
    COMMAND_TRAIN,
    COMMAND_EVAL,
    COMMAND_SAMPLE,
    COMMAND_PLAN,
    COMMAND_CHECK,
    COMMAND_HELP,
    COMMAND_HELP_CONFIG,
    COMMAND_VERSION
} Command;

typedef struct Args {
    Command command;
    const char *config; /* borrowed from argv, as all of these          */
    char **overrides;   /* owned array of "key.path=value"               */
    int override_count;
    const char *set;    /* --eval=SET, --sample=SET, or NULL             */
    const char *prompt; /* --prompt TEXT, or NULL                        */
    bool json;          /* --plan=json                                   */
    int ranks;          /* --ranks N for --plan and --check; 0: the mesh's product */
} Args;

/* STATUS_CONFIG with the argument, the rule and the usage line. */
DM_NODISCARD Status args_parse(Args *args, int argc, char **argv);
void args_deinit(Args *args);
const char *args_usage(void); /* the text of --help */

#endif
