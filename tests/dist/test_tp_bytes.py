"""Bytes of a step with tensor parallelism and with ddp: the log, the plan and the formulas agree, to the byte."""
import pytest

from runs import Run, reproduce
from test_tp_bits import configs, plan_of  # noqa: F401 (a fixture)

GRAM = "optimizer.muon.tp_distributed_gram={}"
DIRECT = "optimizer.muon.ns.algorithm=direct"
DDP = "parallel.data=ddp"
LOCAL = "parallel.accumulate=local"
Z2 = "parallel.reshard_after_forward=false"
K4 = "batch.global=32"

# model, (replicate, shard, tp), keys
RUNS = [
    ("plain", (1, 1, 2), ()),
    ("plain", (1, 1, 8), (GRAM.format("beneficial"),)),
    ("plain", (2, 2, 2), (GRAM.format("beneficial"), DIRECT, Z2)),
    ("plain", (2, 1, 4), (GRAM.format("always"), LOCAL, K4)),
    ("grouped", (1, 2, 2), (GRAM.format("always"), K4)),
    ("grouped", (2, 2, 2), (LOCAL,)),
    ("biased", (1, 2, 4), (GRAM.format("always"), DIRECT)),
    ("biased", (1, 1, 4), (DDP,)),
    ("plain", (2, 4, 1), (DDP, K4)),
    ("plain", (4, 1, 1), (DDP,)),
    ("grouped", (1, 4, 2), (DDP, GRAM.format("beneficial"))),
    ("biased", (2, 2, 2), (DDP, GRAM.format("off"))),
]


def name_of(run):
    model, mesh, keys = run
    return "-".join([model, "x".join(map(str, mesh)), *[k.split("=")[-1] for k in keys]])


@pytest.fixture(scope="module", params=RUNS, ids=name_of)
def moved(request, configs, tmp_path_factory):  # noqa: F811
    """(mesh, keys, plan, comm of each step)"""
    model, mesh, keys = request.param
    run = Run("run", *mesh[:2], keys=("train.steps=3", *keys), config=configs[model], tp=mesh[2])
    events = reproduce.execute(run, tmp_path_factory.mktemp("moved"))
    plan = plan_of(configs[model], *[f"mesh.{axis}={n}" for axis, n in zip(("replicate", "shard", "tp"), mesh)], *keys)
    return mesh, keys, plan, [e["comm"] for e in events if e["event"] == "step"]


def counts(comm):
    """What moved, without the operations and axes that stand there with nothing."""
    return {(axis, op): n for axis, ops in comm.items() for op, n in ops.items() if n["calls"]}


def test_every_step_moves_what_the_plan_says(moved):
    mesh, _, plan, steps = moved
    assert len(steps) == 3
    for comm in steps:
        assert counts(comm) == counts(plan["comm_bytes"]), mesh
    axes = {axis for axis, _ in counts(plan["comm_bytes"])}
    assert axes == {axis for axis, n in zip(("replicate", "shard", "tp"), mesh) if n > 1} | {"data"}


def is_long(p):
    """The cut runs along the contracted dimension."""
    rows, cols = p["shape"]
    return p["tp_dim"] == (1 if rows <= cols else 0)


def kept_in_slices(plan, keys, tp):
    """(elements of the matrices whose Newton-Schulz is distributed, sum of S_f*d*d over them)"""
    mode = next((k.split("=")[1] for k in keys if k.startswith("optimizer.muon.tp_distributed_gram")), "off")
    numel = squares = 0
    for p in plan["parameters"]:
        if p["role"] != "MUON" or mode == "off" or tp == 1 or not is_long(p):
            continue
        m, n = sorted(p["shape"])
        rounds = {"gram": 2, "direct": 5}[p["algorithm"]]
        if mode == "always" or rounds * m * m < m * n:
            numel += m * n
            squares += rounds * m * m
    return numel, squares


def test_tp_moves_its_formulas(moved):
    """(T-1)/T*4*P for the gather and for the scatter, 2*S_f*(T-1)*4*d*d for a matrix that stays in slices."""
    (_, _, tp), keys, plan, steps = moved
    muon = sum(p["shape"][0] * p["shape"][1] for p in plan["parameters"] if p["role"] == "MUON")
    numel, squares = kept_in_slices(plan, keys, tp)
    for comm in steps:
        bus = {op: n["bus_bytes"] for op, n in comm.get("tp", {}).items()}
        for op in ("gather", "scatter"):
            assert bus.get(op, 0) * tp == (tp - 1) * 4 * (muon - numel), op
        assert bus.get("reduce", 0) + bus.get("broadcast", 0) == 2 * (tp - 1) * 4 * squares
        assert bus.get("reduce", 0) == bus.get("broadcast", 0)


def test_the_modes_differ_in_what_stays_in_slices(configs):  # noqa: F811
    kept = []
    for mode in ("off", "beneficial", "always"):
        plan = plan_of(configs["plain"], "mesh.tp=2", GRAM.format(mode))
        kept.append(kept_in_slices(plan, (GRAM.format(mode),), 2)[0])
    assert kept[0] == 0 < kept[1] < kept[2]


def test_muon_moves_its_formulas_over_the_other_axes(moved):
    """fsdp: R*(G-1)*f*4*P and (R-1)*4*P twice; ddp: (D-1)*4*P for the reduction and for the broadcast, over both axes."""
    (replicate, shard, _), keys, plan, steps = moved
    muon = 4 * sum(p["shape"][0] * p["shape"][1] for p in plan["parameters"] if p["role"] == "MUON")
    k = (32 if K4 in keys else 16) // (replicate * shard)
    for comm in steps:
        over = {op: [comm.get(axis, {}).get(op, {}).get("bus_bytes", 0) for axis in ("shard", "replicate")] for op in ("reduce", "broadcast")}
        if DDP in keys:
            assert sum(over["reduce"]) == sum(over["broadcast"]) == (replicate * shard - 1) * muon
            continue
        r = 1 if LOCAL in keys else k
        f = 1 + r if Z2 in keys else 2 * k + r
        assert over["reduce"][0] + over["broadcast"][0] == replicate * (shard - 1) * f * muon
        assert over["reduce"][1] == over["broadcast"][1] == (replicate - 1) * muon
