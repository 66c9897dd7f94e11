/* dmuon-train. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/str.h"
#include "cli/args.h"
#include "cli/run.h"
#include "cli/offline.h"
#include "train/signals.h"

int main(int argc, char **argv) {
    signals_install();
    Args args;
    bool reported = false;
    Status status = args_parse(&args, argc, argv);
    if (status != STATUS_OK)
        reported = run_refuse(&argc, &argv);
    else
        status = args.command < COMMAND_PLAN ? run_ranks(&args, &argc, &argv, &reported) : offline_run(&args);
    if (status != STATUS_OK && !reported)
        fprintf(stderr, "dmuon-train: %s\n", status_trail());
    args_deinit(&args);
    return status_exit_code(status);
}
