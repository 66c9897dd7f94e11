/* Newton-Schulz in fast mode on a CUDA device: a batch gives each matrix the bits that it has alone, queued or
 * replayed. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/arena.h"
#include "base/fatal.h"
#include "optim/muon.h"
#include "tests/cuda/pin.h"

#define MOST 4
#define STEPS 4 /* queued, recorded, replayed twice */
#define CHECK(cond, ...) ((cond) ? (void)0 : fatal(__VA_ARGS__))

static Device *device;
static Stream *compute;

/* Matrices of one shape, cut along dimension -1, 0, 1, -1. */
typedef struct Case {
    NsPlan plan[MOST];
    const NsPlan *plans[MOST];
    int64_t nelem;
    float *x[MOST], *momentum[MOST], *scratch; /* device */
    float *host, *alone[MOST];
} Case;

static float *zeroed(int64_t nelem, const float *zeros) {
    float *x = device_alloc(compute, (size_t)nelem * sizeof *x);
    device_copy_from_host(compute, x, zeros, (size_t)nelem * sizeof *x);
    stream_sync(compute);
    return x;
}

static void case_init(Case *c, const NsConfig *config, int64_t out, int64_t in) {
    *c = (Case){.nelem = out * in};
    const int64_t padded = c->nelem + 8 * in;
    c->host = HEAP_ALLOC(float, padded);
    for (int i = 0; i < MOST; i++) {
        c->plan[i] = ns_plan(config, out, in, (i + 1) % 3 - 1, 8);
        c->plans[i] = &c->plan[i];
        c->x[i] = zeroed(padded, c->host);
        c->momentum[i] = zeroed(c->nelem, c->host);
        c->alone[i] = HEAP_ALLOC(float, c->nelem);
    }
    c->scratch = device_alloc(compute, (size_t)ns_scratch_nelem(&c->plan[0], MOST) * sizeof(float));
}

static void case_deinit(Case *c) {
    for (int i = 0; i < MOST; i++) {
        device_free(compute, c->x[i]);
        device_free(compute, c->momentum[i]);
        heap_free(c->alone[i]);
    }
    device_free(compute, c->scratch);
    heap_free(c->host);
}

static void set_gradient(Case *c, int i, int step) {
    for (int64_t e = 0; e < c->nelem; e++)
        c->host[e] = (float)sin(0.37 * (double)e + (double)(e % 7) * (i + 1) + step);
    device_copy_from_host(compute, c->x[i], c->host, (size_t)c->nelem * sizeof(float));
    stream_sync(compute);
}

/* Each matrix by itself, without momentum. */
static void run_alone(Case *c, int step) {
    for (int i = 0; i < MOST; i++) {
        set_gradient(c, i, step);
        ns_run(&(NsBatch){.count = 1, .plan = &c->plans[i], .x = &c->x[i]}, compute, c->scratch);
        device_copy_to_host(compute, c->alone[i], c->x[i], (size_t)c->nelem * sizeof(float));
    }
}

static void run_together(Case *c, int step, Repeat *repeat) {
    const MuonStep muon = {.momentum = 0.0};
    for (int i = 0; i < MOST; i++)
        set_gradient(c, i, step);
    muon_direction(&muon, &(NsBatch){.count = MOST, .plan = c->plans, .x = c->x}, c->momentum, compute, c->scratch,
                   repeat);
    for (int i = 0; i < MOST; i++) {
        device_copy_to_host(compute, c->host, c->x[i], (size_t)c->nelem * sizeof(float));
        for (int64_t e = 0; e < c->nelem; e++)
            CHECK(memcmp(&c->host[e], &c->alone[i][e], sizeof(float)) == 0,
                  "%" PRId64 " x %" PRId64 ", step %d, matrix %d, element %" PRId64 ": %a in the batch, %a alone",
                  c->plan[0].out, c->plan[0].in, step, i, e, (double)c->host[e], (double)c->alone[i][e]);
    }
}

static void try_shape(const NsConfig *config, int64_t out, int64_t in) {
    Case c;
    Repeat *repeat = repeat_create(device);
    case_init(&c, config, out, in);
    for (int step = 0; step < STEPS; step++) {
        run_alone(&c, step);
        run_together(&c, step, repeat);
    }
    repeat_destroy(repeat);
    case_deinit(&c);
}

static const int64_t shapes[][2] = {{32, 32}, {24, 56}, {56, 24}, {33, 47}, {47, 33}};
enum { NSHAPES = sizeof shapes / sizeof *shapes };

static NsConfig config_of(int kind) {
    return (NsConfig){.algorithm = kind == 0 ? NS_DIRECT : NS_GRAM,
                      .steps = 5,
                      .restarts = {2},
                      .restart_count = kind == 2}; /* the number of factors that are applied: odd, even */
}

static void pin(void) {
    ProductList list = {0};
    for (int kind = 0; kind < 3; kind++)
        for (int i = 0; i < NSHAPES; i++) {
            const NsConfig config = config_of(kind);
            const NsPlan plan = ns_plan(&config, shapes[i][0], shapes[i][1], -1, 1);
            ns_products(&plan, 1, &list);
        }
    pin_products(device, &list);
}

int main(void) {
    const DeviceOptions options = {.name = "cuda", .threads = 1, .compute = DEVICE_BF16};
    const bool opened = device_create(&device, &options) == STATUS_OK;
    CHECK(opened, "%s", status_trail());
    compute = device_stream(device, STREAM_COMPUTE);
    pin();
    for (int kind = 0; kind < 3; kind++)
        for (int i = 0; i < NSHAPES; i++) {
            const NsConfig config = config_of(kind);
            try_shape(&config, shapes[i][0], shapes[i][1]);
        }
    device_destroy(device);
    return 0;
}
