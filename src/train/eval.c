/* The validation pass. */
#include "train/eval.h"

#include <string.h>

#include "base/clock.h"
#include "base/fatal.h"
#include "optim/clip.h"
#include "train/signals.h"

/* Leaf `leaf` of a group of windows: B windows, masked ones (beyond `count`) run window 0 and are dropped by the
 * caller. */
static void leaf_windows(const Session *s, int64_t first, int64_t count, int32_t *tokens, int32_t *targets) {
    const int64_t B = s->config.batch.micro, T = s->config.batch.seq_len;
    for (int64_t b = 0; b < B; b++) {
        const int64_t window = first + b < count ? first + b : 0;
        const Status status = dataset_window(s->val, window, tokens + b * T, targets + b * T);
        if (status != STATUS_OK)
            fatal_status(status); /* the others wait in a collective already */
    }
}

/* One group of batch.global windows: every rank its leaves; all window sums end up in sums[window] on every rank. */
static void eval_group(Session *s, int64_t group, int64_t count, float *sums, bool *stop) {
    const int64_t B = s->config.batch.micro, T = s->config.batch.seq_len, k = s->plan.per_rank;
    const int64_t per_rank = k * B + 1, first = group * s->config.batch.global;
    const int size = s->world->size;
    int32_t *tokens = HEAP_ALLOC(int32_t, 2 * B * T);
    float *mine = HEAP_ALLOC(float, per_rank), *all = HEAP_ALLOC(float, per_rank *size);
    for (int64_t j = 0; j < k; j++) {
        leaf_windows(s, first + s->leaf[j] * B, count, tokens, tokens + B * T);
        model_eval(s->model, tokens, tokens + B * T, mine + j * B);
    }
    mine[k * B] = signals_pending() != 0 ? 1.0F : 0.0F;
    host_all_gather(s->world->comm, mine, all, per_rank * (int64_t)sizeof(float));
    for (int r = 0; r < size; r++) {
        const MeshCoord c = mesh_coord(s->mesh.shape, r);
        for (int64_t j = 0; j < k * B; j++) {
            const int64_t leaf = plan_leaf(&s->plan, c.replicate * s->mesh.shape.shard + c.shard, j / B);
            const int64_t window = first + leaf * B + j % B;
            if (window < count)
                sums[window] = all[r * per_rank + j];
        }
        *stop = *stop || all[r * per_rank + k * B] != 0.0F;
    }
    heap_free(all);
    heap_free(mine);
    heap_free(tokens);
}

void eval_run(Session *s, EvalResult *result) {
    const int64_t start = clock_ns(), global = s->config.batch.global;
    int64_t count = dataset_samples(s->val);
    if (s->config.train.eval_batches > 0 && s->config.train.eval_batches * global < count)
        count = s->config.train.eval_batches * global;
    float *sums = HEAP_ALLOC(float, count);
    *result = (EvalResult){.tokens = count * s->config.batch.seq_len};
    parallel_begin_forward_only(s->parallel);
    for (int64_t group = 0; group * global < count && !result->stop; group++)
        eval_group(s, group, count, sums, &result->stop);
    parallel_end_forward_only(s->parallel);
    result->loss = clip_tree_f32(sums, count) * (float)(1.0 / (double)result->tokens);
    result->ms = clock_ms_since(start);
    heap_free(sums);
}
