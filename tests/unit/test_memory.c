/* The memory plan: what it says is what is allocated, each key moves the line it should, and too much is refused. */
#include "tests/unit/plan_fixture.h"

#include "train/memory.h"

enum { WEIGHTS, MOMENTUM, MOMENTS, GATHERED, GRADIENTS, LEAF_TREES, TP_BUFFERS, SCRATCH, ACTIVATIONS, CHECKPOINT };

static const MeshCoord origin = {0, 0, 0};

/* The lines of the rank at `at`, with a checkpoint's copy when one is saved. */
static void lines_at(const Planned *p, MeshCoord at, MemoryLine lines[MEMORY_LINES]) {
    SetTensors saved;
    set_tensors_create(&saved, &p->plan);
    memory_plan(&p->plan, &p->config, p->config.checkpoint.every > 0 ? &saved : NULL, at, lines);
    set_tensors_destroy(&saved);
}

/* The lines of one rank in bytes. */
static void plan_lines(Config c, MeshShape mesh, MeshCoord at, MemoryLine lines[MEMORY_LINES]) {
    Planned *p = planned_create(c, mesh);
    lines_at(p, at, lines);
    planned_destroy(p);
}

static void test_lines_stand_in_order_and_name_their_keys(void **state) {
    (void)state;
    static const char *const names[MEMORY_LINES] = {
        "weights",    "momentum",          "moments",     "gathered weights", "gradients", "partial sums over leaves",
        "tp buffers", "optimizer scratch", "activations", "checkpoint copy"};
    MemoryLine lines[MEMORY_LINES];
    size_t total = 0;
    plan_lines(fixture_config(), (MeshShape){2, 2, 1}, origin, lines);
    for (int i = 0; i < MEMORY_LINES; i++) {
        assert_string_equal(lines[i].what, names[i]);
        assert_true(strlen(lines[i].keys) > 0);
        total += lines[i].nbytes;
    }
    assert_int_equal(memory_total(lines), total);
}

/* One rank on one device, without MPI. */
static void check_allocated(Config c) {
    Planned *p = planned_create(c, (MeshShape){1, 1, 1});
    const DeviceOptions options = {.name = "cpu", .threads = 1};
    Device *device;
    Parallel *parallel;
    Mesh mesh = {.shape = p->plan.mesh, .world = comm_self_create("world")};
    for (int axis = 0; axis < AXIS_COUNT; axis++)
        mesh.axis[axis] = comm_self_create(axis_name((Axis)axis));
    assert_int_equal(device_create(&device, &options), STATUS_OK);
    assert_int_equal(parallel_create(&parallel, &p->plan, &p->config, &mesh, device), STATUS_OK);
    const ParallelBytes b = parallel_measure(&p->plan, &p->config, origin);
    assert_int_equal(b.weights + b.momentum + b.moments + b.gathered + b.gradients + b.leaf_trees + b.tp_buffers +
                         b.scratch,
                     parallel_nbytes(parallel));
    parallel_destroy(parallel);
    device_destroy(device);
    comm_destroy(mesh.world);
    mesh_destroy(&mesh);
    planned_destroy(p);
}

static void test_what_is_planned_is_what_is_allocated(void **state) {
    (void)state;
    for (int kind = 0; kind < FIXTURE_KINDS; kind++)
        for (int mode = 0; mode < 4; mode++) {
            Config c = fixture_kind(kind);
            c.batch.global = 6;
            c.parallel.reshard_muon = c.parallel.reshard_adamw = mode & 1;
            c.parallel.accumulate = mode & 2 ? ACCUMULATE_LOCAL : ACCUMULATE_REDUCE;
            c.numerics.fast = mode == 3;
            check_allocated(c);
        }
}

/* A tp owner's room for gathered gradients and scattered updates; and its largest whole matrix. */
static size_t expected_tp_messages(const Planned *p, MeshCoord at, size_t *largest) {
    int64_t nelem = 0, most = 0;
    for (int i = 0; i < p->params.count; i++) {
        const PlanParam *pp = &p->plan.param[i];
        if (p->params.row[i].role != ROLE_MUON || pp->distributed || pp->owner_rank != mesh_rank(p->plan.mesh, at))
            continue;
        const int64_t numel = param_numel(&p->params.row[i]);
        assert_int_equal(pp->local_nelem % PLAN_ALIGN, 0); /* nothing is padded in these models */
        nelem += 2 * numel;
        most = numel > most ? numel : most;
    }
    *largest = (size_t)most * sizeof(float);
    return (size_t)nelem * sizeof(float);
}

/* Of the matrices that a rank updates whole, those of one unit and one shape, at most 16 at a time: elements of scratch
 * and, with tp, of whole matrices. */
static void expected_batches(const Planned *p, MeshCoord at, int64_t *scratch, int64_t *whole) {
    *scratch = *whole = 0;
    for (int i = 0; i < p->params.count; i++) {
        const PlanParam *first = &p->plan.param[i];
        int64_t count = 0, nelem = 0;
        if (p->params.row[i].role != ROLE_MUON || first->owner_rank != mesh_rank(p->plan.mesh, at))
            continue;
        for (int k = 0; k < p->params.count; k++) {
            const Param *row = &p->params.row[k];
            if (row->role != ROLE_MUON || row->unit != p->params.row[i].unit || row->dim[0] != first->ns.out ||
                row->dim[1] != first->ns.in || p->plan.param[k].owner_rank != first->owner_rank)
                continue;
            count++;
            nelem += p->plan.param[k].local_nelem * p->plan.mesh.tp;
        }
        const int64_t needs = ns_scratch_nelem(&first->ns, p->config.numerics.fast ? (int)count : 1);
        *scratch = needs > *scratch ? needs : *scratch;
        *whole = nelem > *whole ? nelem : *whole;
    }
}

static void test_fast_mode_has_room_for_matrices_of_a_shape_together(void **state) {
    (void)state;
    static const MeshShape meshes[] = {{1, 1, 1}, {1, 2, 1}, {1, 1, 2}};
    for (int m = 0; m < 3; m++)
        for (int r = 0; r < mesh_size(meshes[m]); r++) {
            MemoryLine exact[MEMORY_LINES], fast[MEMORY_LINES];
            Config c = fixture_config();
            c.model.n_kv_heads = 4; /* four square matrices: some for every rank */
            const MeshCoord at = mesh_coord(meshes[m], r);
            plan_lines(c, meshes[m], at, exact);
            Planned *p = planned_create(c, meshes[m]);
            int64_t alone, together, whole;
            size_t largest;
            expected_batches(p, at, &alone, &whole);
            p->config.numerics.fast = true;
            expected_batches(p, at, &together, &whole);
            lines_at(p, at, fast);
            assert_int_equal(fast[SCRATCH].nbytes - exact[SCRATCH].nbytes, (together - alone) * 4);
            assert_true(together > alone);
            if (meshes[m].tp > 1)
                assert_int_equal(fast[TP_BUFFERS].nbytes - expected_tp_messages(p, at, &largest), whole * 4);
            else
                assert_int_equal(fast[TP_BUFFERS].nbytes, 0);
            planned_destroy(p);
        }
}

/* Of all ranks together: one copy of the momentum whatever the mesh, a copy of weights and moments per replica. */
static void sum_of_ranks(MeshShape mesh, size_t sums[MEMORY_LINES]) {
    Config c = fixture_kind(5); /* runs of many blocks: padding is small beside them */
    c.checkpoint.every = 1;
    Planned *p = planned_create(c, mesh);
    memset(sums, 0, MEMORY_LINES * sizeof *sums);
    for (int r = 0; r < mesh_size(mesh); r++) {
        MemoryLine lines[MEMORY_LINES];
        lines_at(p, mesh_coord(mesh, r), lines);
        for (int i = 0; i < MEMORY_LINES; i++)
            sums[i] += lines[i].nbytes;
    }
    planned_destroy(p);
}

static void test_ranks_together_hold_one_momentum_and_write_one_checkpoint(void **state) {
    (void)state;
    size_t one[MEMORY_LINES], eight[MEMORY_LINES];
    sum_of_ranks((MeshShape){1, 1, 1}, one);
    sum_of_ranks((MeshShape){2, 4, 1}, eight);
    assert_true(one[MOMENTUM] > 0 && one[CHECKPOINT] > 0);
    assert_int_equal(eight[MOMENTUM], one[MOMENTUM]);
    assert_int_equal(eight[CHECKPOINT], one[CHECKPOINT]);
    assert_in_range(eight[MOMENTS], 2 * one[MOMENTS], 2 * one[MOMENTS] + 2 * one[MOMENTS] / 10);
    assert_in_range(eight[WEIGHTS], 2 * one[WEIGHTS], 2 * one[WEIGHTS] + 2 * one[WEIGHTS] / 10);
}

static void test_keeping_weights_costs_gathered_memory(void **state) {
    (void)state;
    MemoryLine z3[MEMORY_LINES], z2[MEMORY_LINES];
    Config c = fixture_config();
    c.model.n_layers = 8;
    plan_lines(c, (MeshShape){1, 2, 1}, origin, z3);
    c.parallel.reshard_muon = false;
    plan_lines(c, (MeshShape){1, 2, 1}, origin, z2);
    assert_true(z2[GATHERED].nbytes > z3[GATHERED].nbytes);
    assert_int_equal(z2[WEIGHTS].nbytes, z3[WEIGHTS].nbytes);
}

static void test_partial_sums_grow_with_the_digits_of_the_rounds(void **state) {
    (void)state;
    static const int64_t rounds[] = {1, 2, 3, 4, 7, 8, 16};
    size_t unit = 0;
    for (size_t i = 0; i < sizeof rounds / sizeof rounds[0]; i++) {
        MemoryLine lines[MEMORY_LINES];
        Config c = fixture_config();
        c.batch.global = 2 * rounds[i];
        c.parallel.accumulate = ACCUMULATE_LOCAL;
        plan_lines(c, (MeshShape){1, 2, 1}, origin, lines);
        unit = i == 0 ? lines[GRADIENTS].nbytes : unit;
        assert_int_equal(lines[GRADIENTS].nbytes, unit);
        assert_int_equal(lines[LEAF_TREES].nbytes, (size_t)(plan_stack_depth(rounds[i]) - 1) * unit);
    }
}

static void test_activations_grow_with_the_leaf(void **state) {
    (void)state;
    MemoryLine one[MEMORY_LINES], two[MEMORY_LINES];
    Config c = fixture_config();
    plan_lines(c, (MeshShape){1, 1, 1}, origin, one);
    c.batch.micro = 2;
    plan_lines(c, (MeshShape){1, 1, 1}, origin, two);
    assert_true(two[ACTIVATIONS].nbytes > one[ACTIVATIONS].nbytes * 3 / 2);
}

static void test_tensor_parallelism_divides_activations_and_not_what_every_rank_sees(void **state) {
    (void)state;
    MemoryLine one[MEMORY_LINES], two[MEMORY_LINES], four[MEMORY_LINES];
    Config c = fixture_kind(5); /* wide layers, one kv head left per rank of two */
    c.model.n_kv_heads = 4;
    plan_lines(c, (MeshShape){1, 1, 1}, origin, one);
    plan_lines(c, (MeshShape){1, 1, 2}, origin, two);
    plan_lines(c, (MeshShape){1, 1, 4}, origin, four);
    assert_true(four[ACTIVATIONS].nbytes < two[ACTIVATIONS].nbytes &&
                two[ACTIVATIONS].nbytes < one[ACTIVATIONS].nbytes);
    assert_true(2 * two[ACTIVATIONS].nbytes > one[ACTIVATIONS].nbytes); /* the residual stream is whole everywhere */
    assert_true(two[WEIGHTS].nbytes < one[WEIGHTS].nbytes);
}

static void test_tp_buffers_are_counted_whether_kept_or_not(void **state) {
    (void)state;
    static const DistributedGram modes[] = {GRAM_OFF, GRAM_ALWAYS};
    size_t total[2] = {0, 0};
    for (int mode = 0; mode < 2; mode++)
        for (BufferReuse reuse = REUSE_OFF; reuse <= REUSE_ALL; reuse++) {
            Config c = fixture_config();
            c.parallel.tp_buffer_reuse = reuse;
            c.optimizer.muon.tp_distributed_gram = modes[mode];
            Planned *p = planned_create(c, (MeshShape){2, 2, 2});
            for (int r = 0; r < 8; r++) {
                MemoryLine lines[MEMORY_LINES];
                lines_at(p, mesh_coord(p->plan.mesh, r), lines);
                size_t largest;
                const size_t messages = expected_tp_messages(p, mesh_coord(p->plan.mesh, r), &largest);
                assert_int_equal(lines[TP_BUFFERS].nbytes, messages + largest);
                total[mode] += lines[TP_BUFFERS].nbytes;
            }
            planned_destroy(p);
        }
    assert_true(total[1] > 0 && total[1] < total[0]); /* matrices that stay in slices need none */
}

static void test_no_checkpoint_is_no_copy(void **state) {
    (void)state;
    MemoryLine lines[MEMORY_LINES];
    plan_lines(fixture_config(), (MeshShape){1, 1, 1}, origin, lines);
    assert_int_equal(lines[CHECKPOINT].nbytes, 0);
}

static void test_a_node_without_room_is_refused_with_the_largest_lines_and_their_keys(void **state) {
    (void)state;
    MemoryLine lines[MEMORY_LINES];
    const size_t available = memory_available();
    assert_true(available > 0);
    plan_lines(fixture_config(), (MeshShape){1, 1, 1}, origin, lines);
    lines[ACTIVATIONS].nbytes = available;
    assert_int_equal(memory_check("a.yaml", available / 4, 3, lines), STATUS_OK);
    assert_int_equal(memory_check("a.yaml", 2 * available, 3, lines), STATUS_NO_MEMORY);
    const char *trail = status_trail();
    assert_non_null(strstr(trail, "a.yaml: 3 ranks"));
    assert_non_null(strstr(trail, "95 %"));
    const char *first = strstr(trail, "\n    ");
    assert_non_null(first);
    assert_non_null(strstr(first, "activations"));
    assert_ptr_equal(strstr(first, "activations"), first + strlen("\n    "));
    assert_non_null(strstr(first, "batch.micro"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines_stand_in_order_and_name_their_keys),
        cmocka_unit_test(test_what_is_planned_is_what_is_allocated),
        cmocka_unit_test(test_fast_mode_has_room_for_matrices_of_a_shape_together),
        cmocka_unit_test(test_ranks_together_hold_one_momentum_and_write_one_checkpoint),
        cmocka_unit_test(test_keeping_weights_costs_gathered_memory),
        cmocka_unit_test(test_partial_sums_grow_with_the_digits_of_the_rounds),
        cmocka_unit_test(test_activations_grow_with_the_leaf),
        cmocka_unit_test(test_tensor_parallelism_divides_activations_and_not_what_every_rank_sees),
        cmocka_unit_test(test_tp_buffers_are_counted_whether_kept_or_not),
        cmocka_unit_test(test_no_checkpoint_is_no_copy),
        cmocka_unit_test(test_a_node_without_room_is_refused_with_the_largest_lines_and_their_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
