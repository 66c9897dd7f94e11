/* Five steps of training on one rank against an independent framework: tests/golden/train_weights.bin of
 * make_model_golden.py (PyTorch, binary64) after the run that golden_train.yaml describes. Here the pieces are called
 * one by one; nothing of the parallel rooms is used. */
#include "tests/unit/bits.h"

#include <stdio.h>

#include "optim/adamw.h"
#include "optim/clip.h"
#include "optim/muon.h"
#include "optim/newton_schulz.h"
#include "tests/fixtures/resident.h"

/* Measured: 4e-7 direct, 4e-6 gram, which loses more where a matrix is ill-conditioned. */
#define DIRECT_TOLERANCE 5e-5
#define GRAM_TOLERANCE 3e-4

enum { STEPS = 5, BATCH = 4, MICRO = 2, SEQ = 16, LEAVES = BATCH / MICRO, ROWS_MAX = 32 };

static const ResidentSpec spec = {.C = 32, .L = 2, .H = 4, .K = 2, .D = 8, .F = 48, .vocab = 256, .B = MICRO, .T = SEQ};

typedef struct Trainer {
    Resident r;
    Stream *stream;
    NsConfig ns;
    float *mean[ROWS_MAX];            /* averaged gradient                      */
    float *m[ROWS_MAX], *v[ROWS_MAX]; /* momentum, or first moment; second one */
    unsigned char text[1024];
} Trainer;

static void trainer_init(Trainer *t, NsAlgorithm algorithm) {
    FILE *file = fopen("tests/golden/golden_train.txt", "rb");
    if (file == NULL)
        fail_msg("tests/golden/golden_train.txt cannot be opened; tests run from the top of the tree");
    assert_true(fread(t->text, 1, sizeof t->text, file) > STEPS * BATCH * SEQ);
    (void)fclose(file);
    resident_create(&t->r, &spec);
    resident_formula_weights(&t->r);
    t->stream = device_stream(t->r.device, STREAM_COMPUTE);
    t->ns = (NsConfig){
        .algorithm = algorithm, .coefficients = NS_POLAR_EXPRESS, .steps = 5, .restarts = {2}, .restart_count = 1};
    assert_in_range(t->r.table.count, 1, ROWS_MAX);
    for (int i = 0; i < t->r.table.count; i++) {
        const size_t n = (size_t)resident_numel(&t->r.table.row[i]);
        t->mean[i] = calloc(n, sizeof(float));
        t->m[i] = calloc(n, sizeof(float));
        t->v[i] = calloc(n, sizeof(float));
    }
}

static void trainer_deinit(Trainer *t) {
    for (int i = 0; i < t->r.table.count; i++) {
        free(t->mean[i]);
        free(t->m[i]);
        free(t->v[i]);
    }
    resident_destroy(&t->r);
}

/* Sample s is the window of SEQ + 1 bytes at s*SEQ. */
static void run_leaf(Trainer *t, int first_sample) {
    int32_t tokens[MICRO * SEQ], targets[MICRO * SEQ];
    for (int i = 0; i < MICRO * SEQ; i++) {
        tokens[i] = t->text[first_sample * SEQ + i];
        targets[i] = t->text[first_sample * SEQ + i + 1];
    }
    model_forward_backward(t->r.model, tokens, targets);
}

/* The mean over the leaves; gives its sum of squares. */
static double average_gradients(Trainer *t, int step) {
    double sum = 0.0;
    for (int leaf = 0; leaf < LEAVES; leaf++) {
        run_leaf(t, step * BATCH + leaf * MICRO);
        for (int i = 0; i < t->r.table.count; i++)
            for (int64_t k = 0; k < resident_numel(&t->r.table.row[i]); k++)
                t->mean[i][k] = (leaf == 0 ? 0.0f : t->mean[i][k]) + t->r.grad[i][k] / (float)LEAVES;
    }
    for (int i = 0; i < t->r.table.count; i++)
        for (int64_t k = 0; k < resident_numel(&t->r.table.row[i]); k++)
            sum += (double)t->mean[i][k] * (double)t->mean[i][k];
    return sum;
}

static void update_param(Trainer *t, int i, int step, ClipResult clip) {
    const Param *p = &t->r.table.row[i];
    if (p->role == ROLE_MUON) {
        const NsPlan plan = ns_plan(&t->ns, p->dim[0], p->dim[1], p->tp_dim, t->r.shape.segments);
        const MuonStep muon = {.lr = 0.02,
                               .weight_decay = 0.1,
                               .momentum = 0.95,
                               .nesterov = true,
                               .scale = SCALE_MATCH_RMS,
                               .clipped = clip.clipped,
                               .grad_factor = clip.factor};
        float *scratch = aligned_alloc(64, ((size_t)ns_scratch_nelem(&plan, 1) * sizeof(float) + 63) / 64 * 64);
        const NsPlan *only = &plan;
        muon_direction(&muon, &(NsBatch){.count = 1, .plan = &only, .x = &t->mean[i]}, &t->m[i], t->stream, scratch,
                       NULL);
        muon_apply(&muon, &plan, t->stream, t->r.weight[i], t->mean[i], plan.out * plan.in);
        free(scratch);
        return;
    }
    const AdamwStep adamw = {.lr = 3e-3,
                             .beta1 = 0.9,
                             .beta2 = 0.999,
                             .eps = 1e-8,
                             .weight_decay = p->decay ? 0.01 : 0.0,
                             .t = step + 1,
                             .clipped = clip.clipped,
                             .grad_factor = clip.factor};
    adamw_update(&adamw, t->stream, t->r.weight[i], t->m[i], t->v[i], t->mean[i], resident_numel(p));
}

static void train(NsAlgorithm algorithm, double tolerance) {
    static float golden[40000];
    static Trainer t;
    FILE *file = fopen("tests/golden/train_weights.bin", "rb");
    assert_non_null(file);
    const size_t n = fread(golden, sizeof *golden, 40000, file);
    (void)fclose(file);
    trainer_init(&t, algorithm);
    for (int step = 0; step < STEPS; step++) {
        const ClipResult clip = clip_factor(average_gradients(&t, step), 0.5);
        assert_true(clip.clipped);
        for (int i = 0; i < t.r.table.count; i++)
            update_param(&t, i, step, clip);
    }
    size_t at = 0;
    for (int i = 0; i < t.r.table.count; i++) {
        const Param *p = &t.r.table.row[i];
        assert_near_norm(t.r.weight[i], golden + at, param_numel(p), tolerance, p->name);
        at += (size_t)param_numel(p);
    }
    assert_int_equal(at, n);
    trainer_deinit(&t);
}

static void test_training_follows_pytorch_with_direct_newton_schulz(void **state) {
    (void)state;
    train(NS_DIRECT, DIRECT_TOLERANCE);
}

static void test_training_follows_pytorch_with_gram_newton_schulz(void **state) {
    (void)state;
    train(NS_GRAM, GRAM_TOLERANCE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_training_follows_pytorch_with_direct_newton_schulz),
        cmocka_unit_test(test_training_follows_pytorch_with_gram_newton_schulz),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
