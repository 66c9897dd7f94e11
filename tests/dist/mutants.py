"""Faults that the comparison of bits must see. A mutant is one source file with one piece of text replaced (tests/mutation.py)."""
import dataclasses
import os

import pytest

from mutation import build_changed, same_build
from runs import Run

at_full_speed = pytest.mark.skipif("SAN" in os.environ, reason="programs with a planted fault are judged by their bits, at full speed")
SEEDS = range(1, 17)  # of the shaken delays, until one shows the fault


@dataclasses.dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    old: str
    new: str
    run: Run
    job: str = "tiny"  # whose one-rank bits it is compared with
    races: bool = False  # the fault shows under some delays only
    field: str = ""  # the first field that must differ, "" = any
    may_abort: bool = False  # an error that ends the job will do
    slow_publish: bool = False  # with a publish that is always late: it needs no luck


TINY = ("train.steps=3", "comm.timeout_s=60")


def on(replicate, shard, *keys, tp=1):
    return Run("mutant", replicate, shard, "", (*TINY, *keys), tp=tp)


HSDP = on(2, 2)
CUT = on(1, 1, tp=2)
DDP = "parallel.data=ddp"
Z2 = "parallel.reshard_after_forward=false"
SYNC = "optimizer.muon.replicate_async=false"
LOCAL = "parallel.accumulate=local"

COLLECTIVE = "const bool dropped = comm->size > 1 && take_drop(run.op);"


def drop(name, op, axis, run=HSDP, **options):
    """All ranks leave out every collective of one kind on one axis; each keeps what it brought."""
    wrong = f"const bool dropped = comm->size > 1 && (take_drop(run.op) || (run.op == {op} && comm->name[0] == '{axis[0]}'));"
    return Mutant(name, "src/comm/comm.c", COLLECTIVE, wrong, run, **options)


DROPPED = [
    drop("no-shard-reduction", "COMM_REDUCE", "shard"),
    drop("no-replicate-reduction", "COMM_REDUCE", "replicate"),
    drop("no-reduce-scatter", "COMM_REDUCE_SCATTER", "shard"),
    drop("no-all-reduce", "COMM_ALL_REDUCE", "replicate"),
    drop("no-publish", "COMM_BROADCAST", "replicate"),
    drop("no-gather-broadcast", "COMM_BROADCAST", "shard"),
    drop("no-all-gather", "COMM_ALL_GATHER", "shard"),
    drop("no-all-gather-z2", "COMM_ALL_GATHER", "shard", on(2, 2, Z2)),
    drop("no-publish-ddp", "COMM_BROADCAST", "shard", on(2, 2, DDP)),
    drop("no-tp-gather", "COMM_GATHER", "tp", CUT),
    drop("no-tp-scatter", "COMM_SCATTER", "tp", CUT),
    drop("no-tp-sum", "COMM_ALL_REDUCE", "tp", CUT),
    drop("no-norm-gather", "COMM_ALL_GATHER", "world"),
]

PARALLEL, UPDATE, PREFETCH, OWNER = (f"src/parallel/{name}.c" for name in ("parallel", "update", "prefetch", "owner"))

# On the CPU the compute stream is the calling thread: what it recorded (grads_ready, released, updated) is over when it is
# waited for. For these, the fault is to do things too early.
ORDER = [
    Mutant("shard-done-not-awaited", PARALLEL, "event_wait(p->publish, state->shard_done);", ";", HSDP, races=True),
    Mutant("final-not-awaited", UPDATE, "event_wait(p->compute, p->unit[u].final);", ";", HSDP, races=True),
    Mutant("consumed-not-awaited", PARALLEL, "event_wait(p->compute, slot->consumed);", ";", HSDP, races=True),
    Mutant("ready-not-awaited", PREFETCH, "event_wait(p->compute, slot[kind]->ready);", ";", HSDP, races=True),
    Mutant("published-not-awaited", PREFETCH, "event_wait(p->gather, p->unit[unit].published);", ";", HSDP, job="one-record", slow_publish=True),
    Mutant("published-not-awaited-sync", UPDATE, "event_sync(p->unit[u].published);", ";", on(2, 2, SYNC), job="one-record",
           slow_publish=True),
    Mutant("gathered-not-awaited", UPDATE, "event_wait(p->compute, p->unit[u].gathered);\n            const int64_t begin",
           ";\n            const int64_t begin", on(1, 2, tp=2), races=True, may_abort=True),
    Mutant("leaf-counted-early", OWNER, "leaf_stack_push(&p->muon_held[g], p->reduce);",
           "leaf_stack_push(&p->muon_held[g], p->compute);", HSDP, races=True),
    Mutant("released-early", PREFETCH, "look_ahead(p, unit, backward);\n}",
           "prefetch_release(p, unit);\n    look_ahead(p, unit, backward);\n}", HSDP, races=True),
    Mutant("grads-ready-early", "src/model/model.c", "    block_backward(leaf, &params, acts, &m->acts.scratch);\n",
           "    unit_finish(m, index + 1);\n    clock_sleep_us(20000);\n    block_backward(leaf, &params, acts, &m->acts.scratch);\n"
           "    return;\n", HSDP),
    Mutant("gradients-not-packed", PARALLEL, "fsdp_pack_grads(p, unit, state->grad_base);", ";", on(2, 2), job="odd"),
    Mutant("gathered-weights-kept", UPDATE, "prefetch_invalidate(p);", "", on(2, 2, Z2)),
]

LEAF = "return (d / G) * (plan->leaves / plan->mesh.replicate) + j * G + d % G;"
NUMBERS = [
    Mutant("mean-per-axis", OWNER, ".factor = leaf_factor(p)});",
           ".factor = 0.5F}),\n            ops_scale(p->publish, (Scale){.x = p->muon_final[g], .n = group->nelem,"
           " .factor = 2.0F * leaf_factor(p)});", HSDP, job="subnormal", field="params"),
    Mutant("mean-per-axis-adamw", "src/parallel/fsdp.c", ".n = mine.count, .factor = leaf_factor(p)});",
           ".n = mine.count, .factor = 0.5F}),\n        ops_scale(p->publish, (Scale){.x = p->adamw_final[unit], .n = mine.count,"
           " .factor = 2.0F * leaf_factor(p)});", on(1, 4), job="subnormal-adamw", field="params"),
    Mutant("norm-by-role", UPDATE, "norm.sumsq = clip_tree_f64(sums, params->count);",
           "norm.sumsq = role_sum[ROLE_MUON] + role_sum[ROLE_ADAMW];", HSDP, field="sumsq"),
    Mutant("norm-of-blocks-in-a-chain", UPDATE, "const double sum = clip_tree_f64(blocks, pp->seg_blocks);",
           "double sum = 0.0;\n    for (int64_t b = 0; b < pp->seg_blocks; b++)\n        sum += blocks[b];", on(1, 4), job="wide",
           field="sumsq"),
    Mutant("norm-counts-replicas", UPDATE, "blocks[b] = p->host_sums", "blocks[b] = plan->mesh.replicate * p->host_sums", HSDP,
           field="sumsq"),
    Mutant("norm-of-own-blocks", UPDATE, "at = (MeshCoord){.shard = (int)(block / u->run), .tp = tp};", "at = p->store.coord;", HSDP,
           field="sumsq"),
    Mutant("clip-by-role-norm", UPDATE, "both > 0 ? clip_factor(norm->sumsq, both) : clip_factor(muon_sumsq, muon_max)",
           "both > 0 ? clip_factor(muon_sumsq, both) : clip_factor(muon_sumsq, muon_max)", HSDP, field="params"),
    Mutant("norm-of-own-matrices", UPDATE,
           "MeshCoord at = {.replicate = pp->owner_replicate, .shard = pp->owner_shard, .tp = tp};",
           "MeshCoord at = p->store.coord;", HSDP, field="sumsq"),
    Mutant("leaves-like-local", "src/parallel/plan.c", LEAF, "return d * plan->per_rank + j;", HSDP),
    Mutant("leaves-like-reduce", "src/parallel/plan.c", "return d * plan->per_rank + j;", LEAF.replace("G", "plan->mesh.shard"),
           on(2, 2, LOCAL)),
    Mutant("leaves-replicate-first", "src/parallel/plan.c", LEAF,
           "return j * (plan->leaves / plan->per_rank) + (d % G) * plan->mesh.replicate + d / G;", HSDP),
    Mutant("leaves-in-a-chain", "src/parallel/leaf_stack.c", "for (int64_t carry = stack->count; carry & 1; carry >>= 1)",
           "if (stack->count > 0)", HSDP),
    Mutant("ranks-in-a-chain", "src/comm/tree.c", "    while (left * 2 < count)\n        left *= 2;\n    Block",
           "    left = count - 1;\n    Block", on(1, 4)),
    Mutant("climb-in-another-order", "src/comm/ordered.c", "while (left * 2 < hi - lo)\n            left *= 2;",
           "left = hi - lo - 1;", on(1, 4, "parallel.owner.strategy=rank0")),
    Mutant("reduced-to-the-wrong-owner", OWNER, "DTYPE_F32, group->owner_replicate,", "DTYPE_F32, 0,", HSDP),
    Mutant("published-by-the-wrong-owner", OWNER, "wire_publish_over(p, AXIS_REPLICATE, g, group->owner_replicate);",
           "wire_publish_over(p, AXIS_REPLICATE, g, 0);", HSDP),
    Mutant("momentum-of-another-matrix", OWNER, "p->store.momentum[batch->group] + param->momentum_offset",
           "p->store.momentum[batch->group]", HSDP, field="params"),
    Mutant("momentum-at-each-replica", OWNER, "if (!store_in_cell(&p->store, group))\n            continue;\n        if (plan->mesh.tp == 1)",
           "if (!store_in_column(&p->store, group))\n            continue;\n        if (plan->mesh.tp == 1)", HSDP, may_abort=True),
    Mutant("data-of-rank-0", "src/train/data.c", "plan_leaf(&s->plan, d, j)", "plan_leaf(&s->plan, 0 * d, j)", HSDP),
    Mutant("losses-in-rank-order", UPDATE, "all[plan_leaf(p->plan, d, j)]", "all[d * k + j]", HSDP, field="loss"),
    Mutant("segments-of-the-embedding-swapped", "src/parallel/fsdp.c", "float *part = whole + seg * cols;",
           "float *part = whole + (plan->nseg - 1 - seg) * cols;", on(2, 2), job="odd"),
]

MUTANTS = DROPPED + ORDER + NUMBERS


SLOW_PUBLISH = ("src/comm/comm.c", "    watch_label(&label);\n    collective_run(c);", "    if (request->stream == STREAM_PUBLISH)\n"
                "        clock_sleep_us(5000);\n    watch_label(&label);\n    collective_run(c);")


def build(mutant, scratch):
    """The program with the fault."""
    changes = [(mutant.file, mutant.old, mutant.new)] + [SLOW_PUBLISH] * mutant.slow_publish
    return build_changed(mutant.name, changes, scratch, *same_build())
