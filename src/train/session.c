/* Building a session in layer order. */
#include "train/session.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fatal.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/str.h"
#include "base/version.h"
#include "comm/flight.h"
#include "comm/lost.h"
#include "tensor/ops.h"
#include "train/phases.h"
#include "train/sample.h"

#define PEAK_DIM 512
#define PEAK_ROUNDS 4

/* Every rank must have read the same configuration and computed the same plan. */
static Status compare_plans(Session *s) {
    uint64_t *all = HEAP_ALLOC(uint64_t, s->world->size);
    Str yaml = {0};
    config_dump_yaml(&s->config, &yaml);
    const uint64_t mine = hash_bytes(yaml.text, yaml.len, s->plan.hash);
    str_deinit(&yaml);
    host_all_gather(s->world->comm, &mine, all, sizeof *all);
    Status status = STATUS_OK;
    for (int r = 0; r < s->world->size && status == STATUS_OK; r++)
        if (all[r] != all[0])
            status = STATUS_FAIL(
                STATUS_CONFIG,
                "rank %d plans another run than rank 0: the configuration or model file differs between hosts", r);
    heap_free(all);
    return status;
}

static Status open_plan(Session *s) {
    s->shape = model_shape(&s->config);
    TRY(params_create(&s->params, &s->shape, &s->config));
    plan_create(&s->plan, &s->params, &s->config, s->mesh.shape);
    return STATUS_OK;
}

static Status open_model(Session *s) {
    TRY(parallel_create(&s->parallel, &s->plan, &s->config, &s->mesh, s->device));
    const ModelOptions options = {.params = &s->params,
                                  .residency = parallel_residency(s->parallel),
                                  .device = s->device,
                                  .tp = s->mesh.axis[AXIS_TP],
                                  .B = s->config.batch.micro,
                                  .T = s->config.batch.seq_len,
                                  .recompute = s->config.parallel.recompute == RECOMPUTE_LAYER,
                                  .bf16 = s->config.precision.compute == COMPUTE_BF16,
                                  .bits = config_keeps_bits(&s->config)};
    TRY(device_arena_init(s->device, &s->activations, model_activation_nbytes(&options), "activations"));
    return model_create(&s->model, &options, &s->activations);
}

/* FLOP/s of the exact matrix product on all ranks at once, whatever cores they share: from the slowest rank of the best
 * round. */
static double measure_peak(Session *s) {
    const int64_t n = PEAK_DIM;
    float *block = HEAP_ALLOC(float, 3 * n * n);
    const Gemm gemm = {.m = n,
                       .n = n,
                       .nparts = 1,
                       .part = {{.a = block, .b = block + n * n, .lda = n, .ldb = n, .k = n, .segment = n}},
                       .nsegments = 1,
                       .c = block + 2 * n * n,
                       .ldc = n};
    double best_ms = 0;
    for (int round = 0; round < PEAK_ROUNDS; round++) {
        host_barrier(s->world->comm);
        const int64_t start = clock_ns();
        ops_gemm(device_stream(s->device, STREAM_COMPUTE), gemm);
        double ms = clock_ms_since(start);
        host_max_f64(s->world->comm, &ms, 1);
        best_ms = best_ms == 0 || ms < best_ms ? ms : best_ms;
    }
    heap_free(block);
    return 2.0 * (double)(n * n * n) * s->world->size / (best_ms * 1e-3);
}

/* A device whose peak is listed counts once, however many ranks share it; one that is not in the list makes the sum
 * unknown. */
static double all_peaks(Session *s) {
    const double listed = device_listed_flops(s->device);
    double sums[2] = {listed / s->gpu_sharing, listed == 0};
    if (listed == DEVICE_FLOPS_MEASURE)
        return measure_peak(s);
    host_sum_f64(s->world->comm, sums, 2);
    return sums[1] > 0 ? 0 : sums[0];
}

static Status open_loader(Session *s) {
    if (s->purpose != PURPOSE_TRAIN)
        return STATUS_OK;
    return loader_create(&s->loader, &(LoaderOptions){.dataset = s->train,
                                                      .seed = (uint64_t)s->config.seed,
                                                      .shuffle = s->config.data.shuffle,
                                                      .B = s->config.batch.micro,
                                                      .T = s->config.batch.seq_len,
                                                      .leaves_per_step = s->plan.leaves,
                                                      .leaf = s->leaf,
                                                      .per_rank = s->plan.per_rank,
                                                      .first_sample = s->progress.samples});
}

static Status open_saver(Session *s) {
    if (s->purpose != PURPOSE_TRAIN)
        return STATUS_OK;
    return saver_create(&s->saver, &(SaverOptions){.config = &s->config,
                                                   .plan = &s->plan,
                                                   .parallel = s->parallel,
                                                   .device = s->device,
                                                   .world = s->world->comm,
                                                   .run_dir = s->config.run.dir,
                                                   .run_id = s->start.run_id,
                                                   .data_identity = s->data_identity.text,
                                                   .version = DMUON_VERSION,
                                                   .segments = s->shape.segments});
}

/* Rank 0: what an earlier job left stays readable for one more, since a job that goes on follows a crash by itself. */
static Status keep_last_flight(const char *dir) {
    char last[1100];
    str_format(last, sizeof last, "%s.last", dir);
    if (!file_exists(dir))
        return STATUS_OK;
    TRY(file_remove_dir(last, STATUS_CONFIG));
    if (rename(dir, last) != 0)
        return STATUS_FAIL(STATUS_CONFIG, "%s: cannot be renamed to %s: %s", dir, last, strerror(errno));
    return STATUS_OK;
}

/* The record of the last operations, in the run directory. Collective. */
static Status open_flight(Session *s) {
    const World *world = s->world;
    char dir[1050];
    if (s->purpose != PURPOSE_TRAIN || world->size == 1)
        return STATUS_OK;
    str_format(dir, sizeof dir, "%s/flight", s->config.run.dir);
    TRY(comm_agree(world->comm, world->rank == 0 ? keep_last_flight(dir) : STATUS_OK));
    TRY(comm_agree(world->comm, flight_open(dir, world->rank, world->size, world->host)));
    return comm_agree(world->comm, lost_start(world, dir));
}

/* SLURM_NTASKS > 1 with a world of one: the launcher and MPI do not know each other. */
static Status check_launch(const Session *s) {
    const char *tasks = getenv("SLURM_NTASKS");
    const MeshShape m = {s->config.mesh.replicate, s->config.mesh.shard, s->config.mesh.tp};
    int64_t n = 1;
    if (tasks && str_parse_int(tasks, &n) && n > 1 && s->world->size == 1 && mesh_size(m) > 1)
        return STATUS_FAIL(
            STATUS_CONFIG,
            "SLURM_NTASKS is %lld but MPI sees one rank: start with mpirun, or with srun --mpi=pmix where Open MPI "
            "was built for it",
            (long long)n);
    return STATUS_OK;
}

static Status load_config(Session *s, const SessionOptions *options) {
    TRY(config_load(&s->config, options->config_path, options->overrides, options->override_count, &s->warnings));
    TRY(check_launch(s));
    if (s->purpose == PURPOSE_TRAIN)
        TRY(sample_check(&s->config));
    return config_resolve_mesh(&s->config, s->world->size);
}

Status session_open(Session *s, World *world, const SessionOptions *options) {
    *s = (Session){.world = world, .purpose = options->purpose, .lock = {.fd = -1}};
    Comm *all = world->comm;
    TRY(comm_agree(all, load_config(s, options)));
    TRY(phase_choose_device(s));
    world_set_options(world, &(CommOptions){.timeout_s = s->config.comm.timeout_s});
    const MeshShape shape = {s->config.mesh.replicate, s->config.mesh.shard, s->config.mesh.tp};
    TRY(comm_agree(all, mesh_create(&s->mesh, shape, world)));
    TRY(comm_agree(all, open_plan(s)));
    TRY(comm_agree(all, compare_plans(s)));
    TRY(phase_data(s));
    TRY(phase_open_device(s));
    TRY(phase_memory(s));
    TRY(phase_products(s));
    TRY(phase_run(s, options->set));
    TRY(comm_agree(all, open_model(s)));
    parallel_connect(s->parallel);
    TRY(phase_state(s));
    stream_sync(device_stream(s->device, STREAM_COMPUTE)); /* other streams read what it has written */
    TRY(open_flight(s));
    TRY(comm_agree(all, open_loader(s)));
    TRY(comm_agree(all, open_saver(s)));
    s->peak_flops = all_peaks(s);
    s->opened = true;
    return STATUS_OK;
}

void session_close(Session *s) {
    lost_stop();
    saver_destroy(s->saver);
    loader_destroy(s->loader);
    model_destroy(s->model);
    parallel_destroy(s->parallel);
    if (s->device) {
        transport_end(s->device);
        device_arena_deinit(s->device, &s->activations);
        device_destroy(s->device);
    }
    dataset_close(s->train);
    dataset_close(s->val);
    plan_destroy(&s->plan);
    params_destroy(&s->params);
    mesh_destroy(&s->mesh);
    flight_close();
    heap_free(s->leaf);
    str_deinit(&s->data_identity);
    str_deinit(&s->warnings);
    if (s->opened)
        run_unlock(&s->lock);
    else
        run_lock_abandon(&s->lock);
}
