"""Runs on the stand-ins under seeded schedules have the bits of the CPU backend of the same binary: loss, binary64 gradient norm and all
state. A row runs with two seeds: one looks at every step, one at the last only, since a hash waits for all that is under way."""
import itertools
import math
import random

import pytest

from helpers import SLOW
from standin import first_seed, needs_build, run, start

pytestmark = needs_build

# One run a row; "-": without effect there. Every two values of two columns meet wherever both have an effect, with 1, 2, 4 and 8 ranks,
# and every mesh meets both transports.
COLUMNS = ("mesh", "data", "publish", "reshard", "accumulate", "transport", "recompute", "gram", "buffers")
TABLE = """
1x1x1   fsdp    -       -       local   -       none    -       -
1x1x1   fsdp    -       -       reduce  -       none    -       -
1x1x1   ddp     async   -       -       -       layer   -       -
1x1x1   ddp     sync    -       -       -       layer   -       -
1x1x2   fsdp    async   -       reduce  mpi     none    off     all
1x1x2   ddp     sync    -       -       nccl    layer   always  off
1x2x1   fsdp    -       z3      local   mpi     layer   -       -
1x2x1   fsdp    -       z2      reduce  nccl    none    -       -
2x1x1   fsdp    async   -       reduce  nccl    none    -       -
2x1x1   ddp     async   -       -       mpi     none    -       -
1x1x4   fsdp    sync    -       reduce  nccl    layer   off     all
1x1x4   ddp     async   -       -       mpi     layer   off     all
1x2x2   fsdp    sync    z3      local   nccl    none    off     off
1x2x2   fsdp    sync    z2      reduce  mpi     none    always  off
2x2x1   fsdp    sync    z2      reduce  nccl    layer   -       -
2x2x1   ddp     sync    -       -       mpi     none    -       -
1x4x2   fsdp    async   z3      reduce  mpi     layer   always  all
1x4x2   fsdp    async   z2      local   nccl    none    off     all
2x2x2   fsdp    async   z2      local   mpi     layer   always  off
2x2x2   ddp     sync    -       -       nccl    none    off     all
2x4x1   fsdp    async   z2      reduce  nccl    none    -       -
2x4x1   fsdp    async   z3      local   mpi     none    -       -
"""
ROWS = [dict(zip(COLUMNS, line.split())) for line in TABLE.strip().splitlines()]
KEYS = {
    "data": "parallel.data={}",
    "publish": "optimizer.muon.replicate_async={}",
    "reshard": "parallel.reshard_after_forward={}",
    "accumulate": "parallel.accumulate={}",
    "transport": "comm.transport={}",
    "recompute": "parallel.recompute={}",
    "gram": "optimizer.muon.tp_distributed_gram={}",
    "buffers": "parallel.tp_buffer_reuse={}",
}
VALUES = {
    "data": ["fsdp", "ddp"], "publish": ["async", "sync"], "reshard": ["z3", "z2"], "accumulate": ["reduce", "local"],
    "transport": ["nccl", "mpi"], "recompute": ["none", "layer"], "gram": ["off", "always"], "buffers": ["off", "all"],
}
WORDS = {"async": "true", "sync": "false", "z3": "true", "z2": "false"}
MESHES = ["1x1x1", "1x2x1", "2x1x1", "1x1x2", "2x2x1", "1x2x2", "1x1x4", "2x4x1", "2x2x2", "1x4x2"]
STEPS = 3
JOB = ("threads=1", f"train.steps={STEPS}", "batch.global=8", "batch.seq_len=16")
EVERY = ("log.params_hash_every=1",)


def last(steps):
    return f"log.every={steps}", f"log.params_hash_every={steps}"


def sizes(mesh):
    return [int(n) for n in mesh.split("x")]


def keys_of(row):
    mesh = [f"mesh.{axis}={n}" for axis, n in zip(("replicate", "shard", "tp"), sizes(row["mesh"]))]
    return mesh + [KEYS[name].format(WORDS.get(row[name], row[name])) for name in KEYS if row[name] != "-"]


def idle(mesh, data):
    replicate, shard, tp = sizes(mesh)
    return {*(("gram", "buffers") if tp == 1 else ()), *(("accumulate",) if data == "ddp" else ()),
            *(("reshard",) if data == "ddp" or shard == 1 else ()), *(("transport",) if replicate * shard * tp == 1 else ()),
            *(("publish",) if replicate == tp == 1 and data == "fsdp" else ())}


def possible_rows():
    for mesh, *modes in itertools.product(MESHES, *VALUES.values()):
        row = {"mesh": mesh, **dict(zip(VALUES, modes))}
        yield {**row, **dict.fromkeys(idle(mesh, row["data"]), "-")}


def cpu_run(run_dir, steps):
    return run(1, run_dir, "device=cpu", "mesh.replicate=1", "mesh.shard=1", *JOB, f"train.steps={steps}", *EVERY)


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return cpu_run(tmp_path_factory.mktemp("cpu") / "run", STEPS)


@pytest.mark.parametrize("log,turn", [(EVERY, 0), (last(STEPS), 1)], ids=["every", "last"])
@pytest.mark.parametrize("number,row", enumerate(ROWS), ids=lambda v: "-".join(v.values()) if isinstance(v, dict) else None)
def test_row_has_the_bits_of_the_cpu(number, row, log, turn, reference, tmp_path):
    ranks = sizes(row["mesh"])
    seed = first_seed() + 2 * number + turn
    steps = run(ranks[0] * ranks[1] * ranks[2], tmp_path / "run", "device=cuda", *JOB, *log, *keys_of(row), seed=seed)
    assert steps == {n: reference[n] for n in steps} and STEPS in steps, f"DM_CUDA_SEED={first_seed()}: {steps}, not {reference}"


# ---- the whole matrix ----

MATRIX_STEPS, MATRIX_SEEDS = 10, 8
MATRIX = ("mesh", "data", "publish", "reshard")


def matrix_rows():
    """Every mesh with every way to share data, weights and publish."""
    return sorted({tuple(row[name] for name in MATRIX) for row in possible_rows()})


def completed(fixed, turn):
    """A row of the matrix with the other columns, every turn with other values in them."""
    draw = random.Random(f"{fixed} {turn}")
    mesh, data = fixed[:2]
    row = {**dict(zip(MATRIX, fixed)), **{name: draw.choice(VALUES[name]) for name in VALUES if name not in MATRIX}}
    return {**row, **dict.fromkeys(idle(mesh, data), "-")}


@pytest.fixture(scope="module")
def long_reference(tmp_path_factory):
    return cpu_run(tmp_path_factory.mktemp("cpu") / "run", MATRIX_STEPS)


@pytest.mark.skipif(not SLOW, reason="DM_SLOW=1")
@pytest.mark.parametrize("fixed", matrix_rows(), ids="-".join)
def test_whole_matrix_has_the_bits_of_the_cpu(fixed, long_reference, tmp_path):
    ranks = math.prod(sizes(fixed[0]))
    for turn in range(MATRIX_SEEDS):
        row, seed = completed(fixed, turn), first_seed() + turn
        log = EVERY if turn % 2 == 0 else last(MATRIX_STEPS)
        keys = ("device=cuda", *JOB, f"train.steps={MATRIX_STEPS}", *log, *keys_of(row))
        steps = run(ranks, tmp_path / f"run-{turn}", *keys, seed=seed)
        assert steps == {n: long_reference[n] for n in steps} and MATRIX_STEPS in steps, f"DM_CUDA_SEED={first_seed()}, turn {turn}: {row}"


# ---- the table itself ----


def pairs(row):
    replicate, shard, tp = sizes(row["mesh"])
    modes = [("ranks", replicate * shard * tp), *((name, row[name]) for name in KEYS if row[name] != "-")]
    return {*itertools.combinations(modes, 2), (("mesh", row["mesh"]), ("transport", row["transport"]))}


def test_every_two_values_of_two_columns_meet():
    met = set().union(*map(pairs, ROWS))
    missing = set().union(*map(pairs, possible_rows())) - met
    assert not missing, sorted(missing, key=str)
    assert len(ROWS) <= 24


def test_idle_columns_are_empty():
    for row in ROWS:
        assert {name for name, value in row.items() if value == "-"} == idle(row["mesh"], row["data"]), row


@pytest.mark.parametrize("first,second", [("cuda", "cpu"), ("cpu", "cuda")])
def test_a_run_goes_on_on_the_other_device(first, second, reference, tmp_path):
    keys = ("mesh.replicate=1", "mesh.shard=1", "mesh.tp=2", "checkpoint.every=1", *EVERY)
    stopped = ("train.max_wall_time=0:00:01",)  # less than twice the longest save: after the first step
    code, err = start(2, tmp_path / "run", f"device={first}", *JOB, *keys, *stopped, seed=first_seed())
    assert code == 75, err
    steps = run(2, tmp_path / "run", f"device={second}", *JOB, *keys, seed=first_seed())
    assert steps == reference
