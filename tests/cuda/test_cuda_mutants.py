"""The stand-ins are tested by what they must see: a run of the program with one wait or bracket left out has other bits than the CPU
backend, or ends in a fault. With DM_SLOW=1 all mutants, else some that few seeds show."""
import json
import subprocess

import pytest

from cuda_mutants import COMMON, JOBS, MUTANTS, SEEDS, SHORT_HANG_S, STEPS, build
from helpers import SLOW, records
from standin import BUILD, TRAIN, environment, launch, needs_build, start

pytestmark = needs_build


def last_bits(run_dir):
    """Of the loss, the gradient norm and all state after the last step."""
    (last,) = [r for r in records(run_dir, "step") if r["step"] == STEPS]
    return last["loss_bits"], last["grad_sumsq_bits"], last["params_hash"]


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """Step STEPS of the CPU backend on one rank."""
    run_dir = tmp_path_factory.mktemp("cpu") / "run"
    code, err = start(1, run_dir, "device=cpu", "mesh.replicate=1", "mesh.shard=1", *COMMON, "log.params_hash_every=1")
    assert code == 0, err
    return last_bits(run_dir)


def operations(counts, ranks):
    """Of the devices of all ranks, by NCCL."""
    files = [counts.with_name(f"{counts.name}.{rank}" if rank else counts.name) for rank in range(ranks)]
    return sum(sum(json.loads(file.read_text())["transfers"].values()) for file in files)


def sound(job):
    return TRAIN if job.program == TRAIN.name else BUILD / "cuda" / job.program


def observe(job, run_dir, program, seed, reference, **extra):
    """What a run shows: "" if it has the bits of the reference."""
    if job.program != TRAIN.name:
        command = [*launch(job.ranks), program, *job.keys]
        done = subprocess.run(command, env=environment(seed, **extra), stderr=subprocess.PIPE, text=True, timeout=60)
        return "" if done.returncode == 0 else f"exit {done.returncode}: {done.stderr}"
    code, err = start(job.ranks, run_dir, *job.arguments, seed=seed, binary=program, **extra)
    if code != 0:
        return f"exit {code}: {err}"
    found = last_bits(run_dir)
    return "" if found == reference else f"{found}, not {reference}"


def show(mutant, program, tmp_path, reference):
    """(seed, what it shows) of the first seed that shows the fault, or the last."""
    hang = {"DM_STANDIN_HANG_S": SHORT_HANG_S} if mutant.hangs else {}
    for seed in SEEDS:
        seen = observe(JOBS[mutant.job], tmp_path / f"seed-{seed}", program, seed, reference, **hang)
        if seen:
            break
    return seed, seen


@pytest.mark.parametrize("mutant", [m for m in MUTANTS if (SLOW or m.quick) and not m.operations], ids=lambda m: m.name)
def test_fault_is_seen(mutant, reference, tmp_path):
    seed, seen = show(mutant, build(mutant, tmp_path), tmp_path, reference)
    assert seen, f"{mutant.name} is not seen: all bits are equal"
    assert mutant.hangs == ("without its partner" in seen), seen
    print(f"{mutant.name}: seed {seed}, {seen}")


@pytest.mark.skipif(not SLOW, reason="DM_SLOW=1")
@pytest.mark.parametrize("mutant", [m for m in MUTANTS if m.operations], ids=lambda m: m.name)
def test_bracket_makes_one_operation(mutant, reference, tmp_path):
    job, found = JOBS[mutant.job], []
    for name, program in (("sound", TRAIN), ("changed", build(mutant, tmp_path))):
        assert observe(job, tmp_path / name, program, 1, reference, DM_STANDIN_COUNTS=tmp_path / f"{name}.json") == ""
        found.append(operations(tmp_path / f"{name}.json", job.ranks))
    assert found[0] < found[1], found


@pytest.mark.parametrize("job", [name for name, job in JOBS.items() if SLOW or job.program == "order" or name == "pair"])
def test_without_a_fault_the_same_jobs_have_the_bits_of_the_cpu(job, reference, tmp_path):
    for seed in SEEDS if JOBS[job].program == "order" else SEEDS[:5] if SLOW else (1, 3):
        assert observe(JOBS[job], tmp_path / f"seed-{seed}", sound(JOBS[job]), seed, reference) == ""
