/* Which values cannot have an effect: features that are not built, and keys that another key makes idle. */
#include "config/load.h"

#include <string.h>

#include "config/value.h"

/* Values whose feature is not built yet: a row goes when its feature comes. Without a value: any but the default. */
static const struct {
    const char *key, *value;
} unbuilt[] = {
    {"precision.grad_reduce", "bf16"},
    {"comm.reduce", "native"},
};

void unbuilt_check(Loading *load) {
    Str value = {0};
    for (size_t i = 0; i < sizeof unbuilt / sizeof unbuilt[0]; i++) {
        const KeySpec *spec = schema_key(schema_index(unbuilt[i].key));
        str_clear(&value);
        value_print(spec, load->config, &value);
        const bool meant = unbuilt[i].value != NULL ? strcmp(value.text, unbuilt[i].value) == 0
                                                    : !value_is_initial(spec, load->config);
        if (meant)
            load_key_error(load, spec->path, NULL, "this feature is not built yet; the default, %s, is", spec->initial);
    }
    str_deinit(&value);
}

static bool tp_is_one(const Config *config) {
    return config->mesh.tp == 1;
}

/* With tp updates travel to the slices, and some tensors are on every rank. */
static bool has_no_replica(const Config *config) {
    return config->mesh.replicate == 1 && config->mesh.tp == 1 && config->parallel.data == DATA_FSDP;
}

static bool is_ddp(const Config *config) {
    return config->parallel.data == DATA_DDP;
}

/* With ddp nothing is fetched, but rounded weights are made before use all the same. */
static bool is_ddp_unrounded(const Config *config) {
    return is_ddp(config) && !config_rounds_weights(config);
}

static bool owner_is_rank0(const Config *config) {
    return config->parallel.owner.strategy == OWNER_RANK0;
}

static bool is_direct(const Config *config) {
    return config->optimizer.muon.ns.algorithm == NS_DIRECT;
}

static bool is_not_wsd(const Config *config) {
    return config->optimizer.schedule.kind != SCHEDULE_WSD;
}

static bool is_constant(const Config *config) {
    return config->optimizer.schedule.kind == SCHEDULE_CONSTANT;
}

static bool has_no_validation(const Config *config) {
    return config->data.val[0] == '\0';
}

static bool never_samples(const Config *config) {
    return config->train.sample_every == 0;
}

static bool resumes_from_path(const Config *config) {
    return strcmp(config->checkpoint.resume, "auto") != 0 && strcmp(config->checkpoint.resume, "none") != 0;
}

static bool never_resumes(const Config *config) {
    return strcmp(config->checkpoint.resume, "none") == 0;
}

static const struct {
    const char *key;
    bool (*idle)(const Config *config);
    const char *reason;
} idle_rules[] = {
    {"parallel.tp_buffer_reuse", tp_is_one, "mesh.tp is 1"},
    {"optimizer.muon.tp_distributed_gram", tp_is_one, "mesh.tp is 1"},
    {"optimizer.muon.replicate_async", has_no_replica, "mesh.replicate and mesh.tp are 1, nothing is published"},
    {"log.replica_check_every", has_no_replica, "mesh.replicate and mesh.tp are 1, there are no replicas"},
    {"parallel.reshard_after_forward.muon", is_ddp_unrounded, "parallel.data is ddp"},
    {"parallel.reshard_after_forward.adamw", is_ddp_unrounded, "parallel.data is ddp"},
    {"parallel.prefetch", is_ddp_unrounded, "parallel.data is ddp"},
    {"parallel.owner.max_per_layer", owner_is_rank0, "parallel.owner.strategy is rank0"},
    {"parallel.owner.small_param_threshold", owner_is_rank0, "parallel.owner.strategy is rank0"},
    {"parallel.owner.column_balance", owner_is_rank0, "parallel.owner.strategy is rank0"},
    {"optimizer.muon.ns.restarts", is_direct, "optimizer.muon.ns.algorithm is direct"},
    {"optimizer.schedule.decay_fraction", is_not_wsd, "optimizer.schedule.kind is not wsd"},
    {"optimizer.schedule.min_ratio", is_constant, "optimizer.schedule.kind is constant"},
    {"train.eval_batches", has_no_validation, "data.val is empty"},
    {"train.sample_prompt", never_samples, "train.sample_every is 0"},
    {"train.sample_tokens", never_samples, "train.sample_every is 0"},
    {"train.sample_temperature", never_samples, "train.sample_every is 0"},
    {"checkpoint.init_from", resumes_from_path, "checkpoint.resume names a checkpoint"},
    {"checkpoint.allow_changes", never_resumes, "checkpoint.resume is none"},
};

const char *idle_reason(const char *key, const Config *config) {
    for (size_t i = 0; i < sizeof idle_rules / sizeof idle_rules[0]; i++) {
        if (strcmp(idle_rules[i].key, key) == 0 && idle_rules[i].idle(config))
            return idle_rules[i].reason;
    }
    return NULL;
}
