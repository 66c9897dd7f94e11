/* Spans of base/trace as a Chrome trace (chrome://tracing, Perfetto): one file per rank, a JSON array of events;
 * process = rank, thread = stream. Times are microseconds of the node's monotonic clock, so that the files of one node
 * may be laid over each other. */
#ifndef DMUON_METRICS_TRACE_EXPORT_H
#define DMUON_METRICS_TRACE_EXPORT_H

#include <stdint.h>

#include "base/status.h"
#include "base/str.h"
#include "base/trace.h"

/* The text of the file. */
void trace_export_text(const TraceSpan *spans, int count, int rank, const char *host, int64_t step, Str *out);
/* Empties the trace ring into <run_dir>/trace-step-00000100-rank-00003.json. */
DM_NODISCARD Status trace_export_write(const char *run_dir, int rank, const char *host, int64_t step);

#endif
