"""The bytes of a step: what the communicators count is what the formulas say and what --plan promises, to the byte."""
import json
import subprocess

import pytest

from runs import ROOT, Run, reproduce, write_tokens
from test_bits import MODEL

B = 4  # bytes of an element
DDP = "parallel.data=ddp"
LOCAL = "parallel.accumulate=local"
Z2 = "parallel.reshard_after_forward=false"
MESHES = [(2, 2, 1), (1, 4, 1), (4, 1, 1), (2, 4, 1), (1, 2, 2), (2, 2, 2), (1, 1, 4)]


def batch(mesh, k):
    """Keys for k micro-batches per rank and step."""
    return (f"batch.global={mesh[0] * mesh[1] * k}", "batch.micro=1", "batch.seq_len=8", "train.steps=2")


def plan_of(config, mesh, keys):
    sizes = [f"mesh.{axis}={n}" for axis, n in zip(("replicate", "shard", "tp"), mesh)]
    done = subprocess.run([reproduce.program(), config, "--plan=json", *sizes, *keys], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def logged(mesh, keys, scratch, config=reproduce.CONFIG):
    """comm of each step record."""
    run = Run("bytes", mesh[0], mesh[1], "", tuple(keys), config=config, tp=mesh[2])
    return [e["comm"] for e in reproduce.execute(run, scratch) if e["event"] == "step"]


def bus(comm, axis, op):
    return comm.get(axis, {}).get(op, {}).get("bus_bytes", 0)


def muon_elements(plan):
    return sum(p["shape"][0] * p["shape"][1] for p in plan["parameters"] if p["role"] == "MUON")


@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("mode", [(), (LOCAL,), (Z2,), (Z2, LOCAL)], ids=lambda mode: "-".join(m[-5:] for m in mode) or "z3")
def test_muon_bytes_follow_the_formulas(mode, k, tmp_path):
    mesh = R, G, _ = (2, 2, 1)
    keys = (*mode, *batch(mesh, k))
    plan = plan_of(reproduce.CONFIG, mesh, keys)
    r = 1 if LOCAL in mode else k
    f = 1 + r if Z2 in mode else 2 * k + r
    for comm in logged(mesh, keys, tmp_path):
        assert bus(comm, "shard", "broadcast") + bus(comm, "shard", "reduce") == R * (G - 1) * f * B * muon_elements(plan)
        assert bus(comm, "replicate", "reduce") == (R - 1) * B * muon_elements(plan)
        assert bus(comm, "replicate", "broadcast") == (R - 1) * B * muon_elements(plan)
        assert comm == plan["comm_bytes"]


@pytest.mark.parametrize("mesh", MESHES, ids=lambda mesh: reproduce.mesh_name(*mesh))
def test_muon_bytes_follow_the_formulas_on_every_mesh(mesh, tmp_path):
    R, G, T = mesh
    k = 2
    plan = plan_of(reproduce.CONFIG, mesh, batch(mesh, k))
    P = muon_elements(plan)
    for comm in logged(mesh, batch(mesh, k), tmp_path):
        assert bus(comm, "shard", "broadcast") + bus(comm, "shard", "reduce") == R * (G - 1) * 3 * k * B * P
        assert bus(comm, "replicate", "reduce") == bus(comm, "replicate", "broadcast") == (R - 1) * B * P
        assert bus(comm, "tp", "gather") == bus(comm, "tp", "scatter") == (T - 1) * B * P // T
        assert comm == plan["comm_bytes"]


@pytest.mark.parametrize("mesh", [(2, 2, 1), (1, 4, 1), (4, 1, 1), (2, 2, 2)], ids=lambda mesh: reproduce.mesh_name(*mesh))
def test_ddp_moves_each_matrix_to_its_owner_and_back_to_all(mesh, tmp_path):
    R, G, _ = mesh
    keys = (DDP, *batch(mesh, 1))
    plan = plan_of(reproduce.CONFIG, mesh, keys)
    for comm in logged(mesh, keys, tmp_path):
        for op in ("reduce", "broadcast"):
            assert bus(comm, "shard", op) + bus(comm, "replicate", op) == (R * G - 1) * B * muon_elements(plan)
        assert comm == plan["comm_bytes"]


def distributed_bytes(p, T, always):
    """Bytes of the distributed Gram path of one matrix, None where it is gathered."""
    m, n = p["shape"]
    contracted = 1 if m <= n else 0
    d, rounds = min(m, n), 2 if p["algorithm"] == "gram" else 5
    if p["tp_dim"] != contracted or not (always or rounds * d * d < m * n):
        return None
    return 2 * rounds * (T - 1) * B * d * d


@pytest.mark.parametrize("gram", ["beneficial", "always"])
def test_distributed_gram_moves_partial_products_and_factors(gram, tmp_path):
    mesh = (1, 2, 2)
    keys = (f"optimizer.muon.tp_distributed_gram={gram}", *batch(mesh, 1))
    plan = plan_of(reproduce.CONFIG, mesh, keys)
    muon = [p for p in plan["parameters"] if p["role"] == "MUON"]
    paths = [distributed_bytes(p, 2, gram == "always") for p in muon]
    gathered = sum(p["shape"][0] * p["shape"][1] for p, path in zip(muon, paths) if path is None)
    plain = plan_of(reproduce.CONFIG, mesh, batch(mesh, 1))["comm_bytes"]
    for comm in logged(mesh, keys, tmp_path):
        assert bus(comm, "tp", "gather") == bus(comm, "tp", "scatter") == gathered * B // 2
        more = sum(bus(comm, "tp", op) - bus(plain, "tp", op) for op in ("reduce", "broadcast", "all_reduce"))
        assert more == sum(path for path in paths if path is not None)
        assert comm == plan["comm_bytes"]
    assert any(path is not None for path in paths)


@pytest.mark.parametrize("mesh", [(2, 2, 1), (1, 2, 2), (2, 4, 1)], ids=lambda mesh: reproduce.mesh_name(*mesh))
@pytest.mark.parametrize("keys", [(), (Z2, LOCAL), (DDP,)], ids=["z3", "z2-local", "ddp"])
def test_an_odd_model_moves_what_the_plan_promises(mesh, keys, tmp_path):
    """Tied, with biases, a padded vocabulary and units of fewer blocks than ranks: padding is not counted."""
    write_tokens(tmp_path / "train.bin", 33, 1200)
    config = tmp_path / "odd.yaml"
    config.write_text(MODEL.format(vocab=33, tied="true", bias="true", data=tmp_path / "train.bin"))
    plan = plan_of(str(config), mesh, (*keys, *batch(mesh, 2)))
    for comm in logged(mesh, (*keys, *batch(mesh, 2)), tmp_path, config=str(config)):
        assert comm == plan["comm_bytes"]


def test_a_record_of_several_steps_holds_their_sum(tmp_path):
    mesh = (2, 2, 1)
    keys = (*batch(mesh, 1)[:-1], "train.steps=4", "log.every=2")
    once = plan_of(reproduce.CONFIG, mesh, keys)["comm_bytes"]
    twice = {axis: {op: {name: 2 * n for name, n in counts.items()} for op, counts in ops.items()} for axis, ops in once.items()}
    assert logged(mesh, keys, tmp_path) == [twice, twice]


def test_evaluation_sample_hash_and_save_are_not_counted(tmp_path):
    mesh = (2, 2, 1)
    keys = batch(mesh, 1)
    more = ("train.eval_every=1", "train.eval_batches=1", "train.sample_every=1", "train.sample_tokens=2",
            "train.sample_prompt=In", "checkpoint.every=1")
    assert logged(mesh, (*keys, *more), tmp_path / "more") == logged(mesh, keys, tmp_path / "plain")
