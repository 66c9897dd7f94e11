/* Attention by products with rounded operands on a CUDA device: forward and backward against binary64 within bounds
 * that follow from the roundings, the same bits from call to call and for a sequence alone as among others, nothing
 * written beside the results. Argument: what to try. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/arena.h"
#include "base/fatal.h"
#include "device/products.h"
#include "tensor/ops.h"
#include "tests/cuda/pin.h"

#define CHECK(cond, ...) ((cond) ? (void)0 : fatal(__VA_ARGS__))
#define UNTOUCHED -1234.5f
#define SUM 0x1p-23 /* of a sum in f32, relative, for each of its terms */

static Device *device;
static Stream *compute;

typedef struct Form {
    int64_t B, T, H, K, D;
    int64_t spare, skew; /* elements more in every token; from an aligned place to the first */
    bool coarse;         /* q, k, v and d_o are operands already: they lose nothing on the way in */
} Form;

/* ---- data ---- */

static uint64_t random_state = 1;

static float random_float(bool coarse) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    const int32_t bits = (int32_t)(random_state >> 32);
    return coarse ? (float)(bits >> 25) * 0x1p-6f : (float)bits * 0x1p-31f;
}

/* [B,T,heads,D] with margins, or [B,H,T] (stride 1, heads 1, D 1), on the host and on the device. */
typedef struct Block {
    float *host, *device, *before; /* before: what the host sent */
    int64_t nelem, stride, used;   /* used: elements of a row that belong to it */
    int64_t first;
} Block;

static Block block_of(const Form *f, int64_t rows, int64_t used, bool random) {
    const int64_t stride = used == 1 ? 1 : used + f->spare, nelem = rows * stride + f->skew + 3;
    Block x = {HEAP_ALLOC(float, nelem),
               device_alloc(compute, (size_t)nelem * sizeof(float)),
               HEAP_ALLOC(float, nelem),
               nelem,
               stride,
               used,
               f->skew};
    for (int64_t i = 0; i < nelem; i++)
        x.before[i] = random ? random_float(f->coarse) : UNTOUCHED;
    return x;
}

static void upload(const Block *x) {
    device_copy_from_host(compute, x->device, x->before, (size_t)x->nelem * sizeof(float));
    stream_sync(compute);
}

static void download(const Block *x, float *to) {
    device_copy_to_host(compute, to, x->device, (size_t)x->nelem * sizeof(float));
}

static void block_free(Block *x) {
    device_free(compute, x->device);
    heap_free(x->host);
    heap_free(x->before);
}

enum { Q, K_, V, D_O, INPUTS, O = INPUTS, MAX, TOTAL, DQ, DK, DV, BLOCKS };
static const char *const names[] = {[O] = "o", [MAX] = "max", [TOTAL] = "sum", [DQ] = "dq", [DK] = "dk", [DV] = "dv"};

typedef struct Case {
    Form f;
    Block x[BLOCKS];
    double scale;
} Case;

static void case_init(Case *c, const Form *f) {
    const int64_t tokens = f->B * f->T, query = f->H * f->D, key = f->K * f->D;
    const int64_t width[BLOCKS] = {query, key, key, query, query, 1, 1, query, key, key};
    *c = (Case){.f = *f, .scale = 1.0 / sqrt((double)f->D)};
    for (int i = 0; i < BLOCKS; i++)
        c->x[i] = block_of(f, width[i] == 1 ? tokens * f->H : tokens, width[i], i < INPUTS);
}

static void case_deinit(Case *c) {
    for (int i = 0; i < BLOCKS; i++)
        block_free(&c->x[i]);
}

/* ---- running ---- */

/* Of sequence b on. */
static float *at(const Case *c, int which, int64_t b) {
    const Block *x = &c->x[which];
    return x->device + x->first + b * c->f.T * (x->used == 1 ? c->f.H : x->stride);
}

static void run_sequences(const Case *c, int64_t b, int64_t B) {
    const Form *f = &c->f;
    ops_attention_forward(compute, (AttentionForward){.o = at(c, O, b),
                                                      .max = at(c, MAX, b),
                                                      .sum = at(c, TOTAL, b),
                                                      .q = at(c, Q, b),
                                                      .k = at(c, K_, b),
                                                      .v = at(c, V, b),
                                                      .B = B,
                                                      .T = f->T,
                                                      .H = f->H,
                                                      .K = f->K,
                                                      .D = f->D,
                                                      .q_stride = c->x[Q].stride,
                                                      .kv_stride = c->x[K_].stride,
                                                      .o_stride = c->x[O].stride,
                                                      .scale = (float)c->scale});
    ops_attention_backward(compute, (AttentionBackward){.dq = at(c, DQ, b),
                                                        .dk = at(c, DK, b),
                                                        .dv = at(c, DV, b),
                                                        .d_o = at(c, D_O, b),
                                                        .q = at(c, Q, b),
                                                        .k = at(c, K_, b),
                                                        .v = at(c, V, b),
                                                        .o = at(c, O, b),
                                                        .max = at(c, MAX, b),
                                                        .sum = at(c, TOTAL, b),
                                                        .B = B,
                                                        .T = f->T,
                                                        .H = f->H,
                                                        .K = f->K,
                                                        .D = f->D,
                                                        .q_stride = c->x[Q].stride,
                                                        .kv_stride = c->x[K_].stride,
                                                        .o_stride = c->x[O].stride,
                                                        .scale = (float)c->scale});
}

/* Sequences from b on, `together` of them at a time. */
static void run(const Case *c, int64_t b, int64_t together) {
    for (int i = 0; i < BLOCKS; i++)
        upload(&c->x[i]);
    for (; b < c->f.B; b += together)
        run_sequences(c, b, together);
    stream_sync(compute);
}

/* From sequence b on. */
static void expect_same(const Case *c, int64_t b, const char *what) {
    for (int i = INPUTS; i < BLOCKS; i++) {
        const Block *x = &c->x[i];
        float *again = HEAP_ALLOC(float, x->nelem);
        download(x, again);
        for (int64_t e = at(c, i, b) - x->device; e < x->nelem; e++)
            CHECK(memcmp(&x->host[e], &again[e], sizeof(float)) == 0,
                  "%s, T %" PRId64 ": element %" PRId64 " of %s is %a and %a", what, c->f.T, e, names[i],
                  (double)x->host[e], (double)again[e]);
        heap_free(again);
    }
}

/* ---- comparing ---- */

static void expect(const Case *c, int which, int64_t e, double value, double bound) {
    const double got = (double)c->x[which].host[e];
    CHECK(fabs(got - value) <= bound,
          "B %" PRId64 " T %" PRId64 " H %" PRId64 " K %" PRId64 " D %" PRId64 ": element %" PRId64
          " of %s is %a, not %a within %a",
          c->f.B, c->f.T, c->f.H, c->f.K, c->f.D, e, names[which], got, value, bound);
}

static void expect_untouched(const Case *c) {
    for (int i = INPUTS; i < BLOCKS; i++) {
        const Block *x = &c->x[i];
        const int64_t rows = (x->nelem - c->f.skew - 3) / x->stride;
        for (int64_t e = 0; e < x->nelem; e++) {
            const int64_t in = e - x->first;
            const bool inside = in >= 0 && in < rows * x->stride && in % x->stride < x->used;
            CHECK(inside || x->host[e] == x->before[e], "T %" PRId64 ": wrote at %" PRId64 ", beside %s", c->f.T, e,
                  names[i]);
        }
    }
}

/* Rounding of an operand on the way in, and of what soft-max leaves, relative. */
typedef struct Precision {
    double input, made;
} Precision;

static Precision precision_of(DeviceCompute kind, bool coarse) {
    const double rounding = kind == DEVICE_BF16 ? 0x1p-8 : 0x1p-10; /* tf32 may be cut off */
    return (Precision){coarse ? 0.0 : rounding, rounding};
}

/* One sequence and query head: values and how far off they may be, first order with a twentieth on top. */
typedef struct Head {
    const Case *c;
    Precision precision;
    int64_t b, h, kv;
    double *p, *p_off, *s_off;         /* [T]: of one row; p_off relative, s_off absolute */
    double *dk, *dv, *dk_off, *dv_off; /* [T,D] of a kv head, all heads of its group */
} Head;

static int64_t token_at(const Head *x, int which, int64_t t, int64_t head) {
    const Block *block = &x->c->x[which];
    return block->first + (x->b * x->c->f.T + t) * block->stride + head * x->c->f.D;
}

static const float *input(const Head *x, int which, int64_t t, int64_t head) {
    return x->c->x[which].before + token_at(x, which, t, head);
}

typedef struct Dot {
    double value, off;
} Dot;

static Dot dot_of(const Head *x, const float *a, const float *b) {
    double value = 0.0, size = 0.0;
    for (int64_t d = 0; d < x->c->f.D; d++) {
        value += (double)a[d] * (double)b[d];
        size += fabs((double)a[d] * (double)b[d]);
    }
    return (Dot){value, 1.05 * size * (2.0 * x->precision.input + (double)x->c->f.D * SUM)};
}

/* Probabilities of row i; checks max and sum. */
static void reference_row(const Head *x, int64_t i) {
    const float *q = input(x, Q, i, x->h);
    const int64_t saved = x->c->f.skew + (x->b * x->c->f.H + x->h) * x->c->f.T + i;
    double max = -INFINITY, sum = 0.0, mean = 0.0, worst = 0.0;
    for (int64_t j = 0; j <= i; j++) {
        const Dot s = dot_of(x, q, input(x, K_, j, x->kv));
        x->p[j] = s.value * x->c->scale;
        x->s_off[j] = s.off * x->c->scale + 3.0 * SUM * fabs(x->p[j]);
        max = fmax(max, x->p[j]);
        worst = fmax(worst, x->s_off[j]);
    }
    for (int64_t j = 0; j <= i; j++)
        sum += exp(x->p[j] - max);
    for (int64_t j = 0; j <= i; j++) {
        x->p[j] = exp(x->p[j] - max) / sum;
        mean += x->p[j] * x->s_off[j];
    }
    const double sums = (double)(i + 8) * SUM;
    for (int64_t j = 0; j <= i; j++)
        x->p_off[j] = 1.05 * (x->s_off[j] + mean + sums);
    const double got_max = (double)x->c->x[MAX].host[saved], got_sum = (double)x->c->x[TOTAL].host[saved];
    expect(x->c, MAX, saved, max, worst);
    expect(x->c, TOTAL, saved, sum * exp(max - got_max), 1.05 * got_sum * (mean + sums + SUM * fabs(max)));
}

/* o of row i; gives delta. */
static Dot reference_output(const Head *x, int64_t i) {
    const float *d_o = input(x, D_O, i, x->h);
    Dot delta = {0.0, 0.0};
    for (int64_t d = 0; d < x->c->f.D; d++) {
        const Precision lost = x->precision;
        double value = 0.0, off = 0.0;
        for (int64_t j = 0; j <= i; j++) {
            const double v = (double)input(x, V, j, x->kv)[d];
            value += x->p[j] * v;
            off += x->p[j] * fabs(v) * (x->p_off[j] + lost.made + lost.input + (double)(i + 2) * SUM);
        }
        off *= 1.05;
        expect(x->c, O, token_at(x, O, i, x->h) + d, value, off);
        delta.value += value * (double)d_o[d];
        delta.off += fabs((double)d_o[d]) * (off + fabs(value) * (double)x->c->f.D * SUM);
    }
    return delta;
}

/* What row i gives to dq, and adds to dk and dv. */
static void reference_gradients(const Head *x, int64_t i, Dot delta) {
    const int64_t D = x->c->f.D;
    const float *q = input(x, Q, i, x->h), *d_o = input(x, D_O, i, x->h);
    const double made = x->precision.made + x->precision.input + (double)(x->c->f.T * x->c->f.H) * SUM;
    double *dq = HEAP_ALLOC(double, D), *dq_off = HEAP_ALLOC(double, D);
    for (int64_t j = 0; j <= i; j++) {
        const float *k = input(x, K_, j, x->kv);
        const Dot dp = dot_of(x, d_o, input(x, V, j, x->kv));
        const double factor = x->p[j] * x->c->scale, ds = factor * (dp.value - delta.value);
        const double ds_off = factor * (dp.off + delta.off) + fabs(ds) * (x->p_off[j] + 4.0 * SUM + made);
        const double p_off = x->p[j] * (x->p_off[j] + made);
        for (int64_t d = 0; d < D; d++) {
            dq[d] += ds * (double)k[d];
            dq_off[d] += 1.05 * ds_off * fabs((double)k[d]);
            x->dk[j * D + d] += ds * (double)q[d];
            x->dk_off[j * D + d] += 1.05 * ds_off * fabs((double)q[d]);
            x->dv[j * D + d] += x->p[j] * (double)d_o[d];
            x->dv_off[j * D + d] += 1.05 * p_off * fabs((double)d_o[d]);
        }
    }
    for (int64_t d = 0; d < D; d++)
        expect(x->c, DQ, token_at(x, DQ, i, x->h) + d, dq[d], dq_off[d]);
    heap_free(dq);
    heap_free(dq_off);
}

/* A kv head of a sequence, with its group. */
static void expect_values(const Case *c, Precision precision, int64_t b, int64_t kv) {
    const int64_t T = c->f.T, D = c->f.D, group = c->f.H / c->f.K;
    double *rows = HEAP_ALLOC(double, 3 * T), *keys = HEAP_ALLOC(double, 4 * T * D);
    Head x = {
        c, precision, b, 0, kv, rows, rows + T, rows + 2 * T, keys, keys + T * D, keys + 2 * T * D, keys + 3 * T * D};
    for (x.h = kv * group; x.h < (kv + 1) * group; x.h++)
        for (int64_t i = 0; i < T; i++) {
            reference_row(&x, i);
            reference_gradients(&x, i, reference_output(&x, i));
        }
    for (int64_t t = 0; t < T; t++)
        for (int64_t d = 0; d < D; d++) {
            expect(c, DK, token_at(&x, DK, t, kv) + d, x.dk[t * D + d], x.dk_off[t * D + d]);
            expect(c, DV, token_at(&x, DV, t, kv) + d, x.dv[t * D + d], x.dv_off[t * D + d]);
        }
    heap_free(rows);
    heap_free(keys);
}

/* `again`: the sequence from which on they are computed a second time. */
static void try_form(const Form *f, DeviceCompute kind, int64_t again) {
    Case c;
    case_init(&c, f);
    run(&c, 0, f->B);
    for (int i = INPUTS; i < BLOCKS; i++)
        download(&c.x[i], c.x[i].host);
    expect_untouched(&c);
    for (int64_t b = 0; b < f->B; b++)
        for (int64_t kv = 0; kv < f->K; kv++)
            expect_values(&c, precision_of(kind, f->coarse), b, kv);
    run(&c, again, 1);
    expect_same(&c, again, "alone and among others");
    case_deinit(&c);
}

/* ---- forms ---- */

static const Form small[] = {
    {.B = 3, .T = 16, .H = 4, .K = 4, .D = 64},
    {.B = 3, .T = 16, .H = 4, .K = 2, .D = 64, .coarse = true},
    {.B = 3, .T = 13, .H = 6, .K = 2, .D = 16, .spare = 3, .skew = 1},
    {.B = 1, .T = 13, .H = 3, .K = 3, .D = 80, .spare = 4, .coarse = true},
    {.B = 2, .T = 1, .H = 2, .K = 1, .D = 100},
    {.B = 1, .T = 1, .H = 1, .K = 1, .D = 8, .spare = 1, .coarse = true},
    {.B = 1, .T = 33, .H = 2, .K = 2, .D = 128, .coarse = true},
    {.B = 2, .T = 130, .H = 4, .K = 1, .D = 10, .coarse = true},
    {.B = 1, .T = 130, .H = 2, .K = 2, .D = 12, .skew = 4},
};

/* More rows than a block has; and more pairs than have room, in the middle of the last sequence. */
static const Form large[] = {
    {.B = 1, .T = 1100, .H = 20, .K = 20, .D = 4, .coarse = true},
    {.B = 2, .T = 1100, .H = 20, .K = 10, .D = 4, .spare = 1, .coarse = true},
};

/* A layer of llama-124m, but for T. */
static const Form layer[] = {{.B = 1, .T = 64, .H = 12, .K = 12, .D = 64}};

static void open_device(DeviceCompute kind, const Form *forms, int count) {
    const DeviceOptions options = {.name = "cuda", .threads = 1, .compute = kind};
    ProductList list = {0};
    const Status status = device_create(&device, &options);
    CHECK(status == STATUS_OK, "%s", status_trail());
    compute = device_stream(device, STREAM_COMPUTE);
    for (int i = 0; i < count; i++)
        products_add_attention(&list, forms[i].T, forms[i].H, forms[i].K, forms[i].D);
    pin_products(device, &list);
}

static void try_small(DeviceCompute kind) {
    const int count = sizeof small / sizeof small[0];
    open_device(kind, small, count);
    for (int i = 0; i < count; i++)
        try_form(&small[i], kind, 0);
    device_destroy(device);
}

static void try_large(void) {
    const int count = sizeof large / sizeof large[0];
    open_device(DEVICE_BF16, large, count);
    for (int i = 0; i < count; i++) {
        const Form *f = &large[i];
        const AttentionCut cut = attention_cut(f->T, f->H, f->K);
        CHECK(cut.rows < f->T, "T %" PRId64 " is one block", f->T);
        CHECK(f->B == 1 || (cut.pairs < f->B * f->K && cut.pairs % f->K != 0), "no sequence is cut");
        try_form(f, DEVICE_BF16, f->B == 1 ? 1 : f->B - 1);
    }
    device_destroy(device);
}

/* Once, to be counted. */
static void run_once(void) {
    Case c;
    open_device(DEVICE_BF16, layer, 1);
    case_init(&c, &layer[0]);
    run(&c, 0, 1);
    case_deinit(&c);
    device_destroy(device);
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    if (strcmp(what, "bf16") == 0)
        try_small(DEVICE_BF16);
    else if (strcmp(what, "tf32") == 0)
        try_small(DEVICE_TF32);
    else if (strcmp(what, "large") == 0)
        try_large();
    else if (strcmp(what, "once") == 0)
        run_once();
    else
        fatal("usage: attention_fast bf16|tf32|large|once");
    return 0;
}
