/* Products with rounded operands on a CUDA device: every form against a binary64 sum within the bound of the operands'
 * type, the same bits from call to call and alone as in a batch, mirrored triangles equal to the bit, nothing written
 * beside the result. Argument: what to try. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/fatal.h"
#include "device/products.h"
#include "kernels/exact_math.h"
#include "tensor/ops.h"

#define CHECK(cond, ...) ((cond) ? (void)0 : fatal(__VA_ARGS__))
#define UNTOUCHED -1234.5f

static Device *device;
static Stream *compute;

/* One form of a product, made `batch` times. */
typedef struct Form {
    int64_t m, n, k[3];
    int nparts, nsegments;
    bool trans_a, trans_b, accumulate;
    GemmShape shape;
    GemmRange range;
    int64_t spare, skew; /* elements more in every row; from an aligned place to the first */
    int batch;
    bool ready; /* every place is aligned: operands that are there as bf16 are read where they are */
} Form;

/* Rounding of one operand and of the sums, relative; and what an operand may lose outright. */
typedef struct Precision {
    double operand, sum, least;
} Precision;

static Precision precision_of(DeviceCompute kind, GemmRange range) {
    if (range == GEMM_RANGE_UNIT)
        return (Precision){0x1p-11, 0x1p-23, 0x1p-25};
    return (Precision){kind == DEVICE_BF16 ? 0x1p-8 : 0x1p-10, 0x1p-23, 0.0};
}

/* ---- data ---- */

static uint64_t random_state = 1;

static float random_float(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(random_state >> 32) * 0x1p-31f;
}

/* A block on the host and its copy on the device. */
typedef struct Block {
    float *host, *device;
    int64_t nelem;
} Block;

static Block block_of(int64_t nelem, bool random) {
    Block block = {HEAP_ALLOC(float, nelem), device_alloc(compute, (size_t)nelem * sizeof(float)), nelem};
    for (int64_t i = 0; i < nelem; i++)
        block.host[i] = random ? random_float() : UNTOUCHED;
    return block;
}

static void upload(const Block *block) {
    device_copy_from_host(compute, block->device, block->host, (size_t)block->nelem * sizeof(float));
    stream_sync(compute);
}

static void block_free(Block *block) {
    device_free(compute, block->device);
    heap_free(block->host);
}

typedef struct Case {
    Form form;
    Block a[3], b[3], c;
    Gemm gemm; /* pointers of the device */
    float *first, *second;
} Case;

static int64_t rows_of(bool trans, int64_t along, int64_t k) {
    return trans ? k : along;
}

static void case_init(Case *c, const Form *f) {
    *c = (Case){.form = *f};
    const int64_t row = f->n + f->spare, one = f->m * row;
    c->gemm = (Gemm){.m = f->m,
                     .n = f->n,
                     .nparts = f->nparts,
                     .nsegments = f->nsegments,
                     .trans_a = f->trans_a,
                     .trans_b = f->trans_b,
                     .accumulate = f->accumulate,
                     .shape = f->shape,
                     .range = f->range,
                     .ldc = row,
                     .stride_c = one};
    for (int i = 0; i < f->nparts; i++) {
        GemmPart *p = &c->gemm.part[i];
        p->k = f->k[i];
        p->segment = (p->k + f->nsegments - 1) / f->nsegments;
        p->lda = rows_of(!f->trans_a, f->m, p->k) + f->spare;
        p->ldb = rows_of(f->trans_b, f->n, p->k) + f->spare;
        p->stride_a = rows_of(f->trans_a, f->m, p->k) * p->lda;
        p->stride_b = rows_of(!f->trans_b, f->n, p->k) * p->ldb;
        c->a[i] = block_of(f->batch * p->stride_a + f->skew + 1, true);
        c->b[i] = block_of(f->batch * p->stride_b + f->skew + 1, true);
        p->a = c->a[i].device + f->skew;
        p->b = c->b[i].device + f->skew;
        upload(&c->a[i]);
        upload(&c->b[i]);
    }
    c->c = block_of(f->batch * one + f->skew + 1, f->accumulate);
    c->gemm.c = c->c.device + f->skew;
    c->first = HEAP_ALLOC(float, c->c.nelem);
    c->second = HEAP_ALLOC(float, c->c.nelem);
}

static void case_deinit(Case *c) {
    for (int i = 0; i < c->form.nparts; i++) {
        block_free(&c->a[i]);
        block_free(&c->b[i]);
    }
    block_free(&c->c);
    heap_free(c->first);
    heap_free(c->second);
}

/* ---- running ---- */

static void run(const Case *c, const Gemm *gemm, int ncalls, float *out) {
    Gemm call = *gemm;
    upload(&c->c);
    for (int i = 0; i < ncalls; i++) {
        ops_gemm(compute, call);
        for (int p = 0; p < call.nparts; p++) {
            call.part[p].a += call.part[p].stride_a;
            call.part[p].b += call.part[p].stride_b;
        }
        call.c += call.stride_c;
    }
    stream_sync(compute);
    device_copy_to_host(compute, out, c->c.device, (size_t)c->c.nelem * sizeof(float));
}

static void expect_same(const Case *c, const char *what) {
    const Form *f = &c->form;
    for (int64_t i = 0; i < c->c.nelem; i++)
        CHECK(memcmp(&c->first[i], &c->second[i], sizeof(float)) == 0,
              "%s, m %" PRId64 " n %" PRId64 " k %" PRId64 ": element %" PRId64 " is %a and %a", what, f->m, f->n,
              f->k[0], i, (double)c->first[i], (double)c->second[i]);
}

/* ---- comparing ---- */

static double operand(const Block *block, const Form *f, int64_t first, bool trans, int64_t stride, int64_t i,
                      int64_t k) {
    return (double)block->host[f->skew + first + (trans ? k * stride + i : i * stride + k)];
}

/* Element (i, j) of product `index`: its value and how far off it may be. */
static void reference(const Case *c, int index, int64_t i, int64_t j, Precision precision, double *value,
                      double *bound) {
    const Form *f = &c->form;
    const double old = (double)c->c.host[f->skew + index * c->gemm.stride_c + i * c->gemm.ldc + j];
    double terms = 1.0, size = f->accumulate ? fabs(old) : 0.0, lost = 0.0;
    *value = f->accumulate ? old : 0.0;
    for (int p = 0; p < f->nparts; p++) {
        const GemmPart *part = &c->gemm.part[p];
        for (int64_t k = 0; k < part->k; k++) {
            const double a = operand(&c->a[p], f, index * part->stride_a, f->trans_a, part->lda, i, k);
            const double b = operand(&c->b[p], f, index * part->stride_b, !f->trans_b, part->ldb, j, k);
            *value += a * b;
            size += fabs(a * b);
            lost += precision.least * (fabs(a) + fabs(b) + precision.least);
        }
        terms += (double)part->k + 1.0;
    }
    *bound = size * (2.0 * precision.operand + terms * precision.sum) + lost;
}

static void expect_element(const Case *c, int index, int64_t i, int64_t j, Precision precision) {
    const Form *f = &c->form;
    const bool copy = f->shape == GEMM_LOWER_MIRRORED && j > i;
    const int64_t at = f->skew + index * c->gemm.stride_c;
    const float got = c->first[at + i * c->gemm.ldc + j];
    double value, bound;
    if (copy) {
        CHECK(memcmp(&got, &c->first[at + j * c->gemm.ldc + i], sizeof got) == 0,
              "m %" PRId64 ": element (%" PRId64 ", %" PRId64 ") is not its mirror's copy", f->m, i, j);
        return;
    }
    reference(c, index, i, j, precision, &value, &bound);
    CHECK(fabs((double)got - value) <= bound,
          "m %" PRId64 " n %" PRId64 " k %" PRId64 " trans %d%d accumulate %d parts %d: element (%" PRId64 ", %" PRId64
          ") is %a, not %a within %a",
          f->m, f->n, f->k[0], f->trans_a, f->trans_b, f->accumulate, f->nparts, i, j, (double)got, value, bound);
}

/* All elements of small products, every `step`-th row and column of large ones; and what lies around. */
static void expect_values(const Case *c, Precision precision) {
    const Form *f = &c->form;
    const int64_t step = f->m > 1000 ? 509 : 1;
    for (int index = 0; index < f->batch; index++)
        for (int64_t i = 0; i < f->m; i += step)
            for (int64_t j = 0; j < f->n; j += step)
                expect_element(c, index, i, j, precision);
    for (int64_t at = 0; at < c->c.nelem; at++) {
        const int64_t in = at - f->skew;
        const bool inside = in >= 0 && in < f->batch * c->gemm.stride_c && in % c->gemm.ldc < f->n;
        CHECK(inside || c->first[at] == c->c.host[at], "m %" PRId64 ": wrote at %" PRId64 ", beside the result", f->m,
              at);
    }
}

/* The operands of one block as bf16, on the device, from the same skew on. */
static uint16_t *bits_of(const Block *block) {
    uint16_t *host = HEAP_ALLOC(uint16_t, block->nelem), *bits;
    const size_t nbytes = (size_t)block->nelem * sizeof *host;
    for (int64_t i = 0; i < block->nelem; i++)
        host[i] = exact_bf16(block->host[i]);
    bits = device_alloc(compute, nbytes);
    device_copy_from_host(compute, bits, host, nbytes);
    stream_sync(compute);
    heap_free(host);
    return bits;
}

/* With operands that are there as bf16: they are not read as f32 then, where their places are aligned. */
static void try_ready(const Case *c, const Gemm *batch) {
    Gemm ready = *batch;
    uint16_t *bits[6];
    for (int p = 0; p < ready.nparts; p++) {
        bits[2 * p] = bits_of(&c->a[p]);
        bits[2 * p + 1] = bits_of(&c->b[p]);
        ready.part[p].a_bf16 = bits[2 * p] + c->form.skew;
        ready.part[p].b_bf16 = bits[2 * p + 1] + c->form.skew;
        if (c->form.ready) {
            ready.part[p].a = c->a[p].device + c->a[p].nelem; /* of no element */
            ready.part[p].b = c->b[p].device + c->b[p].nelem;
        }
    }
    run(c, &ready, 1, c->second);
    expect_same(c, "packed before and by the product");
    for (int i = 0; i < 2 * ready.nparts; i++)
        device_free(compute, bits[i]);
}

static void try_form(const Form *f, Precision precision) {
    Case c;
    case_init(&c, f);
    run(&c, &c.gemm, f->batch, c.first);
    expect_values(&c, precision);
    run(&c, &c.gemm, f->batch, c.second);
    expect_same(&c, "a second time");
    Gemm batch = c.gemm;
    batch.batch = f->batch;
    run(&c, &batch, 1, c.second);
    expect_same(&c, "alone and in a batch");
    try_ready(&c, &batch);
    case_deinit(&c);
}

/* ---- the forms ---- */

typedef void (*Visit)(const Form *form, void *arg);

static void visit_forms(Visit visit, void *arg) {
    static const Form sizes[] = {
        {.m = 64, .n = 48, .k = {32}, .nparts = 1},
        {.m = 65, .n = 47, .k = {33}, .nparts = 1, .spare = 3, .skew = 1},
        {.m = 1, .n = 96, .k = {40}, .nparts = 1},
        {.m = 33, .n = 16, .k = {1}, .nparts = 1, .skew = 4},
        {.m = 40, .n = 24, .k = {130, 16, 7}, .nparts = 3, .spare = 4},
        {.m = 24, .n = 40, .k = {0, 64}, .nparts = 2},
        {.m = 12, .n = 20, .k = {0}, .nparts = 1},
    };
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (int bits = 0; bits < 16; bits++) {
            Form f = sizes[s];
            f.batch = 3;
            f.trans_a = (bits & 1) != 0;
            f.trans_b = (bits & 2) != 0;
            f.accumulate = (bits & 4) != 0;
            f.range = (bits & 8) != 0 ? GEMM_RANGE_UNIT : GEMM_RANGE_ANY;
            f.nsegments = bits % 3 == 0 ? 4 : 1;
            visit(&f, arg);
            f.shape = GEMM_LOWER_MIRRORED;
            f.n = f.m;
            visit(&f, arg);
        }
}

static void visit_large(Visit visit, void *arg) {
    for (int bits = 0; bits < 2; bits++)
        visit(&(Form){.m = 4096,
                      .n = 4096,
                      .k = {8},
                      .nparts = 1,
                      .nsegments = 1,
                      .batch = 1,
                      .trans_a = bits == 1,
                      .trans_b = bits == 0,
                      .shape = GEMM_LOWER_MIRRORED,
                      .range = GEMM_RANGE_UNIT},
              arg);
}

static void collect(const Form *f, void *list) {
    for (int p = 0; p < f->nparts; p++)
        products_add(list, (ProductShape){f->m, f->n, f->k[p], f->trans_a, f->trans_b, f->shape, f->range});
}

static void visit_try(const Form *form, void *kind) {
    Form f = *form;
    const int64_t sizes = f.m | f.n | f.k[0] | f.k[1] | f.k[2] | f.spare | f.skew;
    f.ready = *(DeviceCompute *)kind == DEVICE_BF16 && f.range == GEMM_RANGE_ANY && sizes % 8 == 0;
    try_form(&f, precision_of(*(DeviceCompute *)kind, f.range));
}

/* ---- devices ---- */

static void open_device(DeviceCompute kind) {
    const DeviceOptions options = {.name = "cuda", .threads = 1, .compute = kind};
    const bool opened = device_create(&device, &options) == STATUS_OK;
    CHECK(opened, "%s", status_trail());
    compute = device_stream(device, STREAM_COMPUTE);
}

/* The choices, made twice: they must not depend on when. */
static unsigned char *choose(const ProductList *list) {
    const size_t nbytes = device_choice_nbytes(device, list->count);
    unsigned char *choices = HEAP_ALLOC(unsigned char, nbytes), *again = HEAP_ALLOC(unsigned char, nbytes);
    const bool chosen = device_choose_products(device, list, choices) == STATUS_OK &&
                        device_choose_products(device, list, again) == STATUS_OK;
    CHECK(chosen, "%s", status_trail());
    CHECK(memcmp(choices, again, nbytes) == 0, "the second choice is another");
    heap_free(again);
    return choices;
}

static void pin(void (*visit)(Visit, void *)) {
    ProductList list = {0};
    visit(collect, &list);
    unsigned char *choices = choose(&list);
    const bool pinned = device_pin_products(device, &list, choices) == STATUS_OK;
    CHECK(pinned, "%s", status_trail());
    CHECK(device_products(device)[0] != '\0', "the choices have no identity");
    heap_free(choices);
    products_deinit(&list);
}

static void try_all(DeviceCompute kind, void (*visit)(Visit, void *)) {
    open_device(kind);
    pin(visit);
    visit(visit_try, &kind);
    device_destroy(device);
}

/* Choices of another library or for another product are refused. */
static void try_foreign(void) {
    ProductList list = {0};
    collect(&(Form){.m = 32, .n = 32, .k = {16}, .nparts = 1}, &list);
    for (int what = 0; what < 2; what++) {
        open_device(DEVICE_BF16);
        unsigned char *choices = choose(&list);
        choices[what == 0 ? 0 : device_choice_nbytes(device, 1) - 1] ^= 1;
        list.shape[0].k += what == 0 ? 0 : 16;
        const Status status = device_pin_products(device, &list, choices);
        CHECK(status == STATUS_DEVICE, "foreign choices were taken");
        status_trail_clear();
        heap_free(choices);
        device_destroy(device);
    }
    products_deinit(&list);
}

static void try_exact(void) {
    open_device(DEVICE_EXACT);
    CHECK(!device_chooses_products(device) && device_choice_nbytes(device, 3) == 0, "an exact device chooses");
    CHECK(device_products(device)[0] == '\0', "an exact device has choices");
    device_destroy(device);
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    if (strcmp(what, "bf16") == 0)
        try_all(DEVICE_BF16, visit_forms);
    else if (strcmp(what, "tf32") == 0)
        try_all(DEVICE_TF32, visit_forms);
    else if (strcmp(what, "large") == 0)
        try_all(DEVICE_BF16, visit_large);
    else if (strcmp(what, "unpinned") == 0) {
        open_device(DEVICE_BF16);
        pin(visit_large);
        try_form(&(Form){.m = 64, .n = 48, .k = {32}, .nparts = 1, .nsegments = 1, .batch = 1},
                 precision_of(DEVICE_BF16, 0));
    } else if (strcmp(what, "foreign") == 0)
        try_foreign();
    else if (strcmp(what, "exact") == 0)
        try_exact();
    else
        fatal("usage: products_fast bf16|tf32|large|unpinned|foreign|exact");
    return 0;
}
