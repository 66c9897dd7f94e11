/* Every parameter's gradient against central differences of the loss, along random directions. */
#include "tests/unit/bits.h"

#include "tests/fixtures/resident.h"

/* A step moves the loss by about 1e-3; the loss is good to about 3e-7. */
#define STEP 2e-3f
#define TOLERANCE 4e-3
#define DIRECTIONS 2

/* The mean token loss; sums in binary64, so that the difference of two is not rounded again. */
static double mean_loss(Resident *r, const ResidentSpec *spec, const int32_t *tokens, const int32_t *targets) {
    float window[8];
    double sum = 0.0;
    model_eval(r->model, tokens, targets, window);
    for (int64_t b = 0; b < spec->B; b++)
        sum += (double)window[b];
    return sum / (double)(spec->B * spec->T);
}

/* +1 or -1 per element, another pattern for each direction. */
static float direction_of(int param, int which, int64_t k) {
    return (resident_formula((uint32_t)(2000 + param * DIRECTIONS + which), (uint32_t)k) & 1u) != 0 ? 1.0f : -1.0f;
}

static void move_along(Resident *r, int param, int which, const float *origin, float step) {
    for (int64_t k = 0; k < param_numel(&r->table.row[param]); k++)
        r->weight[param][k] = origin[k] + step * direction_of(param, which, k);
}

static void check_param(Resident *r, const ResidentSpec *spec, int param, const int32_t *tokens,
                        const int32_t *targets) {
    const int64_t n = param_numel(&r->table.row[param]);
    const size_t nbytes = (size_t)n * sizeof(float);
    float *origin = malloc(nbytes);
    memcpy(origin, r->weight[param], nbytes);
    for (int which = 0; which < DIRECTIONS; which++) {
        double slope = 0.0, norm = 0.0;
        for (int64_t k = 0; k < n; k++) {
            slope += (double)r->grad[param][k] * (double)direction_of(param, which, k);
            norm += (double)r->grad[param][k] * (double)r->grad[param][k];
        }
        move_along(r, param, which, origin, STEP);
        const double above = mean_loss(r, spec, tokens, targets);
        move_along(r, param, which, origin, -STEP);
        const double below = mean_loss(r, spec, tokens, targets);
        memcpy(r->weight[param], origin, nbytes);
        const double measured = (above - below) / (2.0 * (double)STEP);
        const double noise = 1e-6 / (double)STEP;
        if (!(fabs(measured - slope) <= TOLERANCE * sqrt(norm) + noise))
            fail_msg("%s, direction %d: the gradient says %.9g, the loss %.9g (norm of the gradient %.9g)",
                     r->table.row[param].name, which, slope, measured, sqrt(norm));
    }
    free(origin);
}

static void check_kind(const ResidentSpec *spec) {
    Resident r;
    int32_t tokens[RESIDENT_TOKENS], targets[RESIDENT_TOKENS];
    resident_create(&r, spec);
    resident_formula_weights(&r);
    resident_formula_tokens(spec, tokens, targets);
    model_forward_backward(r.model, tokens, targets);
    for (int i = 0; i < r.table.count; i++)
        check_param(&r, spec, i, tokens, targets);
    resident_destroy(&r);
}

static void test_gradients_are_slopes_multi_head(void **state) {
    (void)state;
    check_kind(&resident_kinds[0].spec);
}

static void test_gradients_are_slopes_grouped_tied_qk_norm(void **state) {
    (void)state;
    check_kind(&resident_kinds[1].spec);
}

static void test_gradients_are_slopes_biases_and_padded_vocabulary(void **state) {
    (void)state;
    check_kind(&resident_kinds[2].spec);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients_are_slopes_multi_head),
        cmocka_unit_test(test_gradients_are_slopes_grouped_tied_qk_norm),
        cmocka_unit_test(test_gradients_are_slopes_biases_and_padded_vocabulary),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
