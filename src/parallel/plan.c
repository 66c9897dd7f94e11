/* Builds the Plan: owners, packed buffers, AdamW blocks, the order of the leaves. */
#include "parallel/plan.h"

#include <string.h>

#include "base/arena.h"
#include "base/fatal.h"
#include "base/hash.h"
#include "base/str.h"
#include "mesh/extent.h"
#include "optim/partition.h"

int64_t plan_leaf(const Plan *plan, int d, int64_t j) {
    if (plan->local)
        return d * plan->per_rank + j;
    const int G = plan->mesh.shard;
    return (d / G) * (plan->leaves / plan->mesh.replicate) + j * G + d % G;
}

int plan_stack_depth(int64_t n) {
    int depth = 1;
    while (n > 1) {
        depth++;
        n /= 2;
    }
    return depth;
}

int32_t plan_block_size(const PlanParam *param, int64_t b) {
    const int64_t left = param->seg_nelem - b * PLAN_BLOCK;
    return (int32_t)(left < PLAN_BLOCK ? left : PLAN_BLOCK);
}

static bool power_of_two(int64_t n) {
    return n > 0 && (n & (n - 1)) == 0;
}

static void plan_leaves(Plan *plan, const Config *config) {
    const int64_t R = plan->mesh.replicate, D = R * plan->mesh.shard;
    plan->leaves = config->batch.global / config->batch.micro;
    plan->per_rank = plan->leaves / D;
    plan->ddp = config->parallel.data == DATA_DDP;
    plan->adamw_shards = plan->ddp ? 1 : plan->mesh.shard;
    plan->local = plan->ddp || config->parallel.accumulate == ACCUMULATE_LOCAL;
    const bool mesh_ok = power_of_two(R) && power_of_two(plan->mesh.shard);
    if (plan->local)
        plan->flat_tree = mesh_ok && power_of_two(plan->per_rank);
    else
        plan->flat_tree = mesh_ok && (R == 1 || power_of_two(plan->leaves / R));
}

static void layer_name(const ParamTable *params, int row, char *buf, size_t capacity) {
    const int unit = params->row[row].unit;
    if (unit == 0 || unit == params->nunits - 1)
        str_format(buf, capacity, "%s", unit == 0 ? "embedding" : "head");
    else
        str_format(buf, capacity, "model.layers.%d", unit - 1);
}

/* The owner of every Muon matrix, by the partition rule. */
static void plan_owners(Plan *plan, const Config *config) {
    const ParamTable *params = plan->params;
    PartitionItem *items = HEAP_ALLOC(PartitionItem, params->count);
    char(*layers)[32] = heap_alloc((size_t)params->count * sizeof *layers);
    int count = 0;
    for (int i = 0; i < params->count; i++) {
        if (params->row[i].role != ROLE_MUON)
            continue;
        layer_name(params, i, layers[i], sizeof layers[i]);
        items[count++] = (PartitionItem){.name = params->row[i].name,
                                         .layer = layers[i],
                                         .layer_index = params->row[i].unit,
                                         .numel = param_numel(&params->row[i]),
                                         .cost = plan->param[i].cost,
                                         .tp_cut = plan->mesh.tp > 1 && params->row[i].tp_dim >= 0};
    }
    int64_t threshold = config->parallel.owner.small_param_threshold;
    if (threshold < 0)
        threshold = partition_auto_threshold(params_total(params, ROLE_MUON), plan->mesh.shard, plan->mesh.replicate);
    const PartitionOptions options = {.strategy = config->parallel.owner.strategy,
                                      .shards = plan->mesh.shard,
                                      .replicates = plan->mesh.replicate,
                                      .small_param_threshold = threshold,
                                      .max_per_layer = config->parallel.owner.max_per_layer,
                                      .column_balance = config->parallel.owner.column_balance};
    int *owner_tp = HEAP_ALLOC(int, count);
    partition_assign(items, count, &options);
    partition_assign_tp(items, count, &options, plan->mesh.tp, owner_tp);
    for (int i = 0, item = 0; i < params->count; i++) {
        if (params->row[i].role != ROLE_MUON)
            continue;
        PlanParam *p = &plan->param[i];
        p->owner_shard = items[item].owner_shard;
        p->owner_replicate = items[item].owner_replicate;
        p->owner_tp = owner_tp[item] < 0 ? 0 : owner_tp[item];
        p->owner_rank = mesh_rank(plan->mesh, (MeshCoord){p->owner_replicate, p->owner_shard, p->owner_tp});
        item++;
    }
    heap_free(owner_tp);
    heap_free(layers);
    heap_free(items);
}

int plan_gram_rounds(const NsPlan *ns) {
    int rounds = ns->gram ? 1 : ns->steps;
    for (int i = 0; i < ns->steps && ns->gram; i++)
        rounds += ns->restart[i];
    return rounds;
}

/* tp_distributed_gram: a matrix whose contracted dimension is the one that tp cuts may stay where it is. */
static bool is_distributed(const Plan *plan, const Config *config, const NsPlan *ns) {
    const DistributedGram mode = config->optimizer.muon.tp_distributed_gram;
    if (plan->mesh.tp == 1 || mode == GRAM_OFF || !ns->gram_segmented)
        return false;
    return mode == GRAM_ALWAYS || plan_gram_rounds(ns) * ns->m * ns->m < ns->m * ns->n;
}

static void plan_params(Plan *plan, const Config *config) {
    const ParamTable *params = plan->params;
    const int S = params->shape->segments, T = plan->mesh.tp;
    for (int i = 0; i < params->count; i++) {
        const Param *row = &params->row[i];
        PlanParam *p = &plan->param[i];
        const bool cut = row->tp_dim >= 0;
        p->group = -1;
        p->local_dim[0] = row->padded_dim0 / (row->tp_dim == 0 ? T : 1);
        p->local_dim[1] = (row->ndim == 2 ? row->dim[1] : 1) / (row->tp_dim == 1 ? T : 1);
        p->local_nelem = p->local_dim[0] * p->local_dim[1];
        p->nseg = cut ? S / T : 1;
        if (row->role == ROLE_MUON) {
            p->ns = ns_plan(&config->optimizer.muon.ns, row->dim[0], row->dim[1], row->tp_dim, S);
            p->cost = ns_flops(&p->ns);
            p->distributed = is_distributed(plan, config, &p->ns);
            continue;
        }
        p->seg_nelem = p->local_nelem / p->nseg;
        p->seg_blocks = ceil_div(p->seg_nelem, PLAN_BLOCK);
        p->dense = p->nseg == 1 || (row->tp_dim == 0 && p->seg_nelem % PLAN_BLOCK == 0);
    }
}

int64_t plan_adamw_payload(const Plan *plan, int unit, int tp) {
    const PlanUnit *u = &plan->unit[unit];
    int64_t payload = 0;
    for (int i = u->first_adamw; i < u->first_adamw + u->adamw_count; i++) {
        const int row = plan->adamw_member[i];
        const Param *param = &plan->params->row[row];
        const PlanParam *p = &plan->param[row];
        int64_t rows = p->local_dim[0];
        if (param->tp_dim == 0)
            rows = extent_overlap((Extent){tp * rows, rows}, (Extent){0, param->dim[0]}).count;
        else if (param->tp_dim < 0)
            rows = param->dim[0];
        payload += rows * p->local_dim[1];
    }
    return payload;
}

static bool in_group(const Plan *plan, const PlanGroup *g, int row) {
    const PlanParam *p = &plan->param[row];
    return plan->params->row[row].unit == g->unit && plan->params->row[row].role == ROLE_MUON &&
           p->owner_shard == g->owner_shard && p->owner_replicate == g->owner_replicate;
}

/* Appends the members of one tp owner, or the distributed ones, to the group. */
static void group_members(Plan *plan, PlanGroup *g, int *nmembers, int owner_tp, bool distributed) {
    const int T = plan->mesh.tp;
    PlanTpPart part = {.group = plan->ngroups, .owner_tp = owner_tp, .first = *nmembers, .offset = g->nelem};
    for (int i = 0; i < plan->params->count; i++) {
        PlanParam *p = &plan->param[i];
        if (!in_group(plan, g, i) || p->distributed != distributed || (!distributed && p->owner_tp != owner_tp))
            continue;
        p->group = plan->ngroups;
        p->offset = g->nelem;
        p->gathered_offset = g->nelem - part.offset;
        g->nelem += round_up(p->local_nelem, PLAN_ALIGN);
        g->payload += param_numel(&plan->params->row[i]) / T;
        part.payload += param_numel(&plan->params->row[i]);
        plan->member[(*nmembers)++] = i;
    }
    part.count = *nmembers - part.first;
    part.nelem = g->nelem - part.offset;
    if (part.count > 0 && T > 1 && !distributed)
        plan->tp_part[plan->nparts++] = part;
}

/* Where each matrix's momentum lies on the rank that has it: sliced ones first, alike on every tp rank, then the whole
 * ones that the rank owns. */
static void group_momentum(Plan *plan, const PlanGroup *g) {
    int64_t *used = HEAP_ALLOC(int64_t, plan->mesh.tp), sliced = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int i = g->first; i < g->first + g->count; i++) {
            PlanParam *p = &plan->param[plan->member[i]];
            if (p->distributed != (pass == 0))
                continue;
            int64_t *at = p->distributed ? &sliced : &used[p->owner_tp];
            p->momentum_offset = p->distributed ? *at : sliced + *at;
            *at += round_up(p->distributed ? p->local_nelem : param_numel(&plan->params->row[plan->member[i]]),
                            PLAN_ALIGN);
        }
    heap_free(used);
}

/* The packed buffers of one unit: owner slots in order (shard, replicate), members by tp owner, then in registry order.
 */
static void plan_unit_groups(Plan *plan, int unit, int *nmembers) {
    PlanUnit *u = &plan->unit[unit];
    u->first_group = plan->ngroups;
    for (int slot = 0; slot < plan->mesh.shard * plan->mesh.replicate; slot++) {
        PlanGroup g = {.unit = unit,
                       .owner_shard = slot / plan->mesh.replicate,
                       .owner_replicate = slot % plan->mesh.replicate,
                       .first = *nmembers,
                       .first_part = plan->nparts,
                       .unit_offset = u->muon_nelem};
        for (int tp = 0; tp < plan->mesh.tp; tp++)
            group_members(plan, &g, nmembers, tp, false);
        group_members(plan, &g, nmembers, 0, true);
        g.count = *nmembers - g.first;
        g.part_count = plan->nparts - g.first_part;
        if (g.count == 0)
            continue;
        str_format(g.what, sizeof g.what, "unit %d owner (shard %d, replicate %d)", unit, g.owner_shard,
                   g.owner_replicate);
        group_momentum(plan, &g);
        u->muon_nelem += g.nelem;
        plan->group[plan->ngroups++] = g;
    }
    u->group_count = plan->ngroups - u->first_group;
}

/* The AdamW blocks of one unit, dealt to the shard axis in equal runs. */
static void plan_unit_blocks(Plan *plan, int unit, int *nmembers) {
    const ParamTable *params = plan->params;
    PlanUnit *u = &plan->unit[unit];
    u->first_adamw = *nmembers;
    for (int i = 0; i < params->count; i++) {
        PlanParam *p = &plan->param[i];
        if (params->row[i].unit != unit || params->row[i].role != ROLE_ADAMW)
            continue;
        p->offset = u->blocks * PLAN_BLOCK;
        u->blocks += p->nseg * p->seg_blocks;
        if (!p->dense) {
            p->side_offset = u->side_nelem;
            u->side_nelem += round_up(p->local_nelem, PLAN_ALIGN);
        }
        plan->adamw_member[(*nmembers)++] = i;
    }
    u->adamw_count = *nmembers - u->first_adamw;
    u->run = ceil_div(u->blocks, plan->adamw_shards);
    u->flat_nelem = plan->adamw_shards * u->run * PLAN_BLOCK;
    u->sum_first = plan->run_blocks;
    plan->run_blocks += u->run;
    str_format(u->what, sizeof u->what, "unit %d", unit);
}

/* A rank's list of sums: its AdamW blocks, then the segments of its slices of the matrices that its DP cell owns. */
static void plan_sums(Plan *plan) {
    int64_t *used = HEAP_ALLOC(int64_t, plan->mesh.shard * plan->mesh.replicate);
    plan->sums_nelem = plan->run_blocks;
    for (int i = 0; i < plan->params->count; i++) {
        if (plan->params->row[i].role != ROLE_MUON)
            continue;
        PlanParam *p = &plan->param[i];
        int64_t *at = &used[p->owner_shard * plan->mesh.replicate + p->owner_replicate];
        p->sum_first = plan->run_blocks + *at;
        *at += p->nseg;
        if (plan->run_blocks + *at > plan->sums_nelem)
            plan->sums_nelem = plan->run_blocks + *at;
    }
    heap_free(used);
}

static uint64_t plan_hash(const Plan *plan) {
    uint64_t h = hash_bytes(&plan->mesh, sizeof plan->mesh, 1);
    for (int i = 0; i < plan->params->count; i++) {
        const PlanParam *p = &plan->param[i];
        const Param *param = &plan->params->row[i];
        const int64_t row[] = {p->owner_rank, p->distributed, p->group,      p->offset,   p->nseg,      p->seg_nelem,
                               param->role,   param->dim[0],  param->dim[1], param->unit, param->tp_dim};
        h = hash_bytes(param->name, strlen(param->name), h);
        h = hash_bytes(row, sizeof row, h);
    }
    const int64_t leaves[] = {plan->leaves, plan->per_rank, plan->local, plan->ddp};
    return hash_bytes(leaves, sizeof leaves, h);
}

void plan_create(Plan *plan, const ParamTable *params, const Config *config, MeshShape mesh) {
    *plan = (Plan){.params = params, .mesh = mesh};
    plan->param = HEAP_ALLOC(PlanParam, params->count);
    plan->group = HEAP_ALLOC(PlanGroup, params->count);
    plan->unit = HEAP_ALLOC(PlanUnit, params->nunits);
    plan->tp_part = HEAP_ALLOC(PlanTpPart, params->count);
    plan->member = HEAP_ALLOC(int, params->count);
    plan->adamw_member = HEAP_ALLOC(int, params->count);
    plan_leaves(plan, config);
    plan_params(plan, config);
    plan_owners(plan, config);
    int nmembers = 0, nadamw = 0;
    for (int unit = 0; unit < params->nunits; unit++) {
        plan_unit_groups(plan, unit, &nmembers);
        plan_unit_blocks(plan, unit, &nadamw);
    }
    plan_sums(plan);
    plan->hash = plan_hash(plan);
}

void plan_destroy(Plan *plan) {
    heap_free(plan->param);
    heap_free(plan->group);
    heap_free(plan->unit);
    heap_free(plan->tp_part);
    heap_free(plan->member);
    heap_free(plan->adamw_member);
    *plan = (Plan){0};
}

PlanLoad plan_load(const Plan *plan) {
    const int nranks = mesh_size(plan->mesh);
    double *load = HEAP_ALLOC(double, nranks);
    PlanLoad result = {0};
    for (int i = 0; i < plan->params->count; i++) {
        if (plan->params->row[i].role != ROLE_MUON)
            continue;
        const PlanParam *p = &plan->param[i];
        load[p->owner_rank] += p->cost;
        result.mean += p->cost / nranks;
        if (p->cost > result.largest)
            result.largest = p->cost;
    }
    for (int r = 0; r < nranks; r++)
        if (load[r] > result.max)
            result.max = load[r];
    result.bound = result.mean > result.largest ? result.mean : result.largest;
    heap_free(load);
    return result;
}
