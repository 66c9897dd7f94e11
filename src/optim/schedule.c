/* The learning-rate factor of a step. */
#include "optim/schedule.h"

#include <math.h>

#include "base/fatal.h"
#include "kernels/exact_math.h"

int64_t schedule_total_steps(const Config *config, int64_t samples_per_epoch) {
    const int64_t steps = config->train.steps;
    int64_t samples;
    if (config->train.epochs <= 0 || __builtin_mul_overflow(config->train.epochs, samples_per_epoch, &samples))
        return steps;
    const int64_t by_epochs = samples / config->batch.global;
    return by_epochs < steps ? by_epochs : steps;
}

/* 1 until the last round-half-even(decay_fraction*N) steps, then a line down to min_ratio. */
static double stable_decay(const Config *config, int64_t step, int64_t total) {
    const double ratio = config->optimizer.schedule.min_ratio;
    const double decay = nearbyint(config->optimizer.schedule.decay_fraction * (double)total);
    const double into = (double)(step - total) + decay;
    return into > 0 ? 1.0 - (1.0 - ratio) * into / decay : 1.0;
}

double schedule_factor(const Config *config, int64_t step, int64_t total) {
    DM_ASSERT(step >= 1 && step <= total);
    const int64_t warmup = config->optimizer.schedule.warmup_steps;
    const double ratio = config->optimizer.schedule.min_ratio;
    if (step <= warmup)
        return (double)step / (double)warmup;
    const double progress = (double)(step - warmup) / (double)(total - warmup);
    switch (config->optimizer.schedule.kind) {
    case SCHEDULE_LINEAR:
        return 1.0 - (1.0 - ratio) * progress;
    case SCHEDULE_COSINE:
        return ratio + (1.0 - ratio) * (1.0 + exact_cos64(3.14159265358979323846 * progress)) / 2.0;
    case SCHEDULE_WSD:
        return stable_decay(config, step, total);
    case SCHEDULE_CONSTANT:
        break;
    }
    return 1.0;
}
