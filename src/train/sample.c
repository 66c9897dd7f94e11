/* Sampling, one whole forward per token over the last seq_len tokens. */
#include "train/sample.h"

#include <math.h>
#include <string.h>

#include "base/fatal.h"
#include "base/rng.h"
#include "data/prompt.h"
#include "kernels/exact_math.h"

Status sample_check(const Config *config) {
    char name[CONFIG_PATH + 32];
    int64_t count;
    if (config->train.sample_every == 0)
        return STATUS_OK;
    str_format(name, sizeof name, "%s: train.sample_prompt =", config->path);
    return prompt_parse(name, config->train.sample_prompt, config->model.vocab_size, NULL, &count);
}

/* The token at which the running sum of soft-max weights passes u in (0, 1); greedy when the temperature is 0. */
static int32_t draw(const float *logits, int64_t vocab, double temperature, double u) {
    int32_t best = 0;
    for (int64_t v = 1; v < vocab; v++)
        if (logits[v] > logits[best])
            best = (int32_t)v;
    if (temperature <= 0)
        return best;
    double total = 0;
    for (int64_t v = 0; v < vocab; v++)
        total += exact_exp64(((double)logits[v] - (double)logits[best]) / temperature);
    double sum = 0;
    for (int64_t v = 0; v < vocab; v++) {
        sum += exact_exp64(((double)logits[v] - (double)logits[best]) / temperature);
        if (sum >= u * total)
            return (int32_t)v;
    }
    return best;
}

static void append_token(Str *text, int64_t vocab, int32_t token) {
    const char byte = (char)token;
    if (vocab == PROMPT_BYTES)
        str_append_n(text, &byte, 1);
    else
        str_printf(text, "%s%d", text->len > 0 ? " " : "", token);
}

Status sample_run(Session *s, const char *prompt, Str *text) {
    const int64_t vocab = s->shape.vocab, T = s->config.batch.seq_len, n = s->config.train.sample_tokens;
    int32_t *tokens = HEAP_ALLOC(int32_t, (int64_t)strlen(prompt) + 1 + n);
    float *logits = HEAP_ALLOC(float, vocab);
    int64_t count;
    const Status status = prompt_parse("prompt", prompt, vocab, tokens, &count);
    if (status == STATUS_OK) {
        parallel_begin_forward_only(s->parallel);
        for (int64_t i = 0; i < n; i++) {
            const int64_t window = count < T ? count : T;
            uint32_t word[4];
            model_logits(s->model, tokens + count - window, window, logits);
            rng_block((uint64_t)s->config.seed, RNG_SAMPLE, (uint32_t)s->progress.step, (uint64_t)i, word);
            tokens[count] = draw(logits, vocab, s->config.train.sample_temperature, rng_unit(word[0], word[1]));
            append_token(text, vocab, tokens[count++]);
        }
        parallel_end_forward_only(s->parallel);
        str_append(text, "");
    }
    heap_free(logits);
    heap_free(tokens);
    return status;
}
