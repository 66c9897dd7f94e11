/* The memory plan and its limit. */
#include "train/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/file.h"
#include "base/str.h"
#include "checkpoint/tensors.h"
#include "train/phases.h"

#define LIMIT 0.95

static size_t snapshot_nbytes(const Plan *plan, const SetTensors *set, MeshCoord coord) {
    size_t nbytes = 0;
    for (int t = 0; set && t < set->count; t++)
        if (set->tensor[t].writer == mesh_rank(plan->mesh, coord))
            nbytes += (size_t)set->tensor[t].numel * sizeof(float);
    return nbytes;
}

void memory_plan(const Plan *plan, const Config *config, const SetTensors *saved, MeshCoord coord,
                 MemoryLine lines[MEMORY_LINES]) {
    const ParallelBytes b = parallel_measure(plan, config, coord);
    const ModelOptions model = {.params = plan->params,
                                .B = config->batch.micro,
                                .T = config->batch.seq_len,
                                .tp_size = plan->mesh.tp,
                                .recompute = config->parallel.recompute == RECOMPUTE_LAYER,
                                .bits = config_keeps_bits(config)};
    const bool reduces = !plan->local;
    const MemoryLine all[MEMORY_LINES] = {
        {"weights", "mesh.shard, mesh.tp", b.weights},
        {"momentum", "mesh.shard, mesh.replicate", b.momentum},
        {"moments", "mesh.shard", b.moments},
        {"gathered weights", "parallel.reshard_after_forward, parallel.prefetch", b.gathered},
        {"gradients", reduces ? "mesh.shard" : "parallel.accumulate=reduce, mesh.shard", b.gradients},
        {"partial sums over leaves", reduces ? "batch.micro" : "parallel.accumulate=reduce, batch.micro", b.leaf_trees},
        {"tp buffers", "parallel.tp_buffer_reuse, mesh.shard", b.tp_buffers},
        {"optimizer scratch", "mesh.shard", b.scratch},
        {"activations", "batch.micro, batch.seq_len, mesh.tp", model_activation_nbytes(&model)},
        {"checkpoint copy", "checkpoint.every", snapshot_nbytes(plan, saved, coord)},
    };
    memcpy(lines, all, sizeof all);
}

size_t memory_total(const MemoryLine lines[MEMORY_LINES]) {
    size_t total = 0;
    for (int i = 0; i < MEMORY_LINES; i++)
        total += lines[i].nbytes;
    return total;
}

size_t memory_total_on_host(const MemoryLine lines[MEMORY_LINES]) {
    size_t total = 0;
    for (int i = MEMORY_DEVICE_LINES; i < MEMORY_LINES; i++)
        total += lines[i].nbytes;
    return total;
}

/* A number in a one-number file, or 0 when there is none ("max" included). */
static size_t read_number(const char *path) {
    char *text;
    size_t nbytes;
    int64_t value = 0;
    if (!file_exists(path) || file_read(path, 0, STATUS_NO_MEMORY, &text, &nbytes) != STATUS_OK)
        return 0;
    text[strcspn(text, "\n")] = '\0';
    if (!str_parse_int(text, &value))
        value = 0;
    heap_free(text);
    return (size_t)value;
}

size_t memory_available(void) {
    char *text;
    size_t nbytes, available = 0;
    if (file_read("/proc/meminfo", 0, STATUS_NO_MEMORY, &text, &nbytes) == STATUS_OK) {
        const char *line = strstr(text, "MemAvailable:");
        if (line)
            available = (size_t)strtoull(line + strlen("MemAvailable:"), NULL, 10) * 1024;
        heap_free(text);
    }
    const size_t limit = read_number("/sys/fs/cgroup/memory.max"), used = read_number("/sys/fs/cgroup/memory.current");
    if (limit > used && limit - used < available)
        available = limit - used;
    return available;
}

/* What the ranks of one memory want of it. */
typedef struct Demand {
    const char *memory; /* "node", "GPU" */
    size_t nbytes, available;
    int ranks;
} Demand;

static void print_largest(const MemoryLine lines[MEMORY_LINES], Str *text) {
    MemoryLine sorted[MEMORY_LINES];
    memcpy(sorted, lines, sizeof sorted);
    for (int n = 0; n < 3; n++) {
        int largest = n;
        for (int i = n + 1; i < MEMORY_LINES; i++)
            if (sorted[i].nbytes > sorted[largest].nbytes)
                largest = i;
        const MemoryLine line = sorted[largest];
        sorted[largest] = sorted[n];
        sorted[n] = line;
        str_printf(text, "\n    %s: %.1f MiB per rank; lowered by %s", line.what, (double)line.nbytes / 1048576.0,
                   line.keys);
    }
}

static Status check(const char *config_path, const Demand *demand, const MemoryLine lines[MEMORY_LINES]) {
    if (demand->available == 0 || (double)demand->nbytes <= LIMIT * (double)demand->available)
        return STATUS_OK;
    Str text = {0};
    print_largest(lines, &text);
    const Status status = STATUS_FAIL(
        STATUS_NO_MEMORY, "%s: %d rank%s of this %s plan%s %.1f MiB, more than 95 %% of the %.1f MiB available:%s",
        config_path, demand->ranks, demand->ranks == 1 ? "" : "s", demand->memory, demand->ranks == 1 ? "s" : "",
        (double)demand->nbytes / 1048576.0, (double)demand->available / 1048576.0, text.text);
    str_deinit(&text);
    return status;
}

Status memory_check(const char *config_path, size_t node_nbytes, int ranks, const MemoryLine lines[MEMORY_LINES]) {
    const Demand demand = {.memory = "node", .nbytes = node_nbytes, .available = memory_available(), .ranks = ranks};
    return check(config_path, &demand, lines);
}

Status memory_check_device(const char *config_path, size_t nbytes, int ranks, size_t available,
                           const MemoryLine lines[MEMORY_LINES]) {
    const Demand demand = {.memory = "GPU", .nbytes = nbytes, .available = available, .ranks = ranks};
    return check(config_path, &demand, lines);
}

/* The GPU's part of the plan; the ranks that share one plan about the same. */
static Status check_gpu(const Session *s, const MemoryLine lines[MEMORY_LINES]) {
    size_t available, total;
    const size_t mine = memory_total(lines) - memory_total_on_host(lines);
    device_memory(s->device, &available, &total);
    if (total == 0)
        return STATUS_OK;
    return memory_check_device(s->config.path, mine * (size_t)s->gpu_sharing, s->gpu_sharing, available, lines);
}

static size_t host_part(const Session *s, const MemoryLine lines[MEMORY_LINES]) {
    return device_host_reads_memory(s->device) ? memory_total(lines) : memory_total_on_host(lines);
}

Status phase_memory(Session *s) {
    MemoryLine lines[MEMORY_LINES];
    SetTensors saved;
    set_tensors_create(&saved, &s->plan);
    memory_plan(&s->plan, &s->config, s->config.checkpoint.every > 0 ? &saved : NULL, s->mesh.coord, lines);
    set_tensors_destroy(&saved);
    TRY(comm_agree(s->world->comm, check_gpu(s, lines)));
    const size_t mine = host_part(s, lines);
    size_t *all = HEAP_ALLOC(size_t, s->world->size), node = 0;
    host_all_gather(s->world->comm, &mine, all, sizeof mine);
    int ranks = 0;
    for (int r = 0; r < s->world->size; r++)
        if (strcmp(s->world->hosts + (size_t)r * 128, s->world->host) == 0) {
            node += all[r];
            ranks++;
        }
    heap_free(all);
    return comm_agree(s->world->comm, memory_check(s->config.path, node, ranks, lines));
}
