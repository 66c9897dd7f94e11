/* What the model promises beyond its values: the order in which it asks for units, and equal bits of all ways through
 * it. */
#include "tests/unit/bits.h"

#include "tests/fixtures/resident.h"

typedef struct Fixture {
    Resident r;
    ResidentSpec spec;
    int32_t tokens[RESIDENT_TOKENS], targets[RESIDENT_TOKENS];
} Fixture;

static void fixture_init(Fixture *f, ResidentSpec spec) {
    f->spec = spec;
    resident_create(&f->r, &f->spec);
    resident_formula_weights(&f->r);
    resident_formula_tokens(&f->spec, f->tokens, f->targets);
}

static void fixture_step(Fixture *f) {
    f->r.calls[0] = '\0';
    model_forward_backward(f->r.model, f->tokens, f->targets);
}

static void assert_same_step(Fixture *a, Fixture *b) {
    const float loss_a = model_loss(a->r.model), loss_b = model_loss(b->r.model);
    assert_bits_equal_f32(&loss_a, &loss_b, 1, "loss");
    for (int i = 0; i < a->r.table.count; i++)
        assert_bits_equal_f32(a->r.grad[i], b->r.grad[i], resident_numel(&a->r.table.row[i]), a->r.table.row[i].name);
}

static void test_model_asks_for_units_forward_then_in_reverse(void **state) {
    (void)state;
    Fixture f;
    fixture_init(&f, resident_kinds[0].spec);
    fixture_step(&f);
    assert_string_equal(f.r.calls, "a0 r0 a1 r1 a2 r2 a3 r3 A3 D3 R3 A2 D2 R2 A1 D1 R1 A0 D0 R0");
    resident_destroy(&f.r);
}

static void test_model_keeps_a_tied_embedding_from_forward_to_the_end_of_backward(void **state) {
    (void)state;
    Fixture f;
    fixture_init(&f, resident_kinds[1].spec);
    fixture_step(&f);
    assert_string_equal(f.r.calls, "a0 a1 r1 a2 r2 a3 r3 A0 A3 D3 R3 A2 D2 R2 A1 D1 R1 D0 R0");
    float window[2];
    f.r.calls[0] = '\0';
    model_eval(f.r.model, f.tokens, f.targets, window);
    assert_string_equal(f.r.calls, "a0 a1 r1 a2 r2 a3 r3 r0");
    resident_destroy(&f.r);
}

static void test_model_repeats_its_bits_on_used_buffers(void **state) {
    (void)state;
    for (int kind = 0; kind < RESIDENT_KINDS; kind++) {
        Fixture once, again;
        float window[2];
        fixture_init(&once, resident_kinds[kind].spec);
        fixture_init(&again, resident_kinds[kind].spec);
        fixture_step(&once);
        fixture_step(&again);
        model_eval(again.r.model, again.targets, again.tokens, window);
        fixture_step(&again);
        assert_same_step(&once, &again);
        resident_destroy(&once.r);
        resident_destroy(&again.r);
    }
}

static void test_model_bits_do_not_depend_on_recompute_or_threads(void **state) {
    (void)state;
    for (int kind = 0; kind < RESIDENT_KINDS; kind++) {
        Fixture plain, other;
        ResidentSpec spec = resident_kinds[kind].spec;
        fixture_init(&plain, spec);
        spec.recompute = true;
        spec.threads = 3;
        fixture_init(&other, spec);
        assert_true(other.r.arena.used < plain.r.arena.used);
        fixture_step(&plain);
        fixture_step(&other);
        assert_same_step(&plain, &other);
        resident_destroy(&plain.r);
        resident_destroy(&other.r);
    }
}

/* 32 tokens are one lane each, so the leaf's lane sum adds token 16 + l of sequence 1 to token l of sequence 0 first:
 * the two sums differ by rounding only. */
static void test_model_eval_sums_the_losses_that_training_averages(void **state) {
    (void)state;
    for (int kind = 0; kind < RESIDENT_KINDS; kind++) {
        Fixture f;
        float window[2];
        fixture_init(&f, resident_kinds[kind].spec);
        fixture_step(&f);
        model_eval(f.r.model, f.tokens, f.targets, window);
        const float mean = (float)(((double)window[0] + (double)window[1]) / RESIDENT_TOKENS);
        const float loss = model_loss(f.r.model);
        assert_near_norm(&mean, &loss, 1, 3e-7, "mean of the windows");
        resident_destroy(&f.r);
    }
}

static void test_model_eval_of_one_window_is_that_of_a_batch(void **state) {
    (void)state;
    Fixture pair, single;
    float both[2], one[1];
    ResidentSpec spec = resident_kinds[2].spec;
    fixture_init(&pair, spec);
    spec.B = 1;
    fixture_init(&single, spec);
    model_eval(pair.r.model, pair.tokens, pair.targets, both);
    model_eval(single.r.model, pair.tokens + spec.T, pair.targets + spec.T, one);
    assert_bits_equal_f32(one, both + 1, 1, "window sum");
    resident_destroy(&pair.r);
    resident_destroy(&single.r);
}

/* With one token of context the loss follows from the logits alone. */
static void test_model_logits_are_those_that_the_loss_sees(void **state) {
    (void)state;
    for (int kind = 0; kind < RESIDENT_KINDS; kind++) {
        Fixture f;
        float logits[64], window[1];
        ResidentSpec spec = resident_kinds[kind].spec;
        spec.B = 1;
        spec.T = 1;
        fixture_init(&f, spec);
        model_logits(f.r.model, f.tokens, 1, logits);
        model_eval(f.r.model, f.tokens, f.targets, window);
        double sum = 0.0;
        for (int64_t v = 0; v < spec.vocab; v++)
            sum += exp((double)logits[v] - (double)logits[f.targets[0]]);
        const float loss = (float)log(sum);
        assert_near_norm(window, &loss, 1, 1e-6, "loss from logits");
        resident_destroy(&f.r);
    }
}

static void test_model_logits_see_no_later_token(void **state) {
    (void)state;
    Fixture f;
    float before[64], after[64];
    fixture_init(&f, resident_kinds[1].spec);
    model_logits(f.r.model, f.tokens, 7, before);
    f.tokens[7] = (f.tokens[7] + 1) % 64;
    model_logits(f.r.model, f.tokens, 7, after);
    assert_bits_equal_f32(after, before, 64, "logits of the prefix");
    f.tokens[0] = (f.tokens[0] + 1) % 64;
    model_logits(f.r.model, f.tokens, 7, after);
    assert_memory_not_equal(after, before, sizeof after);
    resident_destroy(&f.r);
}

static void test_model_gives_padded_rows_no_gradient(void **state) {
    (void)state;
    static const Slot slots[] = {SLOT_EMBED, SLOT_HEAD};
    static const float zero[3 * 32];
    Fixture f;
    fixture_init(&f, resident_kinds[2].spec);
    fixture_step(&f);
    assert_int_equal(f.r.shape.V, 64);
    for (int i = 0; i < 2; i++) {
        const int row = params_find(&f.r.table, i == 0 ? 0 : f.r.table.nunits - 1, slots[i]);
        assert_bits_equal_f32(f.r.grad[row] + 61 * 32, zero, 3 * 32, f.r.table.row[row].name);
    }
    resident_destroy(&f.r);
}

static void test_model_times_are_taken_once(void **state) {
    (void)state;
    Fixture f;
    double forward_ms, backward_ms;
    fixture_init(&f, resident_kinds[0].spec);
    fixture_step(&f);
    model_take_times(f.r.model, &forward_ms, &backward_ms);
    assert_true(forward_ms > 0.0 && backward_ms > 0.0);
    model_take_times(f.r.model, &forward_ms, &backward_ms);
    assert_true(forward_ms == 0.0 && backward_ms == 0.0);
    resident_destroy(&f.r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model_asks_for_units_forward_then_in_reverse),
        cmocka_unit_test(test_model_keeps_a_tied_embedding_from_forward_to_the_end_of_backward),
        cmocka_unit_test(test_model_repeats_its_bits_on_used_buffers),
        cmocka_unit_test(test_model_bits_do_not_depend_on_recompute_or_threads),
        cmocka_unit_test(test_model_eval_sums_the_losses_that_training_averages),
        cmocka_unit_test(test_model_eval_of_one_window_is_that_of_a_batch),
        cmocka_unit_test(test_model_logits_are_those_that_the_loss_sees),
        cmocka_unit_test(test_model_logits_see_no_later_token),
        cmocka_unit_test(test_model_gives_padded_rows_no_gradient),
        cmocka_unit_test(test_model_times_are_taken_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
