/* Parsing the command line. */
#include "cli/args.h"

#include <string.h>

#include "base/arena.h"
#include "base/str.h"

const char *args_usage(void) {
    return "usage: dmuon-train CONFIG.yaml [key.path=value ...] [options]\n"
           "\n"
           "  mpirun -np 8 dmuon-train configs/kjv-hsdp.yaml          train\n"
           "  dmuon-train CONFIG.yaml optimizer.muon.lr=0.01           a key of the configuration, changed\n"
           "\n"
           "  --plan[=json]        print parameters, owners, memory and traffic for the mesh; no MPI\n"
           "  --check              check configuration, data and checkpoint; no MPI\n"
           "  --ranks N            number of ranks for --plan and --check (for a mesh with `auto`)\n"
           "  --eval[=SET]         validation loss of a checkpoint directory (default: the newest of the run)\n"
           "  --sample[=SET]       continue a prompt with a checkpoint\n"
           "  --prompt TEXT        the prompt for --sample\n"
           "  --help-config        every key: type, default, bounds, meaning\n"
           "  --help, --version\n"
           "\n"
           "Exit codes: 0 done; 2 usage, configuration, device, memory, launch, run directory; 3 data;\n"
           "4 checkpoint, lock, foreign run, failed save; 5 non-finite numbers; 6 communication;\n"
           "75 stopped by a signal or the wall-time budget, state saved; 130 second interrupt.\n";
}

static Status refuse(const char *argument, const char *why) {
    return STATUS_FAIL(STATUS_CONFIG,
                       "command line: %s: %s\n  usage: dmuon-train CONFIG.yaml [key.path=value ...] [options]; --help",
                       argument, why);
}

static Status set_command(Args *args, Command command, const char *argument) {
    if (args->command != COMMAND_TRAIN && args->command != command)
        return refuse(argument, "only one of --plan, --check, --eval, --sample, --help, --help-config, --version");
    args->command = command;
    return STATUS_OK;
}

/* "--name" or "--name=value": true, with the value or NULL. */
static bool is_option(const char *argument, const char *name, const char **value) {
    const size_t n = strlen(name);
    if (strncmp(argument, name, n) != 0 || (argument[n] != '\0' && argument[n] != '='))
        return false;
    *value = argument[n] == '=' ? argument + n + 1 : NULL;
    return true;
}

/* Options that take their value from the next argument or after '='. */
static Status take_value(int argc, char **argv, int *at, const char **value) {
    if (*value)
        return STATUS_OK;
    if (*at + 1 >= argc)
        return refuse(argv[*at], "needs a value");
    *value = argv[++*at];
    return STATUS_OK;
}

static Status parse_plain(Args *args, const char *argument, const char *value) {
    static const struct {
        const char *name;
        Command command;
    } plain[] = {{"--check", COMMAND_CHECK},
                 {"--help", COMMAND_HELP},
                 {"--help-config", COMMAND_HELP_CONFIG},
                 {"--version", COMMAND_VERSION}};
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++)
        if (is_option(argument, plain[i].name, &value))
            return value ? refuse(argument, "takes no value") : set_command(args, plain[i].command, argument);
    return refuse(argument, "unknown option");
}

static Status parse_option(Args *args, int argc, char **argv, int *at) {
    const char *argument = argv[*at], *value = NULL;
    if (is_option(argument, "--plan", &value)) {
        if (value && strcmp(value, "json") != 0)
            return refuse(argument, "the form is --plan or --plan=json");
        args->json = value != NULL;
        return set_command(args, COMMAND_PLAN, argument);
    }
    if (is_option(argument, "--eval", &args->set))
        return set_command(args, COMMAND_EVAL, argument);
    if (is_option(argument, "--sample", &args->set))
        return set_command(args, COMMAND_SAMPLE, argument);
    if (is_option(argument, "--prompt", &args->prompt))
        return take_value(argc, argv, at, &args->prompt);
    if (is_option(argument, "--ranks", &value)) {
        int64_t ranks;
        TRY(take_value(argc, argv, at, &value));
        if (!str_parse_int(value, &ranks) || ranks < 1 || ranks > 1000000)
            return refuse(value, "--ranks must be a whole number of at least 1");
        args->ranks = (int)ranks;
        return STATUS_OK;
    }
    return parse_plain(args, argument, value);
}

Status args_parse(Args *args, int argc, char **argv) {
    *args = (Args){.overrides = HEAP_ALLOC(char *, argc)};
    for (int i = 1; i < argc; i++) {
        if (str_starts_with(argv[i], "--"))
            TRY(parse_option(args, argc, argv, &i));
        else if (strchr(argv[i], '='))
            args->overrides[args->override_count++] = argv[i];
        else if (args->config)
            return refuse(argv[i], "only one configuration file");
        else
            args->config = argv[i];
    }
    if (args->prompt && args->command != COMMAND_SAMPLE)
        return refuse("--prompt", "goes with --sample");
    if (args->ranks > 0 && args->command != COMMAND_PLAN && args->command != COMMAND_CHECK)
        return refuse("--ranks", "goes with --plan or --check; a run has as many ranks as mpirun starts");
    if (!args->config && args->command < COMMAND_HELP)
        return refuse("CONFIG.yaml", "a configuration file is needed");
    return STATUS_OK;
}

void args_deinit(Args *args) {
    heap_free(args->overrides);
}
