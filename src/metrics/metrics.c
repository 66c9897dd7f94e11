/* One handle for the two readers of a run: log.jsonl for programs, stderr for people. */
#include "metrics/metrics.h"

#include "base/arena.h"
#include "metrics/console.h"
#include "metrics/jsonl.h"

struct Metrics {
    Jsonl log;
    Console console;
};

Status metrics_open(Metrics **metrics, const char *run_dir, bool live) {
    Metrics *m = HEAP_ALLOC(Metrics, 1);
    m->console.live = live;
    const Status status = jsonl_open(&m->log, run_dir);
    if (status != STATUS_OK) {
        heap_free(m);
        m = NULL;
    }
    *metrics = m;
    return status;
}

void metrics_close(Metrics *metrics) {
    if (metrics == NULL)
        return;
    console_clear(&metrics->console);
    jsonl_close(&metrics->log);
    heap_free(metrics);
}

Status metrics_start(Metrics *metrics, const StartMetrics *start) {
    if (metrics == NULL)
        return STATUS_OK;
    console_start(&metrics->console, start);
    return jsonl_start(&metrics->log, start);
}

Status metrics_step(Metrics *metrics, const StepMetrics *step) {
    if (metrics == NULL)
        return STATUS_OK;
    console_step(&metrics->console, step);
    return jsonl_step(&metrics->log, step);
}

Status metrics_eval(Metrics *metrics, const EvalMetrics *eval) {
    if (metrics == NULL)
        return STATUS_OK;
    console_line(&metrics->console, "step %lld  validation loss %.6f over %lld tokens in %.1f s", (long long)eval->step,
                 (double)eval->loss, (long long)eval->tokens, eval->eval_ms / 1e3);
    return jsonl_eval(&metrics->log, eval);
}

Status metrics_sample(Metrics *metrics, int64_t step, const char *prompt, const char *text) {
    if (metrics == NULL)
        return STATUS_OK;
    console_line(&metrics->console, "step %lld  sample: %s%s", (long long)step, prompt, text);
    return jsonl_sample(&metrics->log, step, prompt, text);
}

Status metrics_checkpoint(Metrics *metrics, const CheckpointMetrics *checkpoint) {
    if (metrics == NULL)
        return STATUS_OK;
    console_line(&metrics->console, "step %lld  checkpoint %s (%.1f MiB in %.1f s)", (long long)checkpoint->step,
                 checkpoint->dir, (double)checkpoint->nbytes / 1048576.0, checkpoint->write_ms / 1e3);
    return jsonl_checkpoint(&metrics->log, checkpoint);
}

Status metrics_resume(Metrics *metrics, int64_t step, const char *set, MeshShape saved_mesh) {
    if (metrics == NULL)
        return STATUS_OK;
    console_line(&metrics->console, "resuming after step %lld from %s (written on a mesh of %d x %d x %d)",
                 (long long)step, set, saved_mesh.replicate, saved_mesh.shard, saved_mesh.tp);
    return jsonl_resume(&metrics->log, step, set, saved_mesh);
}

Status metrics_warning(Metrics *metrics, int64_t step, const char *text) {
    if (metrics == NULL)
        return STATUS_OK;
    console_line(&metrics->console, "warning: %s", text);
    return jsonl_warning(&metrics->log, step, text);
}

Status metrics_end(Metrics *metrics, int64_t step, const char *reason, int exit_code) {
    if (metrics == NULL)
        return STATUS_OK;
    console_line(&metrics->console, "step %lld  %s", (long long)step, reason);
    return jsonl_end(&metrics->log, step, reason, exit_code);
}

void metrics_live(Metrics *metrics, int64_t step, int64_t steps_total, float loss, double step_ms) {
    if (metrics != NULL)
        console_live(&metrics->console, step, steps_total, loss, step_ms);
}
