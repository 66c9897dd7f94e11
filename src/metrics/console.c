/* Lines for people. Each goes out in one write, so that those of other ranks do not fall into its middle. */
#include "metrics/console.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define CLEAR_LINE "\r\x1b[K"

void console_duration(double seconds, Str *out) {
    if (!(seconds >= 0 && seconds < 1e9)) {
        str_append(out, "?");
        return;
    }
    const int64_t s = (int64_t)(seconds + 0.5);
    if (s < 60)
        str_printf(out, "%" PRId64 "s", s);
    else if (s < 3600)
        str_printf(out, "%" PRId64 "m%02" PRId64 "s", s / 60, s % 60);
    else if (s < 86400)
        str_printf(out, "%" PRId64 "h%02" PRId64 "m", s / 3600, s / 60 % 60);
    else
        str_printf(out, "%" PRId64 "d%02" PRId64 "h", s / 86400, s / 3600 % 24);
}

void console_step_text(const StepMetrics *m, Str *out) {
    str_printf(out, "step %" PRId64 "/%" PRId64 "  loss %.6f  norm %.4f  lr %.3g/%.3g  %.0f tokens/s", m->step,
               m->steps_total, (double)m->loss, m->grad_norm, m->lr_muon, m->lr_adamw, m->tokens_per_s);
    if (isfinite(m->mfu))
        str_printf(out, "  MFU %.1f%%", m->mfu * 100.0);
    if (m->nonfinite > 0)
        str_printf(out, "  skipped %" PRId64, m->nonfinite);
    str_append(out, "  ETA ");
    console_duration((double)(m->steps_total - m->step) * m->step_ms / 1e3, out);
}

void console_live_text(int64_t step, int64_t steps_total, float loss, double step_ms, Str *out) {
    enum { WIDTH = 24 };
    const int64_t filled = steps_total > 0 ? step * WIDTH / steps_total : 0;
    str_append(out, "[");
    for (int64_t i = 0; i < WIDTH; i++)
        str_append(out, i < filled ? "#" : ".");
    str_printf(out, "] %" PRId64 "/%" PRId64 "  loss %.4f  %.0f ms/step  ETA ", step, steps_total, (double)loss,
               step_ms);
    console_duration((double)(steps_total - step) * step_ms / 1e3, out);
}

void console_start_text(const StartMetrics *s, Str *out) {
    const ModelConfig *m = &s->config->model;
    const int64_t muon = params_total(s->params, ROLE_MUON), adamw = params_total(s->params, ROLE_ADAMW);
    const PlanLoad load = plan_load(s->plan);
    str_printf(out, "dmuon-train %s  run %s in %s\n", s->version, s->run_id, s->config->run.dir);
    str_printf(out,
               "  model   %s: %" PRId64 " layers, width %" PRId64 ", vocabulary %" PRId64
               ", %.3f M parameters (%.3f M Muon, %.3f M AdamW)\n",
               m->family, m->n_layers, m->d_model, m->vocab_size, (double)(muon + adamw) / 1e6, (double)muon / 1e6,
               (double)adamw / 1e6);
    str_append(out, "  mesh    ");
    mesh_print(s->plan->mesh, out);
    str_printf(out, ", %s, %s with %d thread%s each\n", s->config->parallel.data == DATA_DDP ? "ddp" : "fsdp",
               s->device, s->threads, s->threads == 1 ? "" : "s");
    if (strcmp(s->config->device, "auto") == 0)
        str_printf(out, "  device  auto: %s, since %s\n", s->device, s->device_reason);
    if (s->init_from != NULL)
        str_printf(out, "  start   from the weights of %s\n", s->init_from);
    str_printf(out, "  owners  busiest %.3g of mean %.3g FLOPs (bound %.3g)\n", load.max, load.mean, load.bound);
    str_printf(out, "  steps   %" PRId64 " of %" PRId64 " sequences of %" PRId64 " tokens; numerics %s, %d segments",
               s->steps_total, s->config->batch.global, s->config->batch.seq_len,
               s->config->numerics.fast ? "fast" : "exact", s->params->shape->segments);
    if (s->peak_flops > 0)
        str_printf(out, "; peak %.3g FLOP/s", s->peak_flops);
    if (s->dropped_tokens > 0)
        str_printf(out, "\n  data    %" PRId64 " tokens at the ends of files are too few for a window and left out",
                   s->dropped_tokens);
}

static void put(Console *console, Str *text, bool live) {
    Str line = {0};
    if (console->has_live)
        str_append(&line, CLEAR_LINE);
    str_append_n(&line, text->text, text->len);
    if (!live)
        str_append(&line, "\n");
    (void)fwrite(line.text, 1, line.len, stderr); /* a closed terminal is no reason to stop */
    (void)fflush(stderr);
    console->has_live = live;
    str_deinit(&line);
    str_deinit(text);
}

void console_step(Console *console, const StepMetrics *step) {
    Str text = {0};
    console_step_text(step, &text);
    put(console, &text, false);
}

void console_start(Console *console, const StartMetrics *start) {
    Str text = {0};
    console_start_text(start, &text);
    put(console, &text, false);
}

void console_line(Console *console, const char *fmt, ...) {
    char buf[4096];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(buf, sizeof buf, fmt, args); /* a longer sample is cut here, not in the log */
    va_end(args);
    Str text = {0};
    str_append(&text, buf);
    put(console, &text, false);
}

void console_live(Console *console, int64_t step, int64_t steps_total, float loss, double step_ms) {
    if (!console->live)
        return;
    Str text = {0};
    console_live_text(step, steps_total, loss, step_ms, &text);
    console->has_live = true; /* also clears the start of the line before the first one */
    put(console, &text, true);
}

void console_clear(Console *console) {
    if (!console->has_live)
        return;
    (void)fwrite(CLEAR_LINE, 1, sizeof CLEAR_LINE - 1, stderr);
    (void)fflush(stderr);
    console->has_live = false;
}
