/* Rules across keys and against the model's dimensions. Each looks only at values that were accepted one by one, so
 * that one mistake is one error. */
#include "config/load.h"

#include <string.h>

static bool is_power_of_two(int64_t n) {
    return n > 0 && (n & (n - 1)) == 0;
}

#define USABLE(load, ...) load_usable((load), (const char *const[]){__VA_ARGS__, NULL})

static void check_model(Loading *load) {
    const ModelConfig *model = &load->config->model;
    if (USABLE(load, "model.head_dim") && model->head_dim % 2 != 0)
        load_key_error(load, "model.head_dim", NULL, "must be even, rotary embeddings turn pairs");
    if (USABLE(load, "model.n_heads", "model.n_kv_heads") && model->n_heads % model->n_kv_heads != 0)
        load_key_error(load, "model.n_kv_heads", NULL, "must divide model.n_heads = %lld", (long long)model->n_heads);
    if (USABLE(load, "batch.seq_len", "model.max_seq_len") && load->config->batch.seq_len > model->max_seq_len)
        load_key_error(load, "batch.seq_len", "model.max_seq_len", "must be at most model.max_seq_len = %lld",
                       (long long)model->max_seq_len);
}

static void check_numerics(Loading *load) {
    const Config *config = load->config;
    const struct {
        const char *key;
        bool f32;
    } precision[] = {{"precision.compute", config->precision.compute == COMPUTE_F32},
                     {"precision.wire", config->precision.wire == WIRE_F32},
                     {"precision.grad_reduce", config->precision.grad_reduce == WIRE_F32}};
    if (USABLE(load, "numerics.segments") && !is_power_of_two(config->numerics.segments))
        load_key_error(load, "numerics.segments", NULL, "must be a power of two");
    if (USABLE(load, "numerics.mode", "precision.compute", "device") && config->numerics.fast &&
        config->precision.compute == COMPUTE_TF32 && strcmp(config->device, "cuda") != 0)
        load_key_error(load, "precision.compute", NULL,
                       "needs device: cuda, a CPU has no such products; f32 and bf16 run on both");
    if (!USABLE(load, "numerics.mode") || config->numerics.fast)
        return;
    for (int i = 0; i < 3; i++) {
        if (USABLE(load, precision[i].key) && !precision[i].f32)
            load_key_error(load, precision[i].key, "numerics.mode", "numerics.mode exact requires f32");
    }
    if (USABLE(load, "comm.reduce") && config->comm.native)
        load_key_error(load, "comm.reduce", "numerics.mode", "numerics.mode exact requires canonical");
}

static void check_device(Loading *load) {
    const Config *config = load->config;
    if (USABLE(load, "device", "comm.transport") && strcmp(config->device, "cpu") == 0 &&
        strcmp(config->comm.transport, "nccl") == 0)
        load_key_error(load, "comm.transport", "device", "moves the memory of GPUs, and device is cpu");
}

static void check_mesh(Loading *load) {
    const Config *config = load->config;
    if (!USABLE(load, "mesh.replicate", "mesh.shard", "mesh.tp"))
        return;
    const int automatic = (config->mesh.replicate == 0) + (config->mesh.shard == 0) + (config->mesh.tp == 0);
    if (automatic > 1)
        load_key_error(load, config->mesh.replicate == 0 ? "mesh.replicate" : "mesh.shard", NULL,
                       "only one axis of the mesh may be auto");
    Str why = {0};
    if (automatic == 0 && USABLE(load, "batch.global", "batch.micro") && batch_misfit(config, &why))
        load_key_error(load, "batch.global", "batch.micro", "%s", why.text);
    str_clear(&why);
    if (config->mesh.tp > 1 && USABLE(load, "model.n_heads", "model.n_kv_heads", "model.head_dim", "model.d_ff") &&
        USABLE(load, "numerics.segments") && tp_misfit(config, config->mesh.tp, &why))
        load_key_error(load, "mesh.tp", NULL, "%s", why.text);
    str_deinit(&why);
}

/* Iterations of gram without a restart, at most. */
static int longest_stretch(const NsConfig *ns) {
    int longest = 0;
    for (int i = 0; i <= ns->restart_count; i++) {
        const int begin = i > 0 ? ns->restarts[i - 1] : 0, end = i < ns->restart_count ? ns->restarts[i] : ns->steps;
        longest = end - begin > longest ? end - begin : longest;
    }
    return longest;
}

/* Rounded to fp16, small eigenvalues of the Gram matrix come out wrong or negative, and grow from iteration to
 * iteration until the next restart: measured, a fourth one costs 0.4 % of the gradient norm, an eighth all. */
static void check_rounded_gram(Loading *load) {
    const Config *config = load->config;
    const NsConfig *ns = &config->optimizer.muon.ns;
    if (USABLE(load, "numerics.mode", "precision.compute", "optimizer.muon.ns.algorithm") && config->numerics.fast &&
        config->precision.compute != COMPUTE_F32 && ns->algorithm != NS_DIRECT && longest_stretch(ns) > NS_ROUNDED_MAX)
        load_key_error(load, "optimizer.muon.ns.restarts", "precision.compute",
                       "leaves %d iterations without a restart, and rounded products allow %d: add restarts (as in "
                       "[2, 4, 6]), or set optimizer.muon.ns.algorithm: direct",
                       longest_stretch(ns), NS_ROUNDED_MAX);
}

static void check_newton_schulz(Loading *load) {
    const NsConfig *ns = &load->config->optimizer.muon.ns;
    if (!USABLE(load, "optimizer.muon.ns.restarts", "optimizer.muon.ns.steps"))
        return;
    for (int i = 0; i < ns->restart_count; i++) {
        if (ns->restarts[i] >= ns->steps) {
            load_key_error(load, "optimizer.muon.ns.restarts", NULL, "must be below optimizer.muon.ns.steps = %d",
                           ns->steps);
            return;
        }
        if (i > 0 && ns->restarts[i] <= ns->restarts[i - 1]) {
            load_key_error(load, "optimizer.muon.ns.restarts", NULL, "must be ascending");
            return;
        }
    }
    check_rounded_gram(load);
}

static void check_optimizer(Loading *load) {
    const Config *config = load->config;
    const char *role =
        config->optimizer.clip.muon_max_norm > 0 ? "optimizer.clip.muon_max_norm" : "optimizer.clip.adamw_max_norm";
    if (config->optimizer.clip.max_norm > 0 &&
        (config->optimizer.clip.muon_max_norm > 0 || config->optimizer.clip.adamw_max_norm > 0))
        load_key_error(load, "optimizer.clip.max_norm", role,
                       "cannot be combined with a limit per role, %s; set one of them to 0", role);
    if (USABLE(load, "optimizer.schedule.warmup_steps", "train.steps") &&
        config->optimizer.schedule.warmup_steps > config->train.steps)
        load_key_error(load, "optimizer.schedule.warmup_steps", "train.steps", "must be at most train.steps = %lld",
                       (long long)config->train.steps);
}

static void check_texts(Loading *load) {
    const Config *config = load->config;
    if (USABLE(load, "data.train") && config->data.train[0] == '\0')
        load_key_error(load, "data.train", NULL, "must name a file or a glob");
    if (USABLE(load, "checkpoint.resume") && config->checkpoint.resume[0] == '\0')
        load_key_error(load, "checkpoint.resume", NULL, "must be auto, none or the path of a checkpoint");
    if (USABLE(load, "train.eval_every", "data.val") && config->train.eval_every > 0 && config->data.val[0] == '\0')
        load_key_error(load, "train.eval_every", NULL, "needs data.val, which is empty");
}

static void check_allow_changes(Loading *load) {
    const Config *config = load->config;
    for (int i = 0; i < config->checkpoint.allow_count; i++) {
        const char *name = config->checkpoint.allow_changes[i];
        const int index = schema_find(name);
        char nearest[256];
        bool misplaced;
        if (index < 0) {
            schema_nearest(name, nearest, sizeof nearest, &misplaced);
            load_key_error(load, "checkpoint.allow_changes", NULL, "'%s' is no key; the nearest valid key is '%s'",
                           name, nearest);
        } else if (schema_key(index)->identity == CLASS_NEVER) {
            load_key_error(load, "checkpoint.allow_changes", NULL, "'%s' can never change when a run is resumed", name);
        }
    }
}

void validate_rules(Loading *load) {
    check_model(load);
    check_numerics(load);
    check_device(load);
    check_mesh(load);
    check_newton_schulz(load);
    check_optimizer(load);
    check_texts(load);
    check_allow_changes(load);
}
