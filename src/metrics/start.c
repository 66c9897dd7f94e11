/* The first record of log.jsonl: what the run is. */
#include "base/json.h"
#include "metrics/jsonl.h"

static void write_sizes(JsonWriter *w, const ParamTable *params) {
    const ModelShape *shape = params->shape;
    json_begin_object(w, "model");
    json_int(w, "layers", shape->L);
    json_int(w, "d_model", shape->C);
    json_int(w, "vocab_size", shape->vocab);
    json_int(w, "vocab_padded", shape->V);
    json_int(w, "parameters", params_total(params, ROLE_MUON) + params_total(params, ROLE_ADAMW));
    json_int(w, "muon_parameters", params_total(params, ROLE_MUON));
    json_int(w, "adamw_parameters", params_total(params, ROLE_ADAMW));
    json_end_object(w);
}

static void write_dims(JsonWriter *w, const char *key, int ndim, const int64_t *dim) {
    json_begin_array(w, key);
    for (int i = 0; i < ndim; i++)
        json_int(w, NULL, dim[i]);
    json_end_array(w);
}

static void write_parameter(JsonWriter *w, const Param *param, const PlanParam *plan) {
    json_begin_object(w, NULL);
    json_string(w, "name", param->name);
    write_dims(w, "shape", param->ndim, param->dim);
    if (param->tp_dim >= 0)
        json_int(w, "tp_dim", param->tp_dim);
    else
        json_null(w, "tp_dim");
    write_dims(w, "local_shape", param->ndim, plan->local_dim);
    json_string(w, "role", param->role == ROLE_MUON ? "muon" : "adamw");
    if (param->role == ROLE_MUON) {
        json_begin_object(w, "owner");
        json_int(w, "shard", plan->owner_shard);
        json_int(w, "replicate", plan->owner_replicate);
        json_int(w, "tp", plan->owner_tp);
        json_end_object(w);
        json_bool(w, "distributed", plan->distributed);
        json_double(w, "cost", plan->cost);
    }
    json_end_object(w);
}

static void write_plan(JsonWriter *w, const StartMetrics *s) {
    mesh_write(s->plan->mesh, w);
    const PlanLoad load = plan_load(s->plan);
    json_begin_object(w, "load");
    json_double(w, "max", load.max);
    json_double(w, "mean", load.mean);
    json_double(w, "bound", load.bound);
    json_double(w, "imbalance", load.mean > 0 ? load.max / load.mean : 1.0);
    json_end_object(w);
    json_hex64(w, "plan_hash", s->plan->hash);
    json_begin_array(w, "parameters");
    for (int i = 0; i < s->params->count; i++)
        write_parameter(w, &s->params->row[i], &s->plan->param[i]);
    json_end_array(w);
}

static void write_machine(JsonWriter *w, const StartMetrics *s) {
    json_begin_object(w, "numerics");
    json_string(w, "mode", s->config->numerics.fast ? "fast" : "exact");
    json_int(w, "segments", s->params->shape->segments);
    json_bool(w, "flat_tree", s->plan->flat_tree);
    json_string(w, "products", s->products[0] != '\0' ? s->products : NULL);
    json_end_object(w);
    json_begin_object(w, "build");
    json_string(w, "version", s->version);
    json_string(w, "compiler", __VERSION__);
    json_end_object(w);
    json_string(w, "device", s->device);
    json_string(w, "device_reason", s->device_reason);
    json_int(w, "threads", s->threads);
    if (s->peak_flops > 0)
        json_double(w, "peak_flops", s->peak_flops);
    else
        json_null(w, "peak_flops");
    json_begin_array(w, "hosts");
    for (int r = 0; r < s->world->size; r++)
        json_string(w, NULL, s->world->hosts + (size_t)r * sizeof s->world->host);
    json_end_array(w);
}

Status jsonl_start(Jsonl *log, const StartMetrics *s) {
    Str line = {0}, config = {0};
    JsonWriter w = json_writer(&line);
    json_begin_object(&w, NULL);
    json_string(&w, "event", "start");
    json_int(&w, "schema", JSONL_SCHEMA);
    json_string(&w, "run_id", s->run_id);
    config_dump_json(s->config, &config);
    json_raw(&w, "config", config.text);
    str_deinit(&config);
    json_int(&w, "steps_total", s->steps_total);
    json_string(&w, "data", s->data);
    json_int(&w, "dropped_tokens", s->dropped_tokens);
    write_sizes(&w, s->params);
    write_plan(&w, s);
    write_machine(&w, s);
    json_end_object(&w);
    str_append(&line, "\n");
    const Status status = jsonl_append(log, &line);
    str_deinit(&line);
    return status;
}
