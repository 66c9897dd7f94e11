/* Commands that print and end. */
#include "cli/offline.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "base/fatal.h"
#include "base/log.h"
#include "base/version.h"
#include "device/device.h"
#include "train/check.h"
#include "train/report.h"

static bool print(const Str *text) {
    return text->len == 0 || (fwrite(text->text, 1, text->len, stdout) == text->len && fflush(stdout) == 0);
}

/* Warnings go to stderr: stdout is the report. */
static void print_warnings(const Str *warnings) {
    for (const char *line = warnings->len > 0 ? warnings->text : ""; *line != '\0';) {
        const int n = (int)strcspn(line, "\n");
        log_root(LOG_WARN, "%.*s", n, line);
        line += n + (line[n] == '\n');
    }
}

static Status run_blueprint(const Args *args, Blueprint *b, Str *out) {
    const Status status = blueprint_create(b, args->config, args->overrides, args->override_count, args->ranks);
    print_warnings(&b->warnings);
    TRY(status);
    if (args->command == COMMAND_CHECK)
        return check_start(b, out);
    if (args->json)
        report_json(b, out);
    else
        report_text(b, out);
    return STATUS_OK;
}

static Status run_on_config(const Args *args, Str *out) {
    Blueprint *b = HEAP_ALLOC(Blueprint, 1);
    const Status status = run_blueprint(args, b, out);
    blueprint_destroy(b);
    heap_free(b);
    return status;
}

static Status run(const Args *args, Str *out) {
    switch (args->command) {
    case COMMAND_HELP:
        str_append(out, args_usage());
        return STATUS_OK;
    case COMMAND_HELP_CONFIG:
        config_help(out);
        return STATUS_OK;
    case COMMAND_VERSION:
        str_printf(out, "dmuon-train " DMUON_VERSION " (%s; exact, fast)\n", device_backends());
        return STATUS_OK;
    default:
        return run_on_config(args, out);
    }
}

Status offline_run(const Args *args) {
    DM_ASSERT(args->command >= COMMAND_PLAN);
    Str out = {0};
    const Status status = run(args, &out);
    const bool printed = print(&out); /* what passed before a failure is printed too */
    str_deinit(&out);
    if (status == STATUS_OK && !printed)
        return STATUS_FAIL(STATUS_CONFIG, "standard output: %s", strerror(errno));
    return status;
}
