/* The exact matrix product: every element is the chains and the tree that kernels.h writes down, whatever the blocking.
 *
 * c is cut into macro tiles; for each, the contracted dimension into blocks. A block's panels of both operands are
 * packed in one parallel pass and multiplied in the next. Short segments run whole inside a block, so that their values
 * wait in tiles that stay in the L1 cache; a long chain is cut, and waits in a tile of scratch between blocks. */
#include "kernels/cpu/isa.h"

#include <stdalign.h>

#include "kernels/cpu/gemm_tile.h"

enum {
    DEPTH = 384,              /* of a piece of a long chain: a panel of b fills three quarters of the L1 cache */
    DEPTH_WHOLE = 768,        /* up to here segments are not cut */
    CACHE_FLOATS = 80 * 1024, /* of the L2 cache, for panels of a */
    MACRO_M = 1024,
    MACRO_N = 1024,
    KEEP_FLOATS = 2 * 1024 * 1024, /* whole panels of one operand kept over the macro tiles of the other */
    ITEMS_PER_THREAD = 4
};

typedef struct Plan {
    const KernelCtx *ctx;
    const Gemm *gemm;
    GemmSource a[3], b[3];
    int nlevels;   /* log2 of the segments */
    int group;     /* log2 of the segments of one block */
    int pieces;    /* blocks of one chain */
    bool by_chain; /* a block is one part of one segment or a piece of it */
    int64_t nblocks;
    int nhot, ncold; /* slots in the L1 cache, slots per tile of scratch */
    int64_t macro_m, macro_n;
    bool keep_a, keep_b; /* all blocks of the operand are packed once, for all macro tiles of the other dimension */
    float *packed_a, *packed_b, *cold;
} Plan;

/* One block of one macro tile. */
typedef struct Pass {
    const Plan *plan;
    GemmBlock block;
    int64_t i0, j0; /* first row and column */
    int64_t m, n;   /* of the macro tile, cut at the matrix */
    int64_t na, nb; /* panels of a and of b */
    float *a, *b;   /* this block's packed panels */
    bool pack_a, pack_b;
    bool last;
    int64_t a_chunk, b_chunk, a_chunks; /* panels per item of the multiplication; items along m */
    int64_t pack_chunk;
} Pass;

static int64_t ceil_div(int64_t x, int64_t y) {
    return (x + y - 1) / y;
}

static int64_t min_of(int64_t x, int64_t y) {
    return x < y ? x : y;
}

static int64_t round_up(int64_t x, int64_t unit) {
    return ceil_div(x, unit) * unit;
}

/* ---- the program ------------------------------------------------------------------------------------------------ */

static int64_t segment_of(const Gemm *gemm, int part) {
    return gemm->nsegments == 1 ? gemm->part[part].k : gemm->part[part].segment;
}

/* Elements of segment s of a part that exist, cut into `pieces`: the one numbered `piece`. */
static void step_range(GemmStep *step, const Plan *plan, int segment, int piece) {
    const int64_t size = segment_of(plan->gemm, step->part), k = plan->gemm->part[step->part].k;
    const int64_t unit = plan->pieces == 1 ? size : round_up(ceil_div(size, plan->pieces), 8);
    const int64_t start = segment * size, end = min_of(start + size, k);
    step->k0 = min_of(start + piece * unit, end);
    step->len = min_of(unit, end - step->k0);
}

/* Where the value of a chain goes: on in the chain, into the sum over parts, up the binary counter, or out. */
static void step_route(GemmStep *step, const Plan *plan, int segment, int piece) {
    const int level0 = plan->gemm->nparts > 1 ? 2 : 1;
    step->resumes = piece > 0;
    if (piece < plan->pieces - 1) {
        step->store = 0;
        return;
    }
    step->adds_sum = step->part > 0;
    if (step->part < plan->gemm->nparts - 1) {
        step->store = 1;
        return;
    }
    step->first_add = level0;
    while (segment >> step->nadds & 1)
        step->nadds++;
    step->store = segment == plan->gemm->nsegments - 1 ? GEMM_STORE_FINAL : level0 + step->nadds;
}

static void block_push(GemmBlock *block, const Plan *plan, int segment, int part, int piece) {
    GemmStep *step = &block->step[block->nsteps++];
    *step = (GemmStep){.part = part};
    step_range(step, plan, segment, piece);
    step_route(step, plan, segment, piece);
    block->len += step->len;
}

static void block_build(GemmBlock *block, const Plan *plan, int64_t index) {
    const int nparts = plan->gemm->nparts;
    block->nsteps = 0;
    block->len = 0;
    if (plan->by_chain) {
        const int chain = (int)(index / plan->pieces);
        block_push(block, plan, chain / nparts, chain % nparts, (int)(index % plan->pieces));
        return;
    }
    const int first = (int)index << plan->group;
    for (int s = first; s < first + (1 << plan->group); s++)
        for (int p = 0; p < nparts; p++)
            block_push(block, plan, s, p, 0);
}

/* ---- packing and multiplying one block -------------------------------------------------------------------------- */

static void pack_item(void *arg, int item, int thread) {
    const Pass *pass = arg;
    const Plan *plan = pass->plan;
    (void)thread;
    const int64_t na = pass->pack_a ? pass->na : 0, nb = pass->pack_b ? pass->nb : 0;
    const int64_t end = min_of((item + 1) * pass->pack_chunk, na + nb);
    for (int64_t panel = item * pass->pack_chunk; panel < end; panel++) {
        if (panel < na) {
            const int64_t i = panel * GEMM_MR;
            ISA_NAME(gemm_pack_a)(pass->a + i * pass->block.len, &pass->block, plan->a, pass->i0 + i, pass->m - i);
        } else {
            const int64_t j = (panel - na) * GEMM_NR;
            ISA_NAME(gemm_pack_b)(pass->b + j * pass->block.len, &pass->block, plan->b, pass->j0 + j, pass->n - j);
        }
    }
}

/* Moves what exists from a tile to c. */
static void store_edge(const Gemm *gemm, const float *tile, int64_t i0, int64_t j0) {
    const int64_t rows = min_of(GEMM_MR, gemm->m - i0), cols = min_of(GEMM_NR, gemm->n - j0);
    for (int64_t i = 0; i < rows; i++) {
        float *c = gemm->c + (i0 + i) * gemm->ldc + j0;
        for (int64_t j = 0; j < cols; j++)
            c[j] = gemm->accumulate ? c[j] + tile[i * GEMM_NR + j] : tile[i * GEMM_NR + j];
    }
}

typedef struct Local {
    alignas(64) float hot[GEMM_MAX_SLOTS * GEMM_TILE];
    alignas(64) float edge[GEMM_TILE];
} Local;

static void run_tile(const Pass *pass, Local *local, int64_t pi, int64_t pj) {
    const Plan *plan = pass->plan;
    const Gemm *gemm = plan->gemm;
    const int64_t i = pass->i0 + pi * GEMM_MR, j = pass->j0 + pj * GEMM_NR;
    if (gemm->shape == GEMM_LOWER_MIRRORED && i + GEMM_MR <= j)
        return; /* a tile on the diagonal is made in full; the mirror writes over what is above */
    const bool whole = i + GEMM_MR <= gemm->m && j + GEMM_NR <= gemm->n;
    const GemmTile tile = {
        .block = &pass->block,
        .a = pass->a + pi * GEMM_MR * pass->block.len,
        .b = pass->b + pj * GEMM_NR * pass->block.len,
        .hot = local->hot,
        .cold = plan->cold ? plan->cold + (pj * pass->na + pi) * plan->ncold * GEMM_TILE : NULL,
        .nhot = plan->nhot,
        .c = whole ? gemm->c + i * gemm->ldc + j : local->edge,
        .ldc = whole ? gemm->ldc : GEMM_NR,
        .accumulate = whole && gemm->accumulate,
    };
    ISA_NAME(gemm_tile_run)(&tile);
    if (pass->last && !whole)
        store_edge(gemm, local->edge, i, j);
}

static void multiply_item(void *arg, int item, int thread) {
    const Pass *pass = arg;
    (void)thread;
    Local local;
    const int64_t a0 = item % pass->a_chunks * pass->a_chunk, b0 = item / pass->a_chunks * pass->b_chunk;
    const int64_t a1 = min_of(a0 + pass->a_chunk, pass->na), b1 = min_of(b0 + pass->b_chunk, pass->nb);
    for (int64_t pj = b0; pj < b1; pj++)
        for (int64_t pi = a0; pi < a1; pi++)
            run_tile(pass, &local, pi, pj);
}

/* Chunks of a that stay in the L2 cache while the panels of b pass by; with threads, enough of them for all. */
static void pass_split(Pass *pass) {
    const int nthreads = pass->plan->ctx->nthreads;
    const int64_t wanted = nthreads == 1 ? 1 : ITEMS_PER_THREAD * nthreads;
    const int64_t depth = pass->block.len > 0 ? pass->block.len : 1;
    int64_t fit = CACHE_FLOATS / (depth * GEMM_MR);
    fit = fit < 4 ? 4 : fit;
    const int64_t chunks = ceil_div(pass->na, fit);
    pass->a_chunk = ceil_div(pass->na, chunks);
    pass->a_chunks = ceil_div(pass->na, pass->a_chunk);
    const int64_t b_chunks = min_of(pass->nb, ceil_div(wanted, pass->a_chunks));
    pass->b_chunk = ceil_div(pass->nb, b_chunks);
    const int64_t panels = (pass->pack_a ? pass->na : 0) + (pass->pack_b ? pass->nb : 0);
    pass->pack_chunk = ceil_div(panels, min_of(panels > 0 ? panels : 1, wanted));
}

static void pass_run(Pass *pass) {
    const KernelCtx *ctx = pass->plan->ctx;
    pass_split(pass);
    const int64_t panels = (pass->pack_a ? pass->na : 0) + (pass->pack_b ? pass->nb : 0);
    if (panels > 0)
        ctx->parallel(ctx, (int)ceil_div(panels, pass->pack_chunk), pack_item, pass);
    const int64_t items = pass->a_chunks * ceil_div(pass->nb, pass->b_chunk);
    ctx->parallel(ctx, (int)items, multiply_item, pass);
}

static void macro_tile(const Plan *plan, int64_t i0, int64_t j0, bool first_of_column) {
    const Gemm *gemm = plan->gemm;
    Pass pass = {.plan = plan, .i0 = i0, .j0 = j0};
    pass.m = min_of(plan->macro_m, gemm->m - i0);
    pass.n = min_of(plan->macro_n, gemm->n - j0);
    pass.na = ceil_div(pass.m, GEMM_MR);
    pass.nb = ceil_div(pass.n, GEMM_NR);
    pass.pack_a = !plan->keep_a || j0 == 0;
    pass.pack_b = !plan->keep_b || first_of_column;
    pass.a = plan->packed_a;
    pass.b = plan->packed_b;
    for (int64_t index = 0; index < plan->nblocks; index++) {
        block_build(&pass.block, plan, index);
        pass.last = index == plan->nblocks - 1;
        pass_run(&pass);
        if (plan->keep_a)
            pass.a += pass.na * GEMM_MR * pass.block.len;
        if (plan->keep_b)
            pass.b += pass.nb * GEMM_NR * pass.block.len;
    }
}

/* ---- the plan --------------------------------------------------------------------------------------------------- */

/* Cuts the contracted dimension: several segments a block while they are short, else pieces of one part's chain. */
static void plan_depth(Plan *plan) {
    const Gemm *gemm = plan->gemm;
    int64_t longest = 0, all = 0;
    for (int p = 0; p < gemm->nparts; p++) {
        const int64_t size = segment_of(gemm, p);
        longest = size > longest ? size : longest;
        all += size;
    }
    while (1 << plan->nlevels < gemm->nsegments)
        plan->nlevels++;
    const int nslots = plan->nlevels + (gemm->nparts > 1 ? 2 : 1);
    if (all > DEPTH_WHOLE) {
        plan->pieces = longest > 0 ? (int)ceil_div(longest, DEPTH) : 1;
        plan->nblocks = (int64_t)gemm->nsegments * gemm->nparts * plan->pieces;
        plan->by_chain = true;
        plan->ncold = nslots;
        return;
    }
    plan->pieces = 1;
    while (plan->group < plan->nlevels && all << (plan->group + 1) <= DEPTH_WHOLE)
        plan->group++;
    plan->nblocks = gemm->nsegments >> plan->group;
    plan->ncold = plan->nlevels - plan->group;
    plan->nhot = nslots - plan->ncold;
}

/* The part of the contracted dimension whose panels are held at a time. */
static int64_t held_depth(const Plan *plan, bool keep) {
    GemmBlock block;
    int64_t deepest = 0, all = 0;
    for (int64_t index = 0; index < plan->nblocks; index++) {
        block_build(&block, plan, index);
        deepest = block.len > deepest ? block.len : deepest;
        all += block.len;
    }
    return keep ? all : deepest;
}

static void plan_memory(Plan *plan) {
    const Gemm *gemm = plan->gemm;
    const int64_t m = round_up(gemm->m, GEMM_MR), n = round_up(gemm->n, GEMM_NR);
    const int64_t all = held_depth(plan, true);
    plan->macro_m = min_of(m, round_up(MACRO_M, GEMM_MR));
    plan->macro_n = min_of(n, round_up(MACRO_N, GEMM_NR));
    plan->keep_a = plan->macro_m == m && plan->macro_n < n && plan->macro_m * all <= KEEP_FLOATS;
    plan->keep_b = plan->macro_m < m && plan->macro_n * all <= KEEP_FLOATS;
    const int64_t a_floats = round_up(plan->macro_m * held_depth(plan, plan->keep_a), 16);
    const int64_t b_floats = round_up(plan->macro_n * held_depth(plan, plan->keep_b), 16);
    const int64_t cold_floats = plan->macro_m * plan->macro_n * plan->ncold;
    float *block = plan->ctx->scratch(plan->ctx, 0, (size_t)(a_floats + b_floats + cold_floats) * sizeof *block);
    plan->packed_a = block;
    plan->packed_b = block + a_floats;
    plan->cold = plan->ncold > 0 ? block + a_floats + b_floats : NULL;
}

typedef struct Mirror {
    const Gemm *gemm;
    int64_t rows;
} Mirror;

static void mirror_item(void *arg, int item, int thread) {
    const Mirror *mirror = arg;
    (void)thread;
    const int64_t end = min_of((item + 1) * mirror->rows, mirror->gemm->m);
    ISA_NAME(gemm_mirror)(mirror->gemm->c, mirror->gemm->ldc, item * mirror->rows, end);
}

static void gemm_one(const KernelCtx *ctx, const Gemm *gemm) {
    Plan plan = {.ctx = ctx, .gemm = gemm};
    for (int p = 0; p < gemm->nparts; p++) {
        plan.a[p] = (GemmSource){.x = gemm->part[p].a, .ld = gemm->part[p].lda, .along = gemm->trans_a};
        plan.b[p] = (GemmSource){.x = gemm->part[p].b, .ld = gemm->part[p].ldb, .along = !gemm->trans_b};
    }
    plan_depth(&plan);
    plan_memory(&plan);
    const bool mirrored = gemm->shape == GEMM_LOWER_MIRRORED;
    for (int64_t j = 0; j < gemm->n; j += plan.macro_n) {
        const int64_t first = mirrored ? j / plan.macro_m * plan.macro_m : 0; /* the tiles above are copies */
        for (int64_t i = first; i < gemm->m; i += plan.macro_m)
            macro_tile(&plan, i, j, i == first);
    }
    if (mirrored) {
        Mirror mirror = {.gemm = gemm, .rows = 32};
        ctx->parallel(ctx, (int)ceil_div(gemm->m, mirror.rows), mirror_item, &mirror);
    }
}

void ISA_NAME(gemm)(const KernelCtx *ctx, const void *args) {
    Gemm gemm = *(const Gemm *)args;
    if (gemm.m == 0 || gemm.n == 0)
        return;
    for (int64_t left = gemm.batch > 1 ? gemm.batch : 1; left > 0; left--) {
        gemm_one(ctx, &gemm);
        for (int p = 0; p < gemm.nparts; p++) {
            gemm.part[p].a += gemm.part[p].stride_a;
            gemm.part[p].b += gemm.part[p].stride_b;
        }
        gemm.c += gemm.stride_c;
    }
}
