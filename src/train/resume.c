/* What a run starts from: the run directory, a set, foreign weights, or initial values. */
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/str.h"
#include "device/products.h"
#include "train/phases.h"

/* A refusal with the sets that were passed over (the warnings from byte `before` on), and why. */
static Status with_reasons(const Session *s, size_t before, Status status) {
    if (status == STATUS_OK || s->warnings.len == before)
        return status;
    return STATUS_FAIL(status, "%.*s\n%.*s", status_sentence(), status_trail(), (int)(s->warnings.len - before - 1),
                       s->warnings.text + before);
}

/* The set from which the run in run.dir would go on. */
static Status newest_set(Session *s) {
    RunStart start;
    TRY(run_decide(&start, s->config.run.dir, "auto", &s->warnings));
    if (!start.resume)
        return STATUS_FAIL(STATUS_CHECKPOINT,
                           "%s: no valid checkpoint under %s/checkpoints; name one: --eval=DIR, --sample=DIR",
                           s->config.path, s->config.run.dir);
    str_format(s->start.set, sizeof s->start.set, "%s", start.set);
    return STATUS_OK;
}

/* Rank 0: the newest set, or the one that was named, for a look without a run of one's own. */
static Status choose_set(Session *s, const char *set) {
    const size_t before = s->warnings.len;
    if (!set)
        return with_reasons(s, before, newest_set(s));
    str_format(s->start.set, sizeof s->start.set, "%s", set);
    return STATUS_OK;
}

/* Rank 0: the lock, then what the directory allows. */
static Status choose_start(Session *s) {
    const Config *c = &s->config;
    TRY(run_lock(&s->lock, c->run.dir, s->world->host));
    const size_t before = s->warnings.len;
    TRY(with_reasons(s, before, run_decide(&s->start, c->run.dir, c->checkpoint.resume, &s->warnings)));
    if (!s->start.resume)
        TRY(run_draw_id(s->start.run_id));
    return STATUS_OK;
}

/* Free to differ, as the GPU and its libraries are; but then the run is not the one that it would have been. */
static void compare_products(Session *s, const char *saved) {
    const char *now = device_products(s->device);
    if (strcmp(saved, now) != 0)
        str_printf(&s->warnings,
                   "%s was computed with other algorithms for matrix products (%s; now %s): what follows has not the "
                   "bits of a run that goes on undisturbed\n",
                   s->start.set, saved[0] != '\0' ? saved : "exact ones", now[0] != '\0' ? now : "exact ones");
}

static Status check_set(Session *s) {
    Manifest manifest;
    TRY(load_open(s->start.set, s->world->comm, &manifest));
    const Status status = load_check_config(s->start.set, &manifest, &s->config, s->shape.segments,
                                            s->purpose == PURPOSE_TRAIN ? s->data_identity.text : NULL);
    if (status == STATUS_OK) {
        compare_products(s, manifest.products);
        s->progress = (Progress){.step = manifest.step,
                                 .samples = manifest.samples,
                                 .adamw_t = manifest.adamw_t,
                                 .tokens_total = manifest.tokens_total,
                                 .nonfinite = manifest.step - manifest.adamw_t};
        s->saved_mesh = manifest.mesh;
        memcpy(s->start.run_id, manifest.run_id, sizeof s->start.run_id);
    }
    manifest_deinit(&manifest);
    return comm_agree(s->world->comm, status);
}

Status phase_run(Session *s, const char *set) {
    Comm *all = s->world->comm;
    Status status = STATUS_OK;
    if (s->world->rank == 0)
        status = s->purpose == PURPOSE_TRAIN ? choose_start(s) : choose_set(s, set);
    TRY(comm_agree(all, status));
    host_broadcast(all, &s->start, sizeof s->start, 0);
    if (s->start.set[0] == '\0')
        return STATUS_OK;
    return check_set(s);
}

/* Rank 0, once all ranks have their state: the log continues, or an old one moves aside. */
static Status prepare_run_dir(Session *s) {
    const char *dir = s->config.run.dir;
    char path[SET_PATH];
    str_path_join(path, sizeof path, dir, "config.yaml");
    TRY(set_remove_stale(dir));
    if (!s->start.resume)
        TRY(set_put_aside(dir, NULL, -1, &s->warnings));
    else if (s->start.keep_log && strcmp(s->config.checkpoint.resume, "auto") != 0)
        TRY(set_put_aside(dir, s->start.run_id, s->start.step, &s->warnings));
    if (s->start.keep_log)
        TRY(run_cut_log(dir, s->start.step));
    else
        TRY(run_move_log(dir));
    Str yaml = {0};
    config_dump_yaml(&s->config, &yaml);
    const Status status = file_write_atomic(path, yaml.text, yaml.len, STATUS_CONFIG);
    str_deinit(&yaml);
    return status;
}

Status phase_state(Session *s) {
    Comm *all = s->world->comm;
    const Config *c = &s->config;
    if (s->start.set[0] != '\0')
        TRY(load_state(s->start.set, s->parallel, &s->plan, s->device, all, false));
    else if (c->checkpoint.init_from[0] != '\0')
        TRY(load_init_from(c->checkpoint.init_from, &c->model, s->parallel, &s->plan, s->device, all));
    else
        parallel_init_weights(s->parallel, (uint64_t)c->seed);
    if (s->purpose == PURPOSE_TRAIN)
        TRY(comm_agree(all, s->world->rank == 0 ? prepare_run_dir(s) : STATUS_OK));
    return STATUS_OK;
}
