/* Chrome trace events from spans. */
#include "metrics/trace_export.h"

#include <inttypes.h>

#include "base/arena.h"
#include "base/file.h"
#include "base/json.h"
#include "device/device.h"

#define RING 65536 /* spans that base/trace keeps */

static void write_name(JsonWriter *w, const char *kind, int rank, int track, const char *name) {
    json_begin_object(w, NULL);
    json_string(w, "name", kind);
    json_string(w, "ph", "M");
    json_int(w, "pid", rank);
    json_int(w, "tid", track);
    json_begin_object(w, "args");
    json_string(w, "name", name);
    json_end_object(w);
    json_end_object(w);
}

static void write_span(JsonWriter *w, const TraceSpan *span, int rank, int64_t step) {
    json_begin_object(w, NULL);
    json_string(w, "name", span->name);
    json_string(w, "ph", "X");
    json_double(w, "ts", (double)span->begin_ns / 1e3);
    json_double(w, "dur", (double)(span->end_ns - span->begin_ns) / 1e3);
    json_int(w, "pid", rank);
    json_int(w, "tid", span->track);
    json_begin_object(w, "args");
    json_int(w, "step", step);
    if (span->unit >= 0)
        json_int(w, "unit", span->unit);
    json_end_object(w);
    json_end_object(w);
}

void trace_export_text(const TraceSpan *spans, int count, int rank, const char *host, int64_t step, Str *out) {
    char process[192];
    str_format(process, sizeof process, "rank %d (%.128s)", rank, host);
    JsonWriter w = json_writer(out);
    json_begin_array(&w, NULL);
    write_name(&w, "process_name", rank, 0, process);
    for (int track = 0; track < STREAM_COUNT; track++)
        write_name(&w, "thread_name", rank, track, stream_name((StreamKind)track));
    for (int i = 0; i < count; i++)
        write_span(&w, &spans[i], rank, step);
    json_end_array(&w);
    str_append(out, "\n");
}

Status trace_export_write(const char *run_dir, int rank, const char *host, int64_t step) {
    char path[1200];
    str_format(path, sizeof path, "%s/trace-step-%08" PRId64 "-rank-%05d.json", run_dir, step, rank);
    TraceSpan *spans = HEAP_ALLOC(TraceSpan, RING);
    const int count = trace_drain(spans, RING);
    Str text = {0};
    trace_export_text(spans, count, rank, host, step, &text);
    const Status status = file_write_atomic(path, text.text, text.len, STATUS_CONFIG);
    str_deinit(&text);
    heap_free(spans);
    return status;
}
