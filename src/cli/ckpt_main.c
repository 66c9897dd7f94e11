/* dmuon-ckpt: looks at, verifies, compares and exports checkpoints, without MPI. */
#include <stdio.h>
#include <string.h>

#include "base/version.h"
#include "checkpoint/tool.h"

#define EXIT_DIFFERENT 1

static const char usage[] = "usage: dmuon-ckpt info DIR [--json]\n"
                            "       dmuon-ckpt verify DIR [--json]\n"
                            "       dmuon-ckpt diff A B [--json]\n"
                            "       dmuon-ckpt export DIR --out NEW_DIR [--dtype bf16|f32] [--single-file]\n"
                            "\n"
                            "DIR is a checkpoint set: RUN_DIR/checkpoints/step-00000100.\n"
                            "Exit codes: 0 done, valid, equal; 1 different; 2 usage; 4 damaged or unreadable.\n";

typedef struct CkptArgs {
    const char *word[4]; /* command and directories; borrowed from argv, as all of these */
    int words;
    const char *out, *dtype;
    bool json, single_file, help, version;
} CkptArgs;

static Status refuse(const char *argument, const char *why) {
    return STATUS_FAIL(STATUS_CONFIG, "command line: %s: %s; dmuon-ckpt --help shows the forms", argument, why);
}

/* "--name VALUE" or "--name=VALUE". */
static bool take_value(int argc, char **argv, int *at, const char *name, const char **value) {
    const size_t n = strlen(name);
    if (strncmp(argv[*at], name, n) == 0 && argv[*at][n] == '=') {
        *value = argv[*at] + n + 1;
        return true;
    }
    if (strcmp(argv[*at], name) != 0 || *at + 1 >= argc)
        return false;
    *value = argv[++*at];
    return true;
}

static Status parse_one(CkptArgs *args, int argc, char **argv, int *at) {
    const char *argument = argv[*at];
    if (take_value(argc, argv, at, "--out", &args->out) || take_value(argc, argv, at, "--dtype", &args->dtype))
        return STATUS_OK;
    if (strcmp(argument, "--json") == 0)
        args->json = true;
    else if (strcmp(argument, "--single-file") == 0)
        args->single_file = true;
    else if (strcmp(argument, "--help") == 0)
        args->help = true;
    else if (strcmp(argument, "--version") == 0)
        args->version = true;
    else if (argument[0] == '-')
        return refuse(argument, "unknown option, or its value is missing");
    else if (args->words == 4)
        return refuse(argument, "one argument too many");
    else
        args->word[args->words++] = argument;
    return STATUS_OK;
}

static Status run_export(const CkptArgs *args, Str *out) {
    ExportOptions options = {.dir = args->word[1], .out = args->out, .dtype = ST_F32, .single_file = args->single_file};
    if (args->out == NULL)
        return refuse("export", "needs --out NEW_DIR");
    if (args->json)
        return refuse("--json", "is for info, verify and diff");
    if (args->dtype != NULL && strcmp(args->dtype, "bf16") == 0)
        options.dtype = ST_BF16;
    else if (args->dtype != NULL && strcmp(args->dtype, "f32") != 0)
        return refuse(args->dtype, "--dtype is bf16 or f32");
    return tool_export(&options, out);
}

static Status run(const CkptArgs *args, Str *out, bool *equal) {
    const char *command = args->words > 0 ? args->word[0] : "(no command)";
    const ToolFormat format = args->json ? TOOL_JSON : TOOL_TEXT;
    if (strcmp(command, "export") == 0 && args->words == 2)
        return run_export(args, out);
    if (args->out != NULL || args->dtype != NULL || args->single_file)
        return refuse(command, "--out, --dtype and --single-file are for export");
    if (strcmp(command, "info") == 0 && args->words == 2)
        return tool_info(args->word[1], format, out);
    if (strcmp(command, "verify") == 0 && args->words == 2)
        return tool_verify(args->word[1], format, out);
    if (strcmp(command, "diff") == 0 && args->words == 3)
        return tool_diff(args->word[1], args->word[2], format, out, equal);
    return refuse(command, "unknown command, or the wrong number of directories");
}

int main(int argc, char **argv) {
    CkptArgs args = {0};
    Str out = {0};
    bool equal = true;
    Status status = STATUS_OK;
    for (int at = 1; at < argc && status == STATUS_OK; at++)
        status = parse_one(&args, argc, argv, &at);
    if (status == STATUS_OK && args.help)
        str_append(&out, usage);
    else if (status == STATUS_OK && args.version)
        str_append(&out, "dmuon-ckpt " DMUON_VERSION "\n");
    else if (status == STATUS_OK)
        status = run(&args, &out, &equal);
    const bool written = out.len == 0 || (fwrite(out.text, 1, out.len, stdout) == out.len && fflush(stdout) == 0);
    str_deinit(&out);
    if (status == STATUS_OK && !written)
        status = STATUS_FAIL(STATUS_CONFIG, "standard output cannot be written");
    if (status != STATUS_OK)
        fprintf(stderr, "dmuon-ckpt: %s\n", status_trail());
    return status == STATUS_OK && !equal ? EXIT_DIFFERENT : status_exit_code(status);
}
