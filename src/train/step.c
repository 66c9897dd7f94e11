/* One step, from top to bottom. */
#include "train/step.h"

#include <math.h>

#include "base/clock.h"
#include "base/fatal.h"
#include "optim/clip.h"
#include "optim/schedule.h"
#include "train/signals.h"

/* Every leaf of this rank: forward and backward; the gradients leave through the residency as they are finished. */
static void run_leaves(Session *s, float *losses) {
    for (int64_t round = 0; round < s->plan.per_rank; round++) {
        const int32_t *tokens, *targets;
        const Status status = loader_next(s->loader, &tokens, &targets);
        if (status != STATUS_OK)
            fatal_status(status); /* the others wait in a collective already */
        parallel_begin_leaf(s->parallel, round);
        model_forward_backward(s->model, tokens, targets);
        losses[round] = model_loss(s->model);
    }
}

/* The mean over the batch: tree over the leaf losses of all ranks, times 1/L once. Carries the wish to stop, a signal
 * that came during forward or backward included: it must not cost another step. */
static float global_loss(Session *s, const float *mine, bool want_stop, bool *stop) {
    const int64_t L = s->plan.leaves;
    float *all = HEAP_ALLOC(float, L);
    parallel_gather_losses(s->parallel, mine, all, want_stop || signals_pending() != 0, stop);
    const float loss = clip_tree_f32(all, L) * (float)(1.0 / (double)L);
    heap_free(all);
    return loss;
}

void step_run(Session *s, bool want_stop, StepResult *result) {
    const Config *c = &s->config;
    const int64_t start = clock_ns(), step = s->progress.step + 1;
    const double rate = schedule_factor(c, step, s->total_steps);
    *result = (StepResult){.lr_muon = c->optimizer.muon.lr * rate,
                           .lr_adamw = c->optimizer.adamw.lr * rate,
                           .tokens = c->batch.global * c->batch.seq_len};
    comm_set_step(step);

    float *losses = HEAP_ALLOC(float, s->plan.per_rank);
    parallel_begin_step(s->parallel);
    run_leaves(s, losses);
    result->loss = global_loss(s, losses, want_stop, &result->stop);
    heap_free(losses);
    comm_compare_sequences(s->world->comm);
    result->norm = parallel_finish_gradients(s->parallel, &result->reduce_wait_ms);

    result->finite = isfinite(result->loss) && isfinite(result->norm.norm);
    const UpdateStep update = {
        .lr_muon = result->lr_muon, .lr_adamw = result->lr_adamw, .adamw_t = s->progress.adamw_t + 1};
    parallel_update(s->parallel, &update, &result->norm, result->finite, &result->publish_wait_ms);
    result->optimizer_ms = parallel_optimizer_ms(s->parallel) - result->publish_wait_ms;

    if (result->finite || c->train.nonfinite == NONFINITE_SKIP) {
        s->progress.step = step;
        s->progress.samples += c->batch.global;
        s->progress.tokens_total += result->tokens;
        s->progress.adamw_t += result->finite;
        s->progress.nonfinite += !result->finite;
    }
    model_take_times(s->model, &result->forward_ms, &result->backward_ms);
    result->step_ms = clock_ms_since(start);
}
