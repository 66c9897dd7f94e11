/* From the figures of every step on every rank to those of one record. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "metrics/metrics.h"

static const char *const phase_names[PHASE_COUNT] = {"forward", "backward", "reduce_wait", "optimizer", "publish_wait"};

const char *phase_name(Phase phase) {
    return phase_names[phase];
}

static int compare_doubles(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

Percentiles metrics_percentiles(double *values, int64_t n) {
    if (n == 0)
        return (Percentiles){(double)NAN, (double)NAN, (double)NAN};
    qsort(values, (size_t)n, sizeof *values, compare_doubles);
    /* ceil(p*n) in whole numbers: the product of p and n in binary would round up too early. */
    return (Percentiles){values[(50 * n + 99) / 100 - 1], values[(90 * n + 99) / 100 - 1],
                         values[(99 * n + 99) / 100 - 1]};
}

void window_add(StepWindow *window, int64_t tokens, double step_ms, const double phase_ms[PHASE_COUNT]) {
    window->steps++;
    window->tokens += tokens;
    window->step_ms += step_ms;
    for (int p = 0; p < PHASE_COUNT; p++)
        window->phase_ms[p] += phase_ms[p];
}

static void reduce_times(const StepWindow *window, Comm *world, StepMetrics *out) {
    double mean[1 + PHASE_COUNT];
    const double steps = window->steps > 0 ? (double)window->steps : 1.0;
    mean[0] = window->step_ms / steps;
    for (int p = 0; p < PHASE_COUNT; p++)
        mean[1 + p] = window->phase_ms[p] / steps;
    host_max_f64(world, mean, 1 + PHASE_COUNT);
    out->step_ms = mean[0];
    memcpy(out->phase_ms, mean + 1, sizeof out->phase_ms);
}

static void reduce_counts(const Mesh *mesh, int64_t ns_calls, StepMetrics *out) {
    enum { N = AXIS_COUNT * COMM_OP_COUNT * 3 };
    for (int a = 0; a < AXIS_COUNT; a++)
        comm_take_counts(mesh->axis[a], out->comm[a]);
    /* losses and norm sums are gathered over the world: the data axis, and tp with it */
    CommCount world[COMM_OP_COUNT];
    comm_take_counts(mesh->world, world);
    for (int op = 0; op < COMM_OP_COUNT; op++) {
        out->comm[AXIS_DATA][op].calls += world[op].calls;
        out->comm[AXIS_DATA][op].payload_bytes += world[op].payload_bytes;
        out->comm[AXIS_DATA][op].bus_bytes += world[op].bus_bytes;
    }
    uint64_t sums[N + 1];
    _Static_assert(sizeof out->comm == N * sizeof sums[0], "three 64-bit counts per axis and operation");
    memcpy(sums, out->comm, sizeof out->comm);
    sums[N] = (uint64_t)ns_calls;
    host_sum_u64(mesh->world, sums, N + 1);
    memcpy(out->comm, sums, sizeof out->comm);
    out->ns_calls = (int64_t)sums[N];
}

/* Over the waits of all ranks: equal rows are exchanged, then the padding is left out. */
static Percentiles reduce_waits(const WindowInputs *inputs, Comm *world) {
    const int size = comm_size(world);
    double most = inputs->publish_waits;
    host_max_f64(world, &most, 1);
    const int64_t row = 1 + (int64_t)most;
    double *mine = HEAP_ALLOC(double, row), *all = HEAP_ALLOC(double, row *size);
    mine[0] = inputs->publish_waits;
    for (int i = 0; i < inputs->publish_waits; i++)
        mine[1 + i] = inputs->publish_wait_us[i];
    host_all_gather(world, mine, all, row * (int64_t)sizeof *all);
    int64_t n = 0;
    for (int r = 0; r < size; r++) {
        const int64_t count = (int64_t)all[r * row];
        memmove(all + n, all + r * row + 1, (size_t)count * sizeof *all);
        n += count;
    }
    const Percentiles percentiles = metrics_percentiles(all, n);
    heap_free(mine);
    heap_free(all);
    return percentiles;
}

void window_reduce(StepWindow *window, const WindowInputs *inputs, const Mesh *mesh, StepMetrics *out) {
    reduce_times(window, mesh->world, out);
    reduce_counts(mesh, inputs->ns_calls, out);
    out->publish_wait_us = reduce_waits(inputs, mesh->world);
    out->tokens = window->tokens;
    const double seconds = out->step_ms * (double)window->steps / 1e3;
    out->tokens_per_s = seconds > 0 ? (double)window->tokens / seconds : (double)NAN;
    out->mfu = (double)NAN;
    if (seconds > 0 && inputs->peak_flops > 0)
        out->mfu = inputs->flops_per_step * (double)window->steps / (seconds * inputs->peak_flops);
    *window = (StepWindow){0};
}
