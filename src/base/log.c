#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

#include "base/fatal.h"

enum { LOG_LINE_BYTES = 16384 };

static atomic_int log_level = LOG_INFO;
static atomic_int log_is_root = 1;

static const char *const level_prefix[] = {
    [LOG_ERROR] = "error: ", [LOG_WARN] = "warning: ", [LOG_INFO] = "", [LOG_DEBUG] = "debug: "};

void log_set(LogLevel level, int is_root) {
    atomic_store(&log_level, (int)level);
    atomic_store(&log_is_root, is_root);
}

/* One fputs of a whole line: stdio locks the stream, so lines of threads do not mix. */
static void print_line(LogLevel level, const char *who, const char *fmt, va_list args) {
    char text[LOG_LINE_BYTES];
    (void)vsnprintf(text, sizeof text, fmt, args);
    char line[LOG_LINE_BYTES + 512];
    (void)snprintf(line, sizeof line, "%s%s%s\n", who, level_prefix[level], text);
    (void)fputs(line, stderr);
    (void)fflush(stderr);
}

void log_root(LogLevel level, const char *fmt, ...) {
    if ((int)level > atomic_load(&log_level) || !atomic_load(&log_is_root))
        return;
    va_list args;
    va_start(args, fmt);
    print_line(level, level <= LOG_WARN ? "dmuon-train: " : "", fmt, args);
    va_end(args);
}

void log_any(LogLevel level, const char *fmt, ...) {
    if ((int)level > atomic_load(&log_level))
        return;
    char who[400];
    (void)snprintf(who, sizeof who, "dmuon-train: %s", fatal_identity());
    va_list args;
    va_start(args, fmt);
    print_line(level, who, fmt, args);
    va_end(args);
}
