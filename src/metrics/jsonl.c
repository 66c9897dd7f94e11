/* The records of log.jsonl but the first. */
#include "metrics/jsonl.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "metrics/memory.h"

Status jsonl_open(Jsonl *log, const char *run_dir) {
    str_path_join(log->path, sizeof log->path, run_dir, "log.jsonl");
    log->fd = open(log->path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (log->fd < 0)
        return STATUS_FAIL(STATUS_CONFIG, "%s: cannot be written: %s", log->path, strerror(errno));
    return STATUS_OK;
}

void jsonl_close(Jsonl *log) {
    if (log->fd >= 0)
        (void)close(log->fd); /* every line was checked when it was written */
    log->fd = -1;
}

Status jsonl_append(Jsonl *log, const Str *line) {
    ssize_t written;
    do
        written = write(log->fd, line->text, line->len);
    while (written < 0 && errno == EINTR);
    if (written < 0)
        return STATUS_FAIL(STATUS_CONFIG, "%s: write: %s", log->path, strerror(errno));
    if ((size_t)written != line->len)
        return STATUS_FAIL(STATUS_CONFIG, "%s: only %zd of %zu bytes were written: is the disk full?", log->path,
                           written, line->len);
    return STATUS_OK;
}

static JsonWriter begin_record(Str *line, const char *event) {
    JsonWriter w = json_writer(line);
    json_begin_object(&w, NULL);
    json_string(&w, "event", event);
    return w;
}

static Status end_record(Jsonl *log, JsonWriter *w, Str *line) {
    json_end_object(w);
    str_append(line, "\n");
    const Status status = jsonl_append(log, line);
    str_deinit(line);
    return status;
}

static void write_loss(JsonWriter *w, float loss) {
    uint32_t bits;
    memcpy(&bits, &loss, sizeof bits);
    json_double(w, "loss", (double)loss);
    json_hex32(w, "loss_bits", bits);
}

static void write_axis(JsonWriter *w, Axis axis, const CommCount counts[COMM_OP_COUNT]) {
    bool any = false;
    for (int op = 0; op < COMM_OP_COUNT; op++)
        any = any || counts[op].calls > 0;
    if (!any)
        return;
    json_begin_object(w, axis_name(axis));
    for (int op = 0; op < COMM_OP_COUNT; op++) {
        if (counts[op].calls == 0)
            continue;
        json_begin_object(w, comm_op_name((CommOp)op));
        json_int(w, "calls", counts[op].calls);
        json_int(w, "payload_bytes", counts[op].payload_bytes);
        json_int(w, "bus_bytes", counts[op].bus_bytes);
        json_end_object(w);
    }
    json_end_object(w);
}

void jsonl_comm(JsonWriter *w, const char *key, const CommCount *counts) {
    json_begin_object(w, key);
    for (int a = 0; a < AXIS_COUNT; a++)
        write_axis(w, (Axis)a, counts + a * COMM_OP_COUNT);
    json_end_object(w);
}

static void write_step_parts(JsonWriter *w, const StepMetrics *m) {
    json_begin_object(w, "phase_ms");
    for (int p = 0; p < PHASE_COUNT; p++)
        json_double(w, phase_name((Phase)p), m->phase_ms[p]);
    json_end_object(w);
    jsonl_comm(w, "comm", m->comm[0]);
    json_begin_object(w, "publish_wait_us");
    json_double(w, "p50", m->publish_wait_us.p50);
    json_double(w, "p90", m->publish_wait_us.p90);
    json_double(w, "p99", m->publish_wait_us.p99);
    json_end_object(w);
    if (m->has_params_hash) {
        uint64_t bits;
        memcpy(&bits, &m->grad_sumsq, sizeof bits);
        json_hex64(w, "params_hash", m->params_hash);
        json_hex64(w, "grad_sumsq_bits", bits);
    }
}

Status jsonl_step(Jsonl *log, const StepMetrics *m) {
    Str line = {0};
    JsonWriter w = begin_record(&line, "step");
    json_int(&w, "step", m->step);
    write_loss(&w, m->loss);
    json_double(&w, "grad_norm", m->grad_norm);
    json_double(&w, "lr_muon", m->lr_muon);
    json_double(&w, "lr_adamw", m->lr_adamw);
    json_int(&w, "tokens", m->tokens);
    json_int(&w, "tokens_total", m->tokens_total);
    json_double(&w, "tokens_per_s", m->tokens_per_s);
    json_double(&w, "step_ms", m->step_ms);
    json_double(&w, "mfu", m->mfu);
    json_int(&w, "ns_calls", m->ns_calls);
    json_int(&w, "nonfinite", m->nonfinite);
    write_step_parts(&w, m);
    return end_record(log, &w, &line);
}

Status jsonl_eval(Jsonl *log, const EvalMetrics *m) {
    Str line = {0};
    JsonWriter w = begin_record(&line, "eval");
    json_int(&w, "step", m->step);
    write_loss(&w, m->loss);
    json_int(&w, "tokens", m->tokens);
    json_double(&w, "eval_ms", m->eval_ms);
    return end_record(log, &w, &line);
}

Status jsonl_sample(Jsonl *log, int64_t step, const char *prompt, const char *text) {
    Str line = {0};
    JsonWriter w = begin_record(&line, "sample");
    json_int(&w, "step", step);
    json_string(&w, "prompt", prompt);
    json_string(&w, "text", text);
    return end_record(log, &w, &line);
}

Status jsonl_checkpoint(Jsonl *log, const CheckpointMetrics *m) {
    Str line = {0};
    JsonWriter w = begin_record(&line, "checkpoint");
    json_int(&w, "step", m->step);
    json_string(&w, "dir", m->dir);
    json_int(&w, "bytes", m->nbytes);
    json_double(&w, "copy_ms", m->copy_ms);
    json_double(&w, "write_ms", m->write_ms);
    json_double(&w, "save_wait_ms", m->save_wait_ms);
    return end_record(log, &w, &line);
}

Status jsonl_resume(Jsonl *log, int64_t step, const char *set, MeshShape saved_mesh) {
    Str line = {0};
    JsonWriter w = begin_record(&line, "resume");
    json_int(&w, "step", step);
    json_string(&w, "set", set);
    mesh_write(saved_mesh, &w);
    return end_record(log, &w, &line);
}

Status jsonl_warning(Jsonl *log, int64_t step, const char *text) {
    Str line = {0};
    JsonWriter w = begin_record(&line, "warning");
    json_int(&w, "step", step);
    json_string(&w, "text", text);
    return end_record(log, &w, &line);
}

Status jsonl_end(Jsonl *log, int64_t step, const char *reason, int exit_code) {
    Str line = {0};
    JsonWriter w = begin_record(&line, "end");
    json_int(&w, "step", step);
    json_string(&w, "reason", reason);
    json_int(&w, "exit_code", exit_code);
    json_int(&w, "peak_rss_bytes", (int64_t)memory_peak_rss_nbytes());
    return end_record(log, &w, &line);
}
