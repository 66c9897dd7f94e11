/* What a leaf with bf16 keeps as 16 bits: what products are given, everywhere the same numbers as in f32. */
#include "tests/unit/bits.h"

#include "device/backend.h"
#include "tests/fixtures/resident.h"

/* ---- a device that looks at the operands of its products ---- */

static Backend looking;
static int products, ready, missing;

/* [rows, cols] of f32 with rows `stride` apart, beside its bits. */
static void look_at(const float *x, const uint16_t *bits, int64_t rows, int64_t cols, int64_t stride) {
    ready += bits != NULL;
    missing += bits == NULL;
    for (int64_t r = 0; r < rows && bits != NULL; r++)
        for (int64_t c = 0; c < cols; c++)
            if (bits_of_f32(x[r * stride + c]) != (uint32_t)bits[r * stride + c] << 16)
                fail_msg("product %d: element (%d, %d) is %a, its bits are %04x", products, (int)r, (int)c,
                         (double)x[r * stride + c], bits[r * stride + c]);
}

static void look_launch(Stream *stream, KernelId id, const void *args, size_t nbytes) {
    const Gemm *g = args;
    for (int p = 0; id == KERNEL_GEMM && p < g->nparts; p++, products++) {
        const GemmPart *part = &g->part[p];
        look_at(part->a, part->a_bf16, g->trans_a ? part->k : g->m, g->trans_a ? g->m : part->k, part->lda);
        look_at(part->b, part->b_bf16, g->trans_b ? g->n : part->k, g->trans_b ? part->k : g->n, part->ldb);
    }
    backend_cpu.launch(stream, id, args, nbytes);
}

static void step(Resident *r, const ResidentSpec *spec) {
    int32_t tokens[RESIDENT_TOKENS], targets[RESIDENT_TOKENS];
    looking = backend_cpu;
    looking.launch = look_launch;
    r->device->backend = &looking;
    products = ready = missing = 0;
    resident_formula_tokens(spec, tokens, targets);
    model_forward_backward(r->model, tokens, targets);
}

static ResidentSpec spec_of(int kind, bool bits) {
    ResidentSpec spec = resident_kinds[kind].spec;
    spec.bf16 = true;
    spec.bits = bits;
    return spec;
}

/* ---- claims ---- */

static void test_all_operands_are_there_as_the_same_bits(void **state) {
    (void)state;
    for (int kind = 0; kind < RESIDENT_KINDS; kind++)
        for (int recompute = 0; recompute < 2; recompute++) {
            Resident r;
            ResidentSpec spec = spec_of(kind, true);
            spec.recompute = recompute == 1;
            resident_create(&r, &spec);
            resident_formula_weights(&r);
            resident_round_weights(&r, true);
            step(&r, &spec);
            assert_true(products > 20 * (int)spec.L);
            assert_int_equal(ready, 2 * products);
            resident_destroy(&r);
        }
}

static void test_kept_bits_change_no_result(void **state) {
    (void)state;
    for (int kind = 0; kind < RESIDENT_KINDS; kind++) {
        Resident with, without;
        const ResidentSpec one = spec_of(kind, true), other = spec_of(kind, false);
        resident_create(&with, &one);
        resident_create(&without, &other);
        resident_formula_weights(&with);
        resident_formula_weights(&without);
        resident_round_weights(&with, true);
        resident_round_weights(&without, false);
        step(&with, &one);
        step(&without, &other);
        assert_int_equal(missing, 2 * products);
        for (int i = 0; i < with.table.count; i++)
            assert_bits_equal_f32(with.grad[i], without.grad[i], resident_numel(&with.table.row[i]),
                                  with.table.row[i].name);
        resident_destroy(&with);
        resident_destroy(&without);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_operands_are_there_as_the_same_bits),
        cmocka_unit_test(test_kept_bits_change_no_result),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
