/* Small models on small meshes, planned without files: what the tests of the plan, the store and the memory share.
 * Header only, because each test is one program of one file. */
#ifndef DMUON_TESTS_UNIT_PLAN_FIXTURE_H
#define DMUON_TESTS_UNIT_PLAN_FIXTURE_H

#include "tests/unit/bits.h"

#include <stdio.h>
#include <stdlib.h>

#include "parallel/plan.h"

typedef struct Planned {
    Config config;
    ModelShape shape;
    ParamTable params;
    Plan plan;
} Planned;

static const MeshShape fixture_meshes[] = {{1, 1, 1}, {1, 2, 1}, {2, 2, 1}, {2, 4, 1}, {1, 3, 1}, {1, 5, 1},
                                           {1, 1, 2}, {2, 1, 2}, {1, 2, 2}, {2, 3, 2}, {1, 1, 4}, {2, 2, 4}};
enum { FIXTURE_MESHES = sizeof fixture_meshes / sizeof fixture_meshes[0] };

/* 240 leaves divide among all of these meshes. The vocabulary of 61 is padded to 64. */
static inline Config fixture_config(void) {
    Config c = {.model = {.family = "llama",
                          .d_model = 32,
                          .n_layers = 2,
                          .n_heads = 4,
                          .n_kv_heads = 2,
                          .head_dim = 8,
                          .d_ff = 48,
                          .vocab_size = 61,
                          .max_seq_len = 64,
                          .rope_theta = 10000.0,
                          .norm_eps = 1e-5,
                          .init_std = 0.5}};
    c.numerics.segments = 8;
    c.parallel.reshard_muon = true;
    c.parallel.reshard_adamw = true;
    c.parallel.prefetch = 1;
    c.parallel.owner.small_param_threshold = -1;
    c.parallel.owner.column_balance = true;
    c.optimizer.muon.ns.steps = 5;
    c.optimizer.muon.ns.restarts[0] = 2;
    c.optimizer.muon.ns.restart_count = 1;
    c.batch.global = 240;
    c.batch.micro = 1;
    c.batch.seq_len = 16;
    return c;
}

static inline void fixture_glob(Config *c, const char *glob) {
    (void)snprintf(c->optimizer.muon.match[c->optimizer.muon.match_count++], 128, "%s", glob);
}

enum { FIXTURE_KINDS = 6 };

/* Kinds of models: plain; tied; with biases and norms of q and k; attention left to AdamW (o_proj's segments are
 * columns); a Muon embedding; segments of several blocks, the last one short, columns too. */
static inline Config fixture_kind(int kind) {
    Config c = fixture_config();
    switch (kind) {
    case 1:
        c.model.tie_embeddings = true;
        break;
    case 2:
        c.model.qkv_bias = true;
        c.model.qk_norm = true;
        break;
    case 3:
        fixture_glob(&c, "*.mlp.*");
        break;
    case 4:
        fixture_glob(&c, "*_proj.weight");
        fixture_glob(&c, "model.embed_tokens.weight");
        break;
    case 5:
        c.model.d_model = 96;
        c.model.d_ff = 704;
        c.model.vocab_size = 301;
        fixture_glob(&c, "*.q_proj.weight");
        break;
    default:
        break;
    }
    return c;
}

/* On the heap, because the plan borrows from it. */
static inline Planned *planned_create(Config config, MeshShape mesh) {
    Planned *p = calloc(1, sizeof *p);
    if (p == NULL)
        abort();
    p->config = config;
    p->shape = model_shape(&p->config);
    assert_int_equal(params_create(&p->params, &p->shape, &p->config), STATUS_OK);
    plan_create(&p->plan, &p->params, &p->config, mesh);
    return p;
}

static inline void planned_destroy(Planned *p) {
    plan_destroy(&p->plan);
    params_destroy(&p->params);
    free(p);
}

/* A kind of model with as many kv heads as the mesh has tp ranks. */
static inline Config fixture_kind_on(int kind, MeshShape mesh) {
    Config c = fixture_kind(kind);
    if (c.model.n_kv_heads < mesh.tp)
        c.model.n_kv_heads = mesh.tp;
    return c;
}

/* Runs `check` for every kind of model on every mesh, sharded and with ddp, with matrices that stay in slices and
 * without. */
static inline void for_each_planned(void (*check)(Planned *p)) {
    for (int kind = 0; kind < FIXTURE_KINDS; kind++)
        for (int m = 0; m < FIXTURE_MESHES; m++)
            for (int mode = 0; mode < (fixture_meshes[m].tp > 1 ? 4 : 2); mode++) {
                Config c = fixture_kind_on(kind, fixture_meshes[m]);
                c.parallel.data = mode & 1 ? DATA_DDP : DATA_FSDP;
                c.optimizer.muon.tp_distributed_gram = mode & 2 ? GRAM_ALWAYS : GRAM_OFF;
                Planned *p = planned_create(c, fixture_meshes[m]);
                check(p);
                planned_destroy(p);
            }
}

#endif
