/* What a person reads on stderr: one summary at the start, one line per record, a progress line that rewrites itself on
 * a terminal. */
#ifndef DMUON_METRICS_CONSOLE_H
#define DMUON_METRICS_CONSOLE_H

#include "base/str.h"
#include "metrics/metrics.h"

typedef struct Console {
    bool live;     /* stderr is a terminal                 */
    bool has_live; /* a progress line stands there now      */
} Console;

/* The texts, without newline at the end. */
void console_step_text(const StepMetrics *step, Str *out);
void console_start_text(const StartMetrics *start, Str *out);
void console_live_text(int64_t step, int64_t steps_total, float loss, double step_ms, Str *out);
/* "12s", "3m05s", "1h02m", "3d04h"; "?" when unknown. */
void console_duration(double seconds, Str *out);

void console_step(Console *console, const StepMetrics *step);
void console_start(Console *console, const StartMetrics *start);
void console_line(Console *console, const char *fmt, ...) DM_PRINTF(2, 3);
void console_live(Console *console, int64_t step, int64_t steps_total, float loss, double step_ms);
/* Takes the progress line away. */
void console_clear(Console *console);

#endif
