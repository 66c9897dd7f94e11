/* Lines for people on stderr. Rank 0 speaks; other ranks only for errors. Metrics are not formatted here. */
#ifndef DMUON_BASE_LOG_H
#define DMUON_BASE_LOG_H

#include "base/status.h"

typedef enum LogLevel { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG } LogLevel;

/* Global: lines above `level` are dropped. `is_root`: whether log_root_* lines of this process are printed. */
void log_set(LogLevel level, int is_root);
/* Rank 0's line. */
void log_root(LogLevel level, const char *fmt, ...) DM_PRINTF(2, 3);
/* A line of any rank. */
void log_any(LogLevel level, const char *fmt, ...) DM_PRINTF(2, 3);

#endif
