#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* A fixed buffer per thread: reporting a failure must not itself need memory. Longer trails lose their end. */
enum { TRAIL_BYTES = 16384 };
#define FRAME "\n    at "
static _Thread_local char trail[TRAIL_BYTES];

static void trail_append(const char *text) {
    const size_t used = strlen(trail);
    (void)snprintf(trail + used, sizeof trail - used, "%s", text);
}

Status status_fail(Status status, const char *file, int line, const char *fmt, ...) {
    char sentence[TRAIL_BYTES]; /* the arguments may point into the trail */
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(sentence, sizeof sentence, fmt, args);
    va_end(args);
    memcpy(trail, sentence, sizeof trail);
    char frame[512];
    (void)snprintf(frame, sizeof frame, FRAME "%s:%d", file, line);
    trail_append(frame);
    return status;
}

Status status_frame(Status status, const char *file, int line, const char *call) {
    if (trail[0] == '\0')
        trail_append(status_name(status));
    char frame[512];
    (void)snprintf(frame, sizeof frame, FRAME "%s:%d: %s", file, line, call);
    trail_append(frame);
    return status;
}

const char *status_trail(void) {
    return trail;
}

int status_sentence(void) {
    const char *frames = strstr(trail, FRAME);
    return (int)(frames != NULL ? (size_t)(frames - trail) : strlen(trail));
}

void status_trail_set(const char *text) {
    const size_t len = strnlen(text, sizeof trail - 1);
    memmove(trail, text, len);
    trail[len] = '\0';
}

void status_trail_clear(void) {
    trail[0] = '\0';
}

typedef struct StatusRow {
    const char *name;
    int exit_code;
} StatusRow;

static const StatusRow status_rows[] = {
    [STATUS_OK] = {"ok", 0},
    [STATUS_CONFIG] = {"configuration error", 2},
    [STATUS_NO_MEMORY] = {"out of memory", 2},
    [STATUS_DEVICE] = {"device error", 2},
    [STATUS_DATA] = {"data error", 3},
    [STATUS_CHECKPOINT] = {"checkpoint error", 4},
    [STATUS_NUMERIC] = {"non-finite numbers", 5},
    [STATUS_COMM] = {"communication error", 6},
    [STATUS_STOPPED] = {"stopped", 75},
};

/* A value outside the enum (from a damaged message) counts as a communication failure. */
static const StatusRow *status_row(Status status) {
    const size_t rows = sizeof status_rows / sizeof status_rows[0];
    return &status_rows[(size_t)status < rows ? status : STATUS_COMM];
}

int status_exit_code(Status status) {
    return status_row(status)->exit_code;
}

const char *status_name(Status status) {
    return status_row(status)->name;
}
