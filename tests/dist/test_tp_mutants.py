"""Faults of tensor parallelism, one by one, on a job that all of them must change: what each collective and each offset is for."""
import pytest

from mutants import UPDATE, Mutant, at_full_speed, build
from runs import Run, bits, reproduce
from test_mutants import what_differs
from test_tp_bits import configs  # noqa: F401 (a fixture)

pytestmark = at_full_speed

TP, OWNER, LINEAR, HEAD, NORM, EMBEDDING, NS = ("src/parallel/tp.c", "src/parallel/owner.c", "src/model/linear.c", "src/model/head.c",
                                                "src/model/norm.c", "src/model/embedding.c", "src/optim/newton_schulz.c")
STEPS = ("train.steps=5", "comm.timeout_s=60")
SLICED = "optimizer.muon.tp_distributed_gram=always"


def on(*mesh, keys=(), model="grouped"):
    """A job of test_tp_bits on a mesh."""
    return Run(model, *mesh[:2], "", (*STEPS, *keys), tp=mesh[2])


CUT = on(1, 1, 2)
KEPT = on(1, 1, 2, keys=(SLICED,))

MUTANTS = [
    Mutant("partial-sums-not-added", LINEAR, "y, y, n, DTYPE_F32", "y, y, 0, DTYPE_F32", CUT, field="loss"),
    Mutant("gains-of-own-heads", NORM, "if (norm.cut_heads)", "if (false)", CUT, field="sumsq"),
    Mutant("maxima-of-own-vocabulary", HEAD, "mine, acts->parts, 2 * N,", "mine, acts->parts, 0,", CUT, field="loss"),
    Mutant("denominators-of-own-vocabulary", HEAD, "acts->sum, acts->sum, N,", "acts->sum, acts->sum, 0,", CUT, field="loss"),
    Mutant("rows-of-own-vocabulary", EMBEDDING, "(n + 1) / 2, DTYPE_U64", "0, DTYPE_U64", CUT, field="loss"),
    Mutant("gathered-at-the-wrong-rank", TP, "DTYPE_F32,\n                        part->owner_tp,\n",
           "DTYPE_F32,\n                        0,\n", CUT, may_abort=True),
    Mutant("slices-in-reverse", TP, "copy_slice(p, row, t, whole, gathered", "copy_slice(p, row, p->plan->mesh.tp - 1 - t, whole, gathered", CUT,
           field="params"),
    Mutant("updates-in-reverse", TP, "copy_slice(p, row, t, whole, scattered", "copy_slice(p, row, p->plan->mesh.tp - 1 - t, whole, scattered",
           CUT, field="params"),
    Mutant("update-not-applied", TP, "            apply_part(p, part, step);", "", CUT, field="params"),
    Mutant("momentum-of-another-matrix", OWNER, "p->store.momentum[batch->group] + param->momentum_offset", "p->store.momentum[batch->group]",
           on(1, 1, 2, keys=("parallel.owner.strategy=rank0",)), field="params"),
    Mutant("momentum-of-another-slice", OWNER, "p->store.momentum[g] + param->momentum_offset, grad,\n", "p->store.momentum[g], grad,\n", KEPT,
           field="params"),
    Mutant("gram-of-own-slice", NS, "r, r, square, DTYPE_F32", "r, r, 0, DTYPE_F32", KEPT, field="params"),
    Mutant("factor-not-shared", NS, "q, square, DTYPE_F32", "q, 0, DTYPE_F32", KEPT, may_abort=True),
    Mutant("largest-of-own-slice", NS, "mine, all, 1, DTYPE_F32", "mine, all, 0, DTYPE_F32", KEPT, field="params"),
    Mutant("norm-of-own-slice", NS, "mine, all, nsegments, DTYPE_F64", "mine, all, 0, DTYPE_F64", KEPT, field="params"),
    Mutant("segments-not-halved", NS, "    local.segments /= tp_size;", "    local.segments /= tp_size * tp_size;", KEPT),
    Mutant("norm-counts-gains-for-every-tp-rank", UPDATE, "p->plan->params->row[row].tp_dim >= 0 ? p->plan->mesh.tp : 1;", "p->plan->mesh.tp;", CUT,
           field="sumsq"),
    Mutant("norm-of-one-slice", UPDATE, "segment_sum(p, row, tp, seg)", "segment_sum(p, row, 0, seg)", CUT, field="sumsq"),
    Mutant("norm-segments-by-rank", UPDATE, "segments[tp * nseg + seg] =", "segments[seg * ranks + tp] =", CUT, field="sumsq"),
]


@pytest.fixture(scope="module")
def reference(configs, tmp_path_factory):  # noqa: F811
    known = {}

    def get(model):
        if model not in known:
            known[model] = bits(Run("one", keys=STEPS, config=configs[model]), tmp_path_factory.mktemp("one"))
        return known[model]

    return get


def placed(run, configs):  # noqa: F811
    return Run("mutant", run.replicate, run.shard, "", run.keys, config=configs[run.name], tp=run.tp)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_fault_is_seen(mutant, configs, reference, tmp_path):  # noqa: F811
    binary = build(mutant, tmp_path)
    difference = what_differs(placed(mutant.run, configs), tmp_path, binary, reference(mutant.run.name))
    assert difference, f"{mutant.name} is not seen: all bits are equal"
    assert mutant.may_abort or not difference.startswith("abort"), difference
    assert mutant.field in difference, difference


@pytest.mark.parametrize("run", [CUT, KEPT], ids=["cut", "kept"])
def test_without_a_fault_the_same_jobs_have_the_bits_of_one_rank(run, configs, reference, tmp_path):  # noqa: F811
    assert reproduce.first_difference(reference(run.name), bits(placed(run, configs), tmp_path)) is None
