/* Forward and backward of llama-60m over one leaf of 2 x 512 tokens on one rank and one thread, as a share of what the
 * matrix product reaches in the same run (model FLOPs utilisation). One JSON object on stdout.
 * bench_train [llama-60m | demo] [rounds] */
#include <string.h>

#include "comm/world.h"
#include "model/init.h"
#include "model/model.h"
#include "tests/bench/bench.h"

enum { DEFAULT_ROUNDS = 5, MAX_ROUNDS = 99, WARM_UP = 1 };

typedef struct Setting {
    ModelConfig model;
    int64_t B, T;
} Setting;

static const Setting llama_60m = {
    .model = {.family = "llama",
              .d_model = 512,
              .n_layers = 8,
              .n_heads = 8,
              .n_kv_heads = 8,
              .head_dim = 64,
              .d_ff = 1376,
              .vocab_size = 32000,
              .max_seq_len = 2048,
              .rope_theta = 10000.0,
              .norm_eps = 1e-5,
              .init_std = 0.02},
    .B = 2,
    .T = 512,
};

static const Setting llama_1m = {
    .model = {.family = "llama",
              .d_model = 128,
              .n_layers = 4,
              .n_heads = 8,
              .n_kv_heads = 8,
              .head_dim = 16,
              .d_ff = 352,
              .vocab_size = 256,
              .max_seq_len = 2048,
              .rope_theta = 10000.0,
              .norm_eps = 1e-5,
              .init_std = 0.02},
    .B = 2,
    .T = 256,
};

/* All weights and gradients in plain arrays, whole at all times. */
typedef struct Home {
    Config config;
    ModelShape shape;
    ParamTable table;
    float **value, **grad;
    uint16_t **bits; /* none: the CPU */
    Residency residency;
    Device *device;
    Comm *tp;
    Arena arena;
    Model *model;
} Home;

static void nothing_to_acquire(void *self, int unit, bool backward) {
    (void)self, (void)unit, (void)backward;
}

static void nothing_to_reduce(void *self, int unit) {
    (void)self, (void)unit;
}

static void home_create(Home *home, const Setting *setting) {
    *home = (Home){.config = {.model = setting->model, .numerics = {.segments = 8}}};
    home->shape = model_shape(&home->config);
    bench_check(params_create(&home->table, &home->shape, &home->config) == STATUS_OK, "no parameter table");
    bench_check(device_create(&home->device, &(DeviceOptions){.name = "cpu", .threads = 1}) == STATUS_OK, "no device");
    home->tp = comm_self_create("tp");
    home->value = calloc((size_t)home->table.count, sizeof *home->value);
    home->grad = calloc((size_t)home->table.count, sizeof *home->grad);
    bench_check(home->value != NULL && home->grad != NULL, "no memory");
    for (int i = 0; i < home->table.count; i++) {
        const Param *p = &home->table.row[i];
        home->value[i] = bench_random(p->padded_dim0 * p->dim[1]);
        home->grad[i] = bench_random(p->padded_dim0 * p->dim[1]);
        init_fill(&home->table, i, 1, 0, param_numel(p), home->value[i]);
    }
    home->bits = calloc((size_t)home->table.count, sizeof *home->bits);
    home->residency = (Residency){.acquire = nothing_to_acquire,
                                  .release = nothing_to_acquire,
                                  .grads_done = nothing_to_reduce,
                                  .value = home->value,
                                  .bits = home->bits,
                                  .grad = home->grad};
    const ModelOptions options = {.params = &home->table,
                                  .residency = &home->residency,
                                  .device = home->device,
                                  .tp = home->tp,
                                  .B = setting->B,
                                  .T = setting->T};
    bench_check(device_arena_init(home->device, &home->arena, model_activation_nbytes(&options), "activations") ==
                        STATUS_OK &&
                    model_create(&home->model, &options, &home->arena) == STATUS_OK,
                "no model");
}

static void measure(Home *home, const Setting *setting, const char *name, int rounds) {
    const int64_t N = setting->B * setting->T;
    int32_t *tokens = calloc((size_t)N + 1, sizeof *tokens);
    bench_check(tokens != NULL, "no memory");
    for (int64_t i = 0; i <= N; i++)
        tokens[i] = (int32_t)(i * 7919 % setting->model.vocab_size);
    Stream *stream = device_stream(home->device, STREAM_COMPUTE);
    const Gemm gemm = bench_peak_gemm();
    double leaf[MAX_ROUNDS], peak[MAX_ROUNDS];
    for (int round = -WARM_UP; round < rounds; round++) {
        const int at = round < 0 ? 0 : round;
        peak[at] = bench_peak(stream, &gemm);
        const double start = bench_seconds();
        model_forward_backward(home->model, tokens, tokens + 1);
        leaf[at] = bench_seconds() - start;
    }
    const double time = bench_median(leaf, rounds), best = bench_median(peak, rounds);
    const double gflop = 1e-9 * model_flops(&home->shape, N, setting->T);
    printf(
        "{\"model\": \"%s\", \"leaf_ms\": %.2f, \"gflops\": %.1f, \"peak_gflops\": %.1f, \"train_mfu_1rank\": %.3f}\n",
        name, 1e3 * time, gflop / time, best, gflop / time / best);
    free(tokens);
}

int main(int argc, char **argv) {
    const bool demo = argc > 1 && strcmp(argv[1], "demo") == 0;
    const int rounds = argc > 2 ? atoi(argv[2]) : DEFAULT_ROUNDS;
    bench_check(rounds >= 1 && rounds <= MAX_ROUNDS, "bench_train [llama-60m | demo] [rounds, 1 to 99]");
    const Setting *setting = demo ? &llama_1m : &llama_60m;
    static Home home;
    home_create(&home, setting);
    measure(&home, setting, demo ? "llama-1m" : "llama-60m", rounds);
    return 0;
}
