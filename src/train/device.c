/* Which device a run is on, which GPU a rank takes, and how ranks reach each other; then the device itself. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/str.h"
#include "device/cores.h"
#include "train/phases.h"

/* ---- choosing ---- */

/* All ranks on one backend: with `auto` a rank without a GPU brings the others to the CPU. Collective. */
static Status choose_together(Session *s) {
    World *world = s->world;
    TRY(comm_agree(world->comm, device_choose(&s->choice, s->config.device, world->local_rank)));
    DeviceChoice *all = HEAP_ALLOC(DeviceChoice, world->size);
    host_all_gather(world->comm, &s->choice, all, sizeof s->choice);
    int without = -1;
    for (int r = world->size - 1; r >= 0; r--)
        if (all[r].gpus == 0)
            without = r;
    heap_free(all);
    if (without < 0 || s->choice.gpus == 0)
        return STATUS_OK;
    TRY(device_choose(&s->choice, "cpu", world->local_rank));
    str_format(s->choice.why, sizeof s->choice.why, "rank %d (%s) has no GPU", without,
               world->hosts + (size_t)without * sizeof world->host);
    return STATUS_OK;
}

/* Ranks of this node that take the same GPU, this one included; 1 on the CPU. Collective. */
static int ranks_sharing_gpu(Session *s) {
    const World *world = s->world;
    struct Place {
        char host[128], identity[sizeof s->choice.identity];
    } mine = {0}, *all = HEAP_ALLOC(struct Place, world->size);
    memcpy(mine.host, world->host, sizeof mine.host);
    memcpy(mine.identity, s->choice.identity, sizeof mine.identity);
    host_all_gather(world->comm, &mine, all, sizeof mine);
    int sharing = 0;
    for (int r = 0; r < world->size; r++)
        sharing += memcmp(&all[r], &mine, sizeof mine) == 0;
    heap_free(all);
    return s->choice.gpus > 0 ? sharing : 1;
}

static Status check_sharing(const Session *s) {
    if (s->gpu_sharing == 1 || strcmp(s->transport, "mpi") == 0)
        return STATUS_OK;
    return STATUS_FAIL(STATUS_DEVICE,
                       "%d ranks of this node would share one GPU (it has %d for %d ranks), which NCCL refuses: start "
                       "at most one rank for each GPU, or set comm.transport: mpi",
                       s->gpu_sharing, s->choice.gpus, s->world->local_size);
}

Status phase_choose_device(Session *s) {
    Comm *all = s->world->comm;
    TRY(choose_together(s));
    s->config.on_cpu = strcmp(s->choice.backend, "cpu") == 0;
    TRY(comm_agree(all, transport_choose(s->config.comm.transport, s->choice.backend, &s->transport)));
    s->gpu_sharing = ranks_sharing_gpu(s);
    return comm_agree(all, check_sharing(s));
}

/* ---- opening ---- */

/* Ranks of this node whose affinity mask equals this rank's, this one included. Collective. */
static int ranks_sharing_cores(World *world) {
    struct Where {
        char host[128];
        cpu_set_t mask;
    } mine, *all = heap_alloc((size_t)world->size * sizeof *all);
    memset(&mine, 0, sizeof mine);
    memcpy(mine.host, world->host, sizeof mine.host);
    sched_getaffinity(0, sizeof mine.mask, &mine.mask);
    host_all_gather(world->comm, &mine, all, sizeof mine);
    int sharing = 0;
    for (int r = 0; r < world->size; r++)
        sharing += memcmp(&all[r], &mine, sizeof mine) == 0;
    heap_free(all);
    return sharing;
}

/* threads: the key, else OMP_NUM_THREADS, else the cores of the mask divided among the ranks that share it. */
static Status choose_threads(const Config *config, int sharing, int *out) {
    const char *omp = getenv("OMP_NUM_THREADS");
    const int share = cores_available() / sharing;
    int64_t threads = share > 1 ? share : 1;
    if (config->threads > 0)
        threads = config->threads;
    else if (omp && (!str_parse_int(omp, &threads) || threads < 1 || threads > 1024))
        return STATUS_FAIL(STATUS_CONFIG, "OMP_NUM_THREADS=%s: must be an integer in 1..1024; unset it, or set threads",
                           omp);
    *out = (int)threads;
    return STATUS_OK;
}

/* Of products: without bf16 or tf32 they are exact in either mode. */
static DeviceCompute device_compute(const Config *config) {
    switch (config->precision.compute) {
    case COMPUTE_BF16:
        return DEVICE_BF16;
    case COMPUTE_TF32:
        return DEVICE_TF32;
    case COMPUTE_F32:
        break;
    }
    return DEVICE_EXACT;
}

static Status create_device(Session *s, int sharing) {
    const char *delay = getenv("DMUON_TEST_DELAY_SEED"); /* tests: shaken stream delays */
    int64_t seed = 0;
    if (delay && !str_parse_int(delay, &seed))
        return STATUS_FAIL(STATUS_CONFIG, "DMUON_TEST_DELAY_SEED=%s: must be an integer", delay);
    if (seed != 0) /* every rank its own delays */
        seed = seed * 1000003 + s->world->rank;
    return device_create(&s->device,
                         &(DeviceOptions){.name = s->choice.backend,
                                          .gpu = s->choice.gpu,
                                          .host_calls = s->world->size > 1 && strcmp(s->transport, "mpi") == 0,
                                          .threads = s->threads,
                                          .compute = device_compute(&s->config),
                                          .yield_to_comm = sharing * (s->threads + 1) > cores_available(),
                                          .delay_seed = (uint64_t)seed,
                                          .delay_max_us = 3000});
}

Status phase_open_device(Session *s) {
    const int sharing = ranks_sharing_cores(s->world);
    TRY(comm_agree(s->world->comm, choose_threads(&s->config, sharing, &s->threads)));
    TRY(comm_agree(s->world->comm, create_device(s, sharing)));
    transport_use(s->transport, s->device);
    return STATUS_OK;
}
