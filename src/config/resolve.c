/* What depends on the number of ranks, and the segments that follow from the model. */
#include "config/load.h"

#include <string.h>

int config_lowered_segments(const Config *config) {
    const ModelConfig *model = &config->model;
    const int64_t sizes[3] = {model->n_kv_heads * model->head_dim, model->n_heads * model->head_dim, model->d_ff};
    int segments = 1;
    while (2 * segments <= config->numerics.segments && sizes[0] % (2 * segments) == 0 &&
           sizes[1] % (2 * segments) == 0 && sizes[2] % (2 * segments) == 0)
        segments *= 2;
    return segments;
}

bool config_rounds_weights(const Config *config) {
    return config->precision.compute == COMPUTE_BF16 || config->precision.wire == WIRE_BF16;
}

bool config_keeps_bits(const Config *config) {
    return config->precision.compute == COMPUTE_BF16 && !config->on_cpu && strcmp(config->device, "cpu") != 0;
}

static bool tp_fits(const Config *config, int64_t tp) {
    const ModelConfig *model = &config->model;
    return model->n_heads % tp == 0 && model->n_kv_heads % tp == 0 && model->d_ff % tp == 0 &&
           config_lowered_segments(config) % tp == 0;
}

bool tp_misfit(const Config *config, int64_t tp, Str *why) {
    const ModelConfig *model = &config->model;
    if (tp_fits(config, tp))
        return false;
    str_printf(why, "must divide n_heads = %lld, n_kv_heads = %lld, d_ff = %lld and the segments = %d; legal values: 1",
               (long long)model->n_heads, (long long)model->n_kv_heads, (long long)model->d_ff,
               config_lowered_segments(config));
    for (int64_t legal = 2; legal <= config_lowered_segments(config); legal++) {
        if (tp_fits(config, legal))
            str_printf(why, ", %lld", (long long)legal);
    }
    return true;
}

static int64_t at_least_one(int64_t n) {
    return n > 0 ? n : 1;
}

bool batch_misfit(const Config *config, Str *why) {
    const int64_t micro = config->batch.micro, global = config->batch.global;
    const int64_t replicate = at_least_one(config->mesh.replicate), shard = at_least_one(config->mesh.shard);
    const int64_t unit = micro * replicate * shard;
    if (global % unit == 0)
        return false;
    const int64_t below = global / unit * unit;
    const int64_t nearest = below == 0 || global - below >= below + unit - global ? below + unit : below;
    str_printf(why,
               "must be a multiple of batch.micro*mesh.replicate*mesh.shard = %lld*%lld*%lld = %lld; the nearest legal "
               "value is %lld",
               (long long)micro, (long long)replicate, (long long)shard, (long long)unit, (long long)nearest);
    return true;
}

static void print_axis(const char *name, int size, Str *out) {
    if (size > 0)
        str_printf(out, "%s %d", name, size);
    else
        str_printf(out, "%s auto", name);
}

static void print_mesh(const Config *config, Str *out) {
    print_axis("replicate", config->mesh.replicate, out);
    print_axis(" x shard", config->mesh.shard, out);
    print_axis(" x tp", config->mesh.tp, out);
}

/* A mesh for `nranks` that keeps as much of the given one as divides them: tp first, then replicate. */
static void print_fitting_mesh(const Config *config, int nranks, Str *out) {
    const int tp = config->mesh.tp > 0 && nranks % config->mesh.tp == 0 ? config->mesh.tp : 1;
    const int rest = nranks / tp;
    const int replicate = config->mesh.replicate > 0 && rest % config->mesh.replicate == 0 ? config->mesh.replicate : 1;
    str_printf(out, "mesh.replicate=%d mesh.shard=%d mesh.tp=%d", replicate, rest / replicate, tp);
}

static Status fail_mesh(const Config *config, int nranks, const char *problem) {
    Str mesh = {0}, fit = {0};
    print_mesh(config, &mesh);
    print_fitting_mesh(config, nranks, &fit);
    const Status status = STATUS_FAIL(STATUS_CONFIG, "%s: mesh %s %s; a mesh that fits %d: %s", config->path, mesh.text,
                                      problem, nranks, fit.text);
    str_deinit(&mesh);
    str_deinit(&fit);
    return status;
}

static Status resolve_auto(Config *config, int nranks) {
    int *axes[3] = {&config->mesh.replicate, &config->mesh.shard, &config->mesh.tp};
    int *automatic = NULL;
    int64_t product = 1;
    for (int i = 0; i < 3; i++) {
        if (*axes[i] == 0)
            automatic = axes[i];
        else
            product *= *axes[i];
    }
    char problem[256];
    if (automatic != NULL && nranks == 0)
        return STATUS_FAIL(STATUS_CONFIG,
                           "%s: an axis of the mesh is auto, and the number of ranks is not known; "
                           "give it (--ranks N) or the axis",
                           config->path);
    if (automatic != NULL && nranks % product != 0) {
        str_format(problem, sizeof problem, "needs a multiple of %lld ranks, but there are %d", (long long)product,
                   nranks);
        return fail_mesh(config, nranks, problem);
    }
    if (automatic != NULL)
        *automatic = nranks / (int)product;
    else if (nranks > 0 && product != nranks) {
        str_format(problem, sizeof problem, "needs %lld ranks, but there are %d", (long long)product, nranks);
        return fail_mesh(config, nranks, problem);
    }
    return STATUS_OK;
}

Status config_resolve_mesh(Config *config, int nranks) {
    TRY(resolve_auto(config, nranks));
    Str why = {0};
    Status status = STATUS_OK;
    if (tp_misfit(config, config->mesh.tp, &why))
        status = STATUS_FAIL(STATUS_CONFIG, "%s: mesh.tp = %d: %s", config->path, config->mesh.tp, why.text);
    else if (batch_misfit(config, &why))
        status = STATUS_FAIL(STATUS_CONFIG, "%s: batch.global = %lld: %s", config->path,
                             (long long)config->batch.global, why.text);
    str_deinit(&why);
    return status;
}
