"""numerics.mode fast on the CPU: what is still equal to the bit, what travels in how many bytes, and that masters stay f32."""
import dataclasses
import json
import subprocess

import numpy as np
import pytest

from helpers import CKPT, SLOW, read_set, run_mesh, set_dir, steps
from mutants import Mutant, build
from runs import ROOT, Run, bits, expect_equal, reproduce

FAST = ("numerics=fast",)
WIRE = (*FAST, "precision.wire=bf16")
COMPUTE = (*FAST, "precision.compute=bf16")
BOTH = (*WIRE, "precision.compute=bf16")
PRECISIONS = {"wire": WIRE, "both": BOTH}
STEPS = 4
DDP = "parallel.data=ddp"
LOCAL = "parallel.accumulate=local"
SYNC = "optimizer.muon.replicate_async=false"
Z2 = "parallel.reshard_after_forward=false"
DEEP = "parallel.prefetch=3"
RANK0 = "parallel.owner.strategy=rank0"
MHA = "model.n_kv_heads=8"  # q, k, v and o have one shape: two for each of two tp owners
ONE_RECORD = f"log.every={STEPS}"  # nothing waits for a hash: the steps overlap


def on(mesh, *keys, seed=0, name="run"):
    env = (("DMUON_TEST_DELAY_SEED", str(seed)),) if seed else ()
    return Run(name, mesh[0], mesh[1], " ".join(keys), (f"train.steps={STEPS}", *keys), env, tp=(*mesh, 1)[2])


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """reference(keys, tp): the bits of one data-parallel rank."""
    known = {}

    def get(keys, tp=1):
        if (keys, tp) not in known:
            known[keys, tp] = bits(on((1, 1, tp), *keys, name="one"), tmp_path_factory.mktemp("one"))
        return known[keys, tp]

    return get


# ---- equal bits ----

WAYS = {
    "hsdp": on((2, 2)), "hsdp-sync": on((2, 2), SYNC), "hsdp-z2": on((2, 2), Z2),
    "z2-z3": on((2, 2), "parallel.reshard_after_forward.muon=false"), "z3-z2": on((2, 2), "parallel.reshard_after_forward.adamw=false"),
    "shard": on((1, 4)), "replicate": on((4, 1)), "local": on((2, 2), LOCAL, "parallel.prefetch=0"),
    "ddp": on((2, 2), DDP), "ddp-sync-z2": on((1, 4), DDP, SYNC, Z2), "ddp-replicate": on((4, 1), DDP),
    "owner-rank0": on((2, 2), RANK0), "recompute": on((1, 2), "parallel.recompute=layer"),
    "delays": on((2, 2), ONE_RECORD, DEEP, seed=3), "delays-z2-local": on((2, 2), ONE_RECORD, Z2, LOCAL, seed=4),
    "delays-ddp": on((2, 2), ONE_RECORD, DDP, DEEP, seed=5),
    "tp-replicate": on((2, 1, 2)), "tp-shard": on((1, 2, 2), Z2), "tp-sync": on((2, 1, 2), SYNC), "tp-ddp": on((2, 1, 2), DDP),
    "tp-delays": on((2, 2, 2), ONE_RECORD, seed=6), "tp-gram": on((1, 2, 2), "optimizer.muon.tp_distributed_gram=always"),
}

OF_WIRE = ("hsdp-sync", "shard", "ddp", "delays", "tp-replicate")  # what `both` shows of all ways


@pytest.mark.parametrize("precision,way", [("both", way) for way in WAYS] + [("wire", way) for way in OF_WIRE])
def test_data_parallel_meshes_and_modes_have_the_bits_of_one_rank(precision, way, reference, tmp_path):
    """Of one rank of the same tp degree."""
    keys, row = PRECISIONS[precision], WAYS[way]
    row = dataclasses.replace(row, name=way, keys=(*row.keys, *keys))
    expect_equal(row, bits(row, tmp_path), reference(keys, row.tp))


def test_fast_in_f32_has_the_bits_of_exact(reference, tmp_path):
    for row in (on((1, 1), *FAST), on((2, 2), *FAST, name="hsdp"), on((1, 2, 2), *FAST, DDP, name="ddp")):
        expect_equal(row, bits(row, tmp_path), reference(()))


def test_batches_of_a_tp_owner_have_the_bits_of_exact(reference, tmp_path):
    for row in (on((1, 1, 2), *FAST, MHA), on((2, 1, 2), *FAST, MHA, RANK0, name="replicas")):
        expect_equal(row, bits(row, tmp_path), reference((MHA,)))


def test_a_wire_that_rounds_what_is_rounded_changes_nothing(reference):
    """compute bf16 rounds weights for their readers anyway."""
    assert reference(COMPUTE) == reference(BOTH)


def test_bf16_changes_the_bits_and_hardly_the_loss(reference):
    exact = reference(())
    loss = {name: np.array([int(s.loss, 16) for s in reference(keys)], np.uint32).view(np.float32)
            for name, keys in {"exact": (), **PRECISIONS}.items()}
    for name, keys in PRECISIONS.items():
        assert reproduce.first_difference(exact, reference(keys)).startswith("step 1: loss")
        assert np.all(np.abs(loss[name] / loss["exact"] - 1) < 2e-3), loss
    assert reference(WIRE) != reference(BOTH)


def test_the_job_clips_and_decays(tmp_path):
    events = reproduce.execute(on((1, 1), *BOTH), tmp_path)
    optimizer = events[0]["config"]["optimizer"]
    assert any(e["grad_norm"] > optimizer["clip"]["max_norm"] for e in events if e["event"] == "step")
    assert optimizer["muon"]["momentum"] > 0 and optimizer["muon"]["weight_decay"] > 0


def test_evaluation_has_the_same_bits_on_every_data_parallel_mesh(tmp_path):
    losses = []
    for mesh, keys in (((1, 1), ()), ((2, 2), ()), ((1, 2), (DDP,))):
        row = on(mesh, *BOTH, *keys, "train.eval_every=2", "train.eval_batches=1", name=f"eval-{mesh}")
        losses.append([(e["step"], e["loss_bits"]) for e in reproduce.execute(row, tmp_path) if e["event"] == "eval"])
    assert losses[0] == losses[1] == losses[2] and len(losses[0]) == 2


@pytest.mark.parametrize("mesh,keys", [((2, 2), ()), ((2, 1, 2), ()), ((2, 2), (DDP,))], ids=["hsdp", "tp", "ddp"])
def test_replicas_hold_alike_what_they_must(mesh, keys, tmp_path):
    """An owner's copies hold what travelled: rounded, its matrix is theirs."""
    reproduce.execute(on(mesh, *WIRE, *keys, "log.replica_check_every=1"), tmp_path)


# ---- bytes ----

def plan_of(mesh, keys):
    sizes = [f"mesh.{axis}={n}" for axis, n in zip(("replicate", "shard", "tp"), mesh)]
    done = subprocess.run([reproduce.program(), reproduce.CONFIG, "--plan=json", *sizes, *keys], cwd=ROOT, stdout=subprocess.PIPE,
                          check=True)
    return json.loads(done.stdout)


def bus(comm, axis, op):
    return comm.get(axis, {}).get(op, {}).get("bus_bytes", 0)


@pytest.mark.parametrize("keys", [(), (Z2, LOCAL), (DDP,)], ids=["z3", "z2-local", "ddp"])
@pytest.mark.parametrize("mesh", [(2, 2, 1), (2, 2, 2)], ids=lambda mesh: reproduce.mesh_name(*mesh))
def test_weights_travel_in_half_the_bytes_and_gradients_in_all(mesh, keys, tmp_path):
    R, G, T = mesh
    k = 2
    batch = (f"batch.global={R * G * k}", "batch.micro=1", "batch.seq_len=8", "train.steps=2")
    plan, exact = plan_of(mesh, (*WIRE, *keys, *batch)), plan_of(mesh, (*keys, *batch))["comm_bytes"]
    P = sum(p["shape"][0] * p["shape"][1] for p in plan["parameters"] if p["role"] == "MUON")
    gathers, r = (1, 1) if DDP in keys else (1, 1) if Z2 in keys else (2 * k, k)
    row = Run("bytes", R, G, "", (*WIRE, *keys, *batch), tp=T)
    for comm in [e["comm"] for e in reproduce.execute(row, tmp_path) if e["event"] == "step"]:
        assert comm == plan["comm_bytes"]
        assert bus(comm, "shard", "broadcast") == R * (G - 1) * gathers * 2 * P
        assert bus(comm, "shard", "reduce") == R * (G - 1) * r * 4 * P
        assert bus(comm, "replicate", "broadcast") == (R - 1) * 2 * P
        assert bus(comm, "replicate", "reduce") == (R - 1) * 4 * P
        assert bus(comm, "tp", "gather") == bus(comm, "tp", "scatter") == (T - 1) * 4 * P // T
        for axis, ops in exact.items():
            for op in ops:
                half = axis in ("shard", "replicate") and op in ("broadcast", "all_gather")
                assert bus(comm, axis, op) * (2 if half else 1) == bus(exact, axis, op), (axis, op)


def test_compute_alone_leaves_the_wire_as_it_is():
    assert plan_of((2, 2, 1), COMPUTE)["comm_bytes"] == plan_of((2, 2, 1), ())["comm_bytes"]


# ---- masters, checkpoints, identity ----

@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Ten steps of 2x2 in bf16 with sets of steps 5 and 10."""
    run = tmp_path_factory.mktemp("saved") / "run"
    run_mesh((2, 2), run, *BOTH, "checkpoint.every=5")
    return run


def test_a_set_holds_masters_of_f32(saved):
    tensors = read_set(set_dir(saved, 10))
    kinds = {name.split(".")[0] for name in tensors}
    assert {"model", "momentum", "exp_avg", "exp_avg_sq"} <= kinds
    for name, tensor in tensors.items():
        assert np.any(tensor.view(np.uint32) & 0xffff), f"{name} is all bf16"


@pytest.mark.parametrize("mesh,keys", [((2, 2), ()), ((1, 4), (Z2,)), ((4, 1), (DDP,)), ((1, 1), ())],
                         ids=["same", "shard", "ddp", "one"])
def test_a_set_resumes_with_the_bits_of_a_straight_run_on_another_mesh(mesh, keys, saved, tmp_path):
    run_mesh(mesh, tmp_path / "run", *BOTH, *keys, f"checkpoint.resume={set_dir(saved, 5)}", "checkpoint.every=5")
    straight = steps(saved)
    assert steps(tmp_path / "run") == {step: straight[step] for step in range(6, 11)}
    assert subprocess.run([CKPT, "diff", set_dir(saved, 10), set_dir(tmp_path / "run", 10)], check=False).returncode == 0


def test_the_precision_is_part_of_a_run_and_the_mode_more_so(saved, tmp_path):
    resume = f"checkpoint.resume={set_dir(saved, 5)}"
    done = run_mesh((1, 1), tmp_path / "wire", *COMPUTE, resume, code=4)
    assert "precision.wire" in done.stderr and "precision.compute" not in done.stderr
    done = run_mesh((1, 1), tmp_path / "exact", resume, code=4)
    assert "numerics.mode" in done.stderr
    done = run_mesh((1, 1), tmp_path / "allowed", "checkpoint.allow_changes=[precision.wire, precision.compute]", resume, code=4)
    assert "numerics.mode" in done.stderr
    run_mesh((1, 1), tmp_path / "allowed", *FAST, "checkpoint.allow_changes=[precision.wire, precision.compute]", resume)
    assert steps(tmp_path / "allowed")[6] != steps(saved)[6]


# ---- the comparison can fail ----

WIRE_C, OWNER, FSDP = "src/parallel/wire.c", "src/parallel/owner.c", "src/parallel/fsdp.c"
FAULTS = [
    Mutant("columns-read-their-masters", OWNER, "p->store.master[g] && !config_rounds_weights(p->config)", "p->store.master[g]",
           on((2, 2))),
    Mutant("runs-read-the-store", FSDP, "p->plan->adamw_shards == 1 && !config_rounds_weights(p->config)", "p->plan->adamw_shards == 1",
           on((4, 1))),
    Mutant("masters-are-rounded-by-the-publish", WIRE_C, "p->wire && p->store.master[g] && !store_in_cell",
           "p->wire && p->store.master[g] && store_in_column", on((2, 2)), field="params"),
    Mutant("nothing-is-packed", WIRE_C, "p->wire && store_in_cell(&p->store, &p->plan->group[g])", "false", on((2, 2))),
    Mutant("batches-are-cut-as-their-first-matrix", "src/optim/newton_schulz.c", "plan[end]->gram_segmented == plan[first]->gram_segmented",
           "true", on((1, 1))),
    Mutant("copies-are-not-unpacked", WIRE_C, "p->wire && p->store.master[g] && !store_in_cell(&p->store, &p->plan->group[g])", "false",
           on((2, 2))),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
def test_fault_is_seen(fault, reference, tmp_path):
    run = dataclasses.replace(fault.run, keys=(*fault.run.keys, *WIRE))
    difference = reproduce.first_difference(reference(WIRE), bits(run, tmp_path, binary=build(fault, tmp_path)))
    assert difference, f"{fault.name} is not seen: all bits are equal"
    assert fault.field in difference


# ---- training ----

@pytest.mark.skipif(not SLOW, reason="two runs of the demo: make check-full")
def test_the_demo_in_bf16_learns_like_the_exact_one(tmp_path):
    keys = ("train.steps=100", "train.eval_every=0", "train.sample_every=0", "checkpoint.every=0")
    losses = []
    for name, precision in (("exact", ()), ("bf16", BOTH)):
        row = Run(name, 2, 2, "", (*keys, *precision), config="configs/kjv-3d.yaml", tp=2)
        losses.append(np.array([e["loss"] for e in reproduce.execute(row, tmp_path, timeout=1200) if e["event"] == "step"]))
    assert len(losses[0]) == 100 and losses[0][-1] < 0.6 * losses[0][0]
    assert np.max(np.abs(losses[1] / losses[0] - 1)) < 0.02
