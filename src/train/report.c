/* The plan of a run in words and in JSON. */
#include "train/report.h"

#include <inttypes.h>
#include <string.h>

#include "base/arena.h"
#include "base/json.h"
#include "device/device.h"
#include "metrics/jsonl.h"
#include "parallel/plan_comm.h"
#include "train/memory.h"

#define MIB 1048576.0
#define GFLOP 1e9

/* What `device: auto` would be here; one that is asked for and not here is planned for all the same. */
static void foresee_device(Config *config) {
    DeviceChoice choice;
    if (device_choose(&choice, config->device, 0) == STATUS_OK)
        config->on_cpu = strcmp(choice.backend, "cpu") == 0;
    status_trail_clear();
}

Status blueprint_create(Blueprint *b, const char *path, char *const *overrides, int override_count, int ranks) {
    *b = (Blueprint){0};
    TRY(config_load(&b->config, path, overrides, override_count, &b->warnings));
    foresee_device(&b->config);
    TRY(config_resolve_mesh(&b->config, ranks));
    b->shape = model_shape(&b->config);
    TRY(params_create(&b->params, &b->shape, &b->config));
    const MeshShape mesh = {b->config.mesh.replicate, b->config.mesh.shard, b->config.mesh.tp};
    plan_create(&b->plan, &b->params, &b->config, mesh);
    return STATUS_OK;
}

void blueprint_destroy(Blueprint *b) {
    plan_destroy(&b->plan);
    params_destroy(&b->params);
    str_deinit(&b->warnings);
}

/* What each rank does and holds. */
typedef struct RankPlan {
    int matrices;
    double flops;
    MemoryLine line[MEMORY_LINES];
} RankPlan;

static RankPlan *rank_plans(const Blueprint *b) {
    const Plan *plan = &b->plan;
    const int world = mesh_size(plan->mesh);
    RankPlan *ranks = HEAP_ALLOC(RankPlan, world);
    for (int i = 0; i < b->params.count; i++) {
        if (b->params.row[i].role != ROLE_MUON)
            continue;
        ranks[plan->param[i].owner_rank].matrices++;
        ranks[plan->param[i].owner_rank].flops += plan->param[i].cost;
    }
    SetTensors saved;
    set_tensors_create(&saved, plan);
    for (int r = 0; r < world; r++)
        memory_plan(plan, &b->config, b->config.checkpoint.every > 0 ? &saved : NULL, mesh_coord(plan->mesh, r),
                    ranks[r].line);
    set_tensors_destroy(&saved);
    return ranks;
}

static double muon_flops(const Blueprint *b) {
    double flops = 0;
    for (int i = 0; i < b->params.count; i++)
        flops += b->params.row[i].role == ROLE_MUON ? b->plan.param[i].cost : 0.0;
    return flops;
}

static double step_flops(const Blueprint *b) {
    return model_flops(&b->shape, b->config.batch.global * b->config.batch.seq_len, b->config.batch.seq_len);
}

/* ---- text ---- */

static void text_head(const Blueprint *b, Str *out) {
    const Plan *plan = &b->plan;
    const Config *c = &b->config;
    str_printf(out, "%s\n", c->path);
    str_append(out, "mesh        ");
    mesh_print(plan->mesh, out);
    str_append(out, "\n");
    str_printf(out,
               "step        %" PRId64 " sequences of %" PRId64 " tokens: %" PRId64 " leaves of %" PRId64 ", %" PRId64
               " per rank, accumulate %s\n",
               c->batch.global, c->batch.seq_len, plan->leaves, c->batch.micro, plan->per_rank,
               plan->local ? "local" : "reduce");
    str_printf(out, "sums        %s\n",
               plan->flat_tree ? "the flat tree over the leaves: the bits of every other mesh of which this is said"
                               : "not the flat tree over the leaves: the bits are those of this mesh and mode only");
    str_printf(out, "numerics    %s, %d segments\n", c->numerics.fast ? "fast" : "exact", b->shape.segments);
    if (plan->ddp)
        str_append(out, "weights     ddp: every rank keeps all of its tp slice\n");
    else
        str_printf(out, "weights     Muon unsharded %s, AdamW unsharded %s\n",
                   c->parallel.reshard_muon ? "twice per leaf (Z3)" : "once per step (Z2)",
                   c->parallel.reshard_adamw ? "twice per leaf (Z3)" : "once per step (Z2)");
    str_printf(out, "parameters  %" PRId64 " Muon + %" PRId64 " AdamW = %" PRId64 "\n",
               params_total(&b->params, ROLE_MUON), params_total(&b->params, ROLE_ADAMW),
               params_total(&b->params, ROLE_MUON) + params_total(&b->params, ROLE_ADAMW));
    str_printf(out, "plan        %016" PRIx64 "\n", plan->hash);
}

static void shape_text(int ndim, const int64_t *dim, char *buf, size_t capacity) {
    if (ndim == 2)
        str_format(buf, capacity, "[%" PRId64 ", %" PRId64 "]", dim[0], dim[1]);
    else
        str_format(buf, capacity, "[%" PRId64 "]", dim[0]);
}

/* Where Newton-Schulz runs on a matrix, and which. */
static void text_muon(const PlanParam *p, Str *out) {
    char owner[32];
    str_format(owner, sizeof owner, "(%d, %d)", p->owner_shard, p->owner_replicate);
    str_printf(out, "  %-18s  %8d  %-6s  %12.6f%s", owner, p->owner_tp, p->ns.gram ? "gram" : "direct", p->cost / GFLOP,
               p->distributed ? "  in slices" : "");
}

/* A tensor that tp cuts shows the dimension and a rank's slice; rows of vocabulary padding count in the slice. */
static void text_parameters(const Blueprint *b, Str *out) {
    int width = 4;
    char shape[64], slice[64], dim[8];
    for (int i = 0; i < b->params.count; i++)
        if ((int)strlen(b->params.row[i].name) > width)
            width = (int)strlen(b->params.row[i].name);
    str_printf(out, "\n%-*s  %-16s  %6s  %-16s  %-5s  %-18s  %8s  %-6s  %12s\n", width, "name", "shape", "tp dim",
               "slice", "role", "owner", "tp owner", "NS", "GFLOP");
    str_printf(out, "%-*s  %-16s  %6s  %-16s  %-5s  %-18s\n", width, "", "", "", "", "", "(shard, replicate)");
    for (int i = 0; i < b->params.count; i++) {
        const Param *row = &b->params.row[i];
        const PlanParam *p = &b->plan.param[i];
        shape_text(row->ndim, row->dim, shape, sizeof shape);
        shape_text(row->ndim, p->local_dim, slice, sizeof slice);
        str_format(dim, sizeof dim, row->tp_dim < 0 ? "-" : "%d", row->tp_dim);
        str_printf(out, "%-*s  %-16s  %6s  %-16s  %-5s", width, row->name, shape, dim, slice,
                   row->role == ROLE_MUON ? "Muon" : "AdamW");
        if (row->role == ROLE_MUON)
            text_muon(p, out);
        str_append(out, "\n");
    }
}

/* Slices of matrices with the same tp owner travel together. */
static void text_tp_parts(const Blueprint *b, Str *out) {
    if (b->plan.nparts > 0)
        str_append(out, "\ngradients to their tp owners, each one message over tp, and its update back\n");
    for (int i = 0; i < b->plan.nparts; i++) {
        const PlanTpPart *part = &b->plan.tp_part[i];
        str_printf(out, "%-40s  tp %d  %2d matri%s  %12" PRId64 " elements\n", b->plan.group[part->group].what,
                   part->owner_tp, part->count, part->count == 1 ? "x   " : "ces ", part->payload);
    }
}

static void text_units(const Blueprint *b, Str *out) {
    str_append(out, "\npacked buffers, each one message to its shard group and back\n");
    for (int g = 0; g < b->plan.ngroups; g++) {
        const PlanGroup *group = &b->plan.group[g];
        str_printf(out, "%-40s  %2d matri%s  %12" PRId64 " elements\n", group->what, group->count,
                   group->count == 1 ? "x   " : "ces ", group->payload);
    }
    text_tp_parts(b, out);
    str_append(out, b->plan.ddp ? "\nAdamW blocks, on every rank\n"
                                : "\nAdamW blocks, dealt to the shard axis in equal runs\n");
    for (int unit = 0; unit < b->params.nunits; unit++) {
        const PlanUnit *u = &b->plan.unit[unit];
        str_printf(out, "%-40s  %2d tensors   %12" PRId64 " elements in %" PRId64 " blocks, %" PRId64 " per rank\n",
                   u->what, u->adamw_count, plan_adamw_payload(&b->plan, unit, 0), u->blocks, u->run);
    }
}

static void text_ranks(const Blueprint *b, const RankPlan *ranks, Str *out) {
    const PlanLoad load = plan_load(&b->plan);
    str_printf(
        out,
        "\nNewton-Schulz per rank: most %.6f GFLOP, mean %.6f, largest matrix %.6f; bound max(mean, largest) %.6f, "
        "most/bound %.4f\n",
        load.max / GFLOP, load.mean / GFLOP, load.largest / GFLOP, load.bound / GFLOP,
        load.bound > 0 ? load.max / load.bound : 1.0);
    str_printf(out, "%8s  %9s  %5s  %3s  %8s  %12s  %9s  %12s\n", "rank", "replicate", "shard", "tp", "matrices",
               "GFLOP", "of bound", "memory MiB");
    for (int r = 0; r < mesh_size(b->plan.mesh); r++) {
        const MeshCoord at = mesh_coord(b->plan.mesh, r);
        str_printf(out, "%8d  %9d  %5d  %3d  %8d  %12.6f  %8.2f%%  %12.2f\n", r, at.replicate, at.shard, at.tp,
                   ranks[r].matrices, ranks[r].flops / GFLOP,
                   load.bound > 0 ? 100.0 * ranks[r].flops / load.bound : 0.0,
                   (double)memory_total(ranks[r].line) / MIB);
    }
}

static void text_memory(const Blueprint *b, const RankPlan *ranks, Str *out) {
    const int world = mesh_size(b->plan.mesh);
    size_t least_total = SIZE_MAX, most_total = 0;
    str_printf(out, "\n%-26s  %12s  %12s  lowered by\n", "memory of a rank, MiB", "least", "most");
    for (int i = 0; i < MEMORY_LINES; i++) {
        size_t least = SIZE_MAX, most = 0;
        for (int r = 0; r < world; r++) {
            const size_t nbytes = ranks[r].line[i].nbytes;
            least = nbytes < least ? nbytes : least;
            most = nbytes > most ? nbytes : most;
        }
        str_printf(out, "%-26s  %12.2f  %12.2f  %s\n", ranks[0].line[i].what, (double)least / MIB, (double)most / MIB,
                   ranks[0].line[i].keys);
    }
    for (int r = 0; r < world; r++) {
        const size_t nbytes = memory_total(ranks[r].line);
        least_total = nbytes < least_total ? nbytes : least_total;
        most_total = nbytes > most_total ? nbytes : most_total;
    }
    str_printf(out, "%-26s  %12.2f  %12.2f\n", "total", (double)least_total / MIB, (double)most_total / MIB);
}

static void text_traffic(const Blueprint *b, Str *out) {
    CommCount counts[AXIS_COUNT][COMM_OP_COUNT];
    plan_comm_bytes(&b->plan, &b->config, counts);
    str_printf(out, "\n%-10s  %-15s  %8s  %18s  %18s\n", "per step", "operation", "calls", "payload bytes",
               "received bytes");
    for (int axis = 0; axis < AXIS_COUNT; axis++)
        for (int op = 0; op < COMM_OP_COUNT; op++)
            if (counts[axis][op].calls > 0)
                str_printf(out, "%-10s  %-15s  %8" PRId64 "  %18" PRId64 "  %18" PRId64 "\n", axis_name((Axis)axis),
                           comm_op_name((CommOp)op), counts[axis][op].calls, counts[axis][op].payload_bytes,
                           counts[axis][op].bus_bytes);
    str_printf(out, "\nFLOP per step: model %.6g, Newton-Schulz %.6g (%.3f %% of the model)\n", step_flops(b),
               muon_flops(b), 100.0 * muon_flops(b) / step_flops(b));
}

void report_text(const Blueprint *b, Str *out) {
    RankPlan *ranks = rank_plans(b);
    text_head(b, out);
    text_parameters(b, out);
    text_units(b, out);
    text_ranks(b, ranks, out);
    text_memory(b, ranks, out);
    text_traffic(b, out);
    heap_free(ranks);
}

/* ---- JSON ---- */

static void json_dims(JsonWriter *w, const char *key, int ndim, const int64_t *dim) {
    json_begin_array(w, key);
    for (int i = 0; i < ndim; i++)
        json_int(w, NULL, dim[i]);
    json_end_array(w);
}

static void json_parameter(JsonWriter *w, const Param *row, const PlanParam *p) {
    json_begin_object(w, NULL);
    json_string(w, "name", row->name);
    json_dims(w, "shape", row->ndim, row->dim);
    json_string(w, "role", row->role == ROLE_MUON ? "MUON" : "ADAMW");
    if (row->role == ROLE_MUON) {
        json_begin_object(w, "owner");
        json_int(w, "shard", p->owner_shard);
        json_int(w, "replicate", p->owner_replicate);
        json_int(w, "tp", p->owner_tp);
        json_end_object(w);
    } else {
        json_null(w, "owner");
    }
    if (row->tp_dim >= 0)
        json_int(w, "tp_dim", row->tp_dim);
    else
        json_null(w, "tp_dim");
    json_dims(w, "local_shape", row->ndim, p->local_dim);
    json_string(w, "algorithm", row->role == ROLE_ADAMW ? NULL : p->ns.gram ? "gram" : "direct");
    json_double(w, "cost", row->role == ROLE_MUON ? p->cost : 0.0);
    json_bool(w, "distributed", p->distributed);
    json_end_object(w);
}

/* "gathered weights" as the name of a member. */
static void member_name(const char *what, char *buf, size_t capacity) {
    str_format(buf, capacity, "%s", what);
    for (char *c = buf; *c != '\0'; c++)
        *c = (char)(*c == ' ' ? '_' : *c);
}

static void json_memory(JsonWriter *w, const Blueprint *b) {
    RankPlan *ranks = rank_plans(b);
    char name[64];
    json_begin_array(w, "bytes_per_rank");
    for (int r = 0; r < mesh_size(b->plan.mesh); r++) {
        json_begin_object(w, NULL);
        for (int i = 0; i < MEMORY_LINES; i++) {
            member_name(ranks[r].line[i].what, name, sizeof name);
            json_int(w, name, (int64_t)ranks[r].line[i].nbytes);
        }
        json_int(w, "total", (int64_t)memory_total(ranks[r].line));
        json_end_object(w);
    }
    json_end_array(w);
    heap_free(ranks);
}

static void json_traffic(JsonWriter *w, const Blueprint *b) {
    CommCount counts[AXIS_COUNT][COMM_OP_COUNT];
    plan_comm_bytes(&b->plan, &b->config, counts);
    jsonl_comm(w, "comm_bytes", counts[0]);
}

void report_json(const Blueprint *b, Str *out) {
    JsonWriter w = json_writer(out);
    const PlanLoad load = plan_load(&b->plan);
    json_begin_object(&w, NULL);
    mesh_write(b->plan.mesh, &w);
    json_begin_array(&w, "parameters");
    for (int i = 0; i < b->params.count; i++)
        json_parameter(&w, &b->params.row[i], &b->plan.param[i]);
    json_end_array(&w);
    json_begin_object(&w, "load");
    json_double(&w, "max", load.max);
    json_double(&w, "mean", load.mean);
    json_double(&w, "bound", load.bound);
    json_end_object(&w);
    json_memory(&w, b);
    json_traffic(&w, b);
    json_begin_object(&w, "flops");
    json_double(&w, "model", step_flops(b));
    json_double(&w, "newton_schulz", muon_flops(b));
    json_double(&w, "total", step_flops(b) + muon_flops(b));
    json_end_object(&w);
    json_end_object(&w);
    str_append(out, "\n");
}
