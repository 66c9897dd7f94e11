/* The training loop. */
#include "train/loop.h"

#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fatal.h"
#include "base/log.h"
#include "base/version.h"
#include "device/products.h"
#include "metrics/metrics.h"
#include "metrics/trace_export.h"
#include "train/budget.h"
#include "train/eval.h"
#include "train/replicas.h"
#include "train/sample.h"
#include "train/signals.h"
#include "train/step.h"

#define WAITS 4096

typedef struct Loop {
    Session *session;
    Metrics *metrics; /* rank 0; NULL elsewhere */
    StepWindow window;
    Budget budget;
    int64_t saved_step; /* of the newest set that this process began or started from; -1 none */
    Status report;      /* rank 0: what recording a background save between two agreements came to */
} Loop;

/* Rank 0 tells the log; everybody hears whether that worked. */
static Status agree(const Loop *loop, Status status) {
    return comm_agree(loop->session->world->comm, status);
}

static Status record_warnings(Loop *loop) {
    Session *s = loop->session;
    for (char *line = s->warnings.text; line && *line;) {
        char *end = strchr(line, '\n');
        if (end)
            *end = '\0';
        TRY(metrics_warning(loop->metrics, s->progress.step, line));
        line = end ? end + 1 : NULL;
    }
    if (!s->plan.flat_tree)
        TRY(metrics_warning(
            loop->metrics, s->progress.step,
            "R, G and the leaves per rank are not powers of two: this run is reproducible on its own mesh and "
            "mode, not across them"));
    return STATUS_OK;
}

static const char *starts_from(const Session *s) {
    const char *init_from = s->config.checkpoint.init_from;
    return s->start.set[0] == '\0' && init_from[0] != '\0' ? init_from : NULL;
}

static Status record_start(Loop *loop) {
    Session *s = loop->session;
    if (s->world->rank != 0)
        return STATUS_OK;
    TRY(metrics_open(&loop->metrics, s->config.run.dir, isatty(STDERR_FILENO)));
    TRY(metrics_start(loop->metrics, &(StartMetrics){.run_id = s->start.run_id,
                                                     .version = DMUON_VERSION,
                                                     .device = device_name(s->device),
                                                     .device_reason = s->choice.why,
                                                     .init_from = starts_from(s),
                                                     .products = device_products(s->device),
                                                     .config = &s->config,
                                                     .params = &s->params,
                                                     .plan = &s->plan,
                                                     .world = s->world,
                                                     .threads = s->threads,
                                                     .steps_total = s->total_steps,
                                                     .peak_flops = s->peak_flops,
                                                     .data = s->data_identity.text,
                                                     .dropped_tokens = dataset_dropped(s->train)}));
    if (s->start.resume)
        TRY(metrics_resume(loop->metrics, s->progress.step, s->start.set, s->saved_mesh));
    return record_warnings(loop);
}

/* A step record: what all ranks saw since the last one. Collective. */
static Status record_step(Loop *loop, const StepResult *r) {
    Session *s = loop->session;
    const Config *c = &s->config;
    double waits[WAITS];
    const WindowInputs inputs = {.ns_calls = parallel_take_ns_calls(s->parallel),
                                 .publish_wait_us = waits,
                                 .publish_waits = parallel_take_publish_waits(s->parallel, waits, WAITS),
                                 .flops_per_step =
                                     model_flops(&s->shape, c->batch.global * c->batch.seq_len, c->batch.seq_len),
                                 .peak_flops = s->peak_flops};
    StepMetrics m = {.step = s->progress.step,
                     .steps_total = s->total_steps,
                     .loss = r->loss,
                     .grad_norm = r->norm.norm,
                     .lr_muon = r->lr_muon,
                     .lr_adamw = r->lr_adamw,
                     .tokens_total = s->progress.tokens_total,
                     .nonfinite = s->progress.nonfinite};
    window_reduce(&loop->window, &inputs, &s->mesh, &m);
    const int64_t every = c->log.params_hash_every;
    m.has_params_hash = every > 0 && (m.step % every == 0 || m.step == s->total_steps);
    if (m.has_params_hash) {
        m.params_hash = parallel_hash(s->parallel, s->progress.step, s->progress.adamw_t);
        m.grad_sumsq = r->norm.sumsq;
    }
    return agree(loop, loop->report != STATUS_OK ? loop->report : metrics_step(loop->metrics, &m));
}

static void count_step(Loop *loop, const StepResult *r) {
    const double phase[PHASE_COUNT] = {[PHASE_FORWARD] = r->forward_ms,
                                       [PHASE_BACKWARD] = r->backward_ms,
                                       [PHASE_REDUCE_WAIT] = r->reduce_wait_ms,
                                       [PHASE_OPTIMIZER] = r->optimizer_ms,
                                       [PHASE_PUBLISH_WAIT] = r->publish_wait_ms};
    window_add(&loop->window, r->tokens, r->step_ms, phase);
    budget_saw_step(&loop->budget, r->step_ms * 1e-3);
}

static Status run_eval(Loop *loop, bool *stop) {
    Session *s = loop->session;
    EvalResult r;
    eval_run(s, &r);
    *stop = *stop || r.stop;
    if (r.stop)
        return STATUS_OK;
    const EvalMetrics m = {.step = s->progress.step, .loss = r.loss, .tokens = r.tokens, .eval_ms = r.ms};
    return agree(loop, metrics_eval(loop->metrics, &m));
}

static Status run_sample(Loop *loop) {
    Session *s = loop->session;
    Str text = {0};
    Status status = agree(loop, sample_run(s, s->config.train.sample_prompt, &text));
    if (status == STATUS_OK)
        status = agree(loop, metrics_sample(loop->metrics, s->progress.step, s->config.train.sample_prompt, text.text));
    str_deinit(&text);
    return status;
}

static Status warn_of_save(Loop *loop, const SaveReport *r, const char *what, const char *why) {
    Str text = {0};
    str_printf(&text, "the checkpoint of step %lld %s: %s", (long long)r->state.step, what, why);
    const Status status = metrics_warning(loop->metrics, loop->session->progress.step, text.text);
    str_deinit(&text);
    return status;
}

/* What became of a finished save: a record, or a warning. `must` = the run depends on it. */
static Status report_save(Loop *loop, const SaveReport *r, bool must) {
    budget_saw_save(&loop->budget, (r->copy_ms + r->write_ms) * 1e-3);
    if (r->status != STATUS_OK && must)
        return STATUS_FAIL(STATUS_CHECKPOINT, "the checkpoint of step %lld could not be saved: %s",
                           (long long)r->state.step, r->trail);
    if (r->status != STATUS_OK)
        return warn_of_save(loop, r, "could not be saved, training goes on", r->trail);
    TRY(metrics_checkpoint(loop->metrics, &(CheckpointMetrics){.step = r->state.step,
                                                               .dir = r->dir,
                                                               .nbytes = r->nbytes,
                                                               .copy_ms = r->copy_ms,
                                                               .write_ms = r->write_ms,
                                                               .save_wait_ms = r->wait_ms}));
    return r->unpruned[0] == '\0' ? STATUS_OK
                                  : warn_of_save(loop, r, "was saved, but older ones were not removed", r->unpruned);
}

/* Saves the present step. `last`: waits for the result and fails with it. */
static Status save(Loop *loop, bool last) {
    Session *s = loop->session;
    SaveReport report;
    /* ranks learn of a background save at different moments: each may have reported it before */
    TRY(agree(loop, saver_poll(s->saver, true, &report) ? report_save(loop, &report, false) : loop->report));
    if (loop->saved_step == s->progress.step)
        return STATUS_OK;
    const SaveState state = {.step = s->progress.step,
                             .samples = s->progress.samples,
                             .adamw_t = s->progress.adamw_t,
                             .tokens_total = s->progress.tokens_total};
    saver_begin(s->saver, &state, s->config.checkpoint.background && !last);
    loop->saved_step = state.step;
    if (!last)
        return STATUS_OK;
    const bool done = saver_poll(s->saver, true, &report);
    DM_ASSERT(done);
    return agree(loop, report_save(loop, &report, true));
}

static Status nonfinite_step(Loop *loop, const StepResult *r) {
    Session *s = loop->session;
    const int bad = r->norm.bad_param;
    Str text = {0};
    str_printf(&text, "step %lld: loss %g, gradient norm %g; first tensor with a non-finite gradient: %s",
               (long long)(s->progress.step + (s->config.train.nonfinite == NONFINITE_STOP)), (double)r->loss,
               (double)r->norm.norm, bad >= 0 ? s->params.row[bad].name : "none");
    Status status;
    if (s->config.train.nonfinite == NONFINITE_STOP)
        status =
            STATUS_FAIL(STATUS_NUMERIC,
                        "%s; the last checkpoint is intact; to skip such steps set train.nonfinite=skip", text.text);
    else
        status = agree(loop, metrics_warning(loop->metrics, s->progress.step, text.text));
    str_deinit(&text);
    return status;
}

static bool due(int64_t every, int64_t step) {
    return every > 0 && step % every == 0;
}

static bool traced(const Config *c, int64_t step) {
    for (int i = 0; i < c->log.trace_count; i++)
        if (c->log.trace_steps[i] == step)
            return true;
    return false;
}

static Status run_step(Loop *loop, bool *stop) {
    Session *s = loop->session;
    const Config *c = &s->config;
    const bool trace = traced(c, s->progress.step + 1);
    StepResult r;
    trace_enable(trace);
    step_run(s, budget_spent(&loop->budget), &r);
    *stop = r.stop;
    if (!r.finite)
        TRY(nonfinite_step(loop, &r));
    if (trace) {
        parallel_drain(s->parallel);
        trace_enable(false);
        TRY(agree(loop, trace_export_write(c->run.dir, s->world->rank, s->world->host, s->progress.step)));
    }
    count_step(loop, &r);
    metrics_live(loop->metrics, s->progress.step, s->total_steps, r.loss, r.step_ms);
    if (due(c->log.every, s->progress.step) || s->progress.step == s->total_steps || r.stop)
        TRY(record_step(loop, &r));
    return STATUS_OK;
}

/* What follows a step: comparison of the replicas, evaluation, sample, checkpoint. */
static Status after_step(Loop *loop, bool *stop) {
    Session *s = loop->session;
    const Config *c = &s->config;
    const int64_t step = s->progress.step;
    const bool last = step == s->total_steps;
    if (due(c->log.replica_check_every, step))
        TRY(replicas_check(s));
    if (s->val && !*stop && (due(c->train.eval_every, step) || (last && c->train.eval_every > 0)))
        TRY(run_eval(loop, stop));
    if (!*stop && due(c->train.sample_every, step))
        TRY(run_sample(loop));
    if (*stop || (last && c->checkpoint.every > 0))
        return save(loop, true);
    if (due(c->checkpoint.every, step))
        return save(loop, false);
    SaveReport report;
    if (loop->report == STATUS_OK && saver_poll(s->saver, false, &report))
        loop->report = report_save(loop, &report, false);
    return STATUS_OK;
}

/* A signal that came during the start, to any rank. Collective. */
static bool stopped_in_start(const Loop *loop) {
    double wish = signals_pending() != 0;
    host_max_f64(loop->session->world->comm, &wish, 1);
    return wish != 0;
}

static Status train(Loop *loop) {
    Session *s = loop->session;
    TRY(agree(loop, record_start(loop)));
    bool stop = stopped_in_start(loop);
    if (stop)
        TRY(save(loop, true));
    while (s->progress.step < s->total_steps && !stop) {
        TRY(run_step(loop, &stop));
        TRY(after_step(loop, &stop));
    }
    if (stop && s->progress.step < s->total_steps)
        return STATUS_FAIL(STATUS_STOPPED, "stopped at step %lld of %lld, checkpoint saved",
                           (long long)s->progress.step, (long long)s->total_steps);
    return STATUS_OK;
}

Status loop_run(Session *s, double job_start_s) {
    if (s->progress.step >= s->total_steps) {
        log_root(LOG_INFO, "%s: the run in %s has finished its %lld steps; nothing to do", s->config.path,
                 s->config.run.dir, (long long)s->total_steps);
        return STATUS_OK;
    }
    char own[SET_PATH]; /* a set of another directory does not spare this one its own */
    set_path(own, s->config.run.dir, s->progress.step);
    Loop loop = {.session = s, .saved_step = strcmp(own, s->start.set) == 0 ? s->progress.step : -1};
    budget_init(&loop.budget, job_start_s, s->config.train.max_wall_s);
    const Status status = train(&loop);
    if (loop.metrics) {
        const char *reason = status == STATUS_OK ? "done" : status_name(status);
        const Status end = metrics_end(loop.metrics, s->progress.step, reason, status_exit_code(status));
        metrics_close(loop.metrics);
        if (status == STATUS_OK)
            return end;
    }
    return status;
}
