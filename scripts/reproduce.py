#!/usr/bin/env python3
"""Runs one small job on every mesh and in every mode and compares all bits: the loss and the binary64 gradient norm of
each step, and the hash of all weights and of all optimizer state after each step. (A hash waits for all that is under way, so
rows with "1 record" log the last step only: there the steps overlap as they do in earnest.)

usage: reproduce.py [NAME]    one row and what it is compared with; without NAME all rows (make reproduce RUN=NAME)
       reproduce.py --list    the names
DM_BIN names the directory of dmuon-train (bin). Exit code: 0 all equal, 1 otherwise.
"""
import argparse
import dataclasses
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
CONFIG = "configs/bits-tiny.yaml"
HALF = 5  # of the ten steps: where a restarted run stops
TIMEOUT_S = 300


@dataclasses.dataclass(frozen=True)
class Run:
    """A start of dmuon-train, or two with a checkpoint between them."""

    name: str
    replicate: int = 1
    shard: int = 1
    mode: str = ""
    keys: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    config: str = CONFIG
    tp: int = 1
    # Resumed from the checkpoint of step HALF on this mesh; the first part runs on the mesh above.
    resume_on: tuple[int, int, int] | None = None

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.replicate, self.shard, self.tp

    @property
    def mesh(self) -> str:
        text = mesh_name(*self.sizes)
        return text if self.resume_on in (None, self.sizes) else f"{text} > {mesh_name(*self.resume_on)}"


class Step(NamedTuple):
    number: int
    loss: str  # bits of binary32
    sumsq: str  # bits of binary64
    params: str  # hash of all state


class Failed(Exception):
    """A run that did not end well; the text is its output."""


def mesh_name(replicate: int, shard: int, tp: int = 1) -> str:
    return f"{replicate}x{shard}" + (f"x{tp}" if tp > 1 else "")


# ---- the rows ----

REFERENCE = Run("one", mode="1 rank, 1 thread", keys=("threads=1",))


class Classic(NamedTuple):
    """A comparison of two runs that can be started alone."""

    name: str
    sides: tuple[Run, Run]


HSDP = Run("hsdp", 2, 2, "replicate 2, shard 2")
CLASSIC = [
    Classic("hsdp_correctness", (HSDP, Run("shard-4", 1, 4, "shard 4"))),
    Classic("hsdp_async_correctness", (
        Run("hsdp-async", 2, 2, "publish async", ("optimizer.muon.replicate_async=true",)),
        Run("hsdp-sync", 2, 2, "publish sync", ("optimizer.muon.replicate_async=false",)))),
    Classic("hsdp_restart", (HSDP, Run("hsdp-restarted", 2, 2, f"stopped and resumed at {HALF}", resume_on=(2, 2, 1)))),
]


def mesh_rows() -> list[Run]:
    flat = [(1, 2), (1, 4), (1, 8), (2, 1), (4, 1), (8, 1), (2, 2), (2, 4), (4, 2)]
    cut = [(1, 1, 2), (1, 1, 4), (2, 1, 2), (1, 2, 2), (2, 2, 2), (1, 2, 4)]
    return [on_2x2(f"mesh-{mesh_name(*mesh)}", "", mesh=mesh) for mesh in flat + cut]


def on_2x2(name: str, mode: str, *keys: str, mesh=(2, 2, 1), **env: str) -> Run:
    replicate, shard, tp = (*mesh, 1)[:3]
    return Run(name, replicate, shard, mode, keys, tuple(env.items()), tp=tp)


def reshard_rows() -> list[Run]:
    rows = []
    for muon, adamw in [(False, False), (False, True), (True, False), (True, True)]:
        names = [f"z{3 if on else 2}" for on in (muon, adamw)]
        rows.append(on_2x2("-".join(["reshard", *names]), f"Muon {names[0].upper()}, AdamW {names[1].upper()}",
                           f"parallel.reshard_after_forward.muon={str(muon).lower()}",
                           f"parallel.reshard_after_forward.adamw={str(adamw).lower()}"))
    return rows


def mode_rows() -> list[Run]:
    rows = reshard_rows()
    rows += [on_2x2("sync", "publish sync", "optimizer.muon.replicate_async=false")]
    rows += [on_2x2(f"prefetch-{n}", f"prefetch {n}", f"parallel.prefetch={n}") for n in (0, 1, 3)]
    rows += [on_2x2(f"accumulate-{a}", f"accumulate {a}", f"parallel.accumulate={a}") for a in ("reduce", "local")]
    rows += [on_2x2(f"owner-{s}", f"owner {s}", f"parallel.owner.strategy={s}") for s in ("lpt", "round_robin", "rank0")]
    rows += [on_2x2("owner-rank0-1x8", "owner rank0", "parallel.owner.strategy=rank0", mesh=(1, 8))]
    rows += [on_2x2("bundles", "small matrices bundled", "parallel.owner.small_param_threshold=10000")]
    rows += [on_2x2("leaves-local-2x4", "accumulate local", "parallel.accumulate=local", mesh=(2, 4))]
    rows += [on_2x2(f"threads-{n}", f"{n} thread{'s' if n > 1 else ''} a rank", f"threads={n}") for n in (1, 2, 3)]
    rows += [on_2x2(f"isa-{i}", f"DMUON_ISA={i}", DMUON_ISA=i) for i in ("avx512", "avx2", "generic")]
    rows += [on_2x2("isa-generic-one", "DMUON_ISA=generic", mesh=(1, 1), DMUON_ISA="generic")]
    rows += [on_2x2("recompute", "layers recomputed", "parallel.recompute=layer")]
    rows += [on_2x2("eval", "evaluated between the steps", "train.eval_every=3", "train.eval_batches=1")]
    return rows


def cut_rows() -> list[Run]:
    """Tensor parallelism beside the other axes."""
    cube = (2, 2, 2)
    gram = "optimizer.muon.tp_distributed_gram"
    rows = [on_2x2(f"tp-gram-{g}", f"distributed Gram {g}", f"{gram}={g}", mesh=(1, 2, 2)) for g in ("beneficial", "always")]
    rows += [on_2x2("tp-gram-cube", "distributed Gram always, sync", f"{gram}=always", "optimizer.muon.replicate_async=false", mesh=cube)]
    rows += [on_2x2("tp-buffers", "TP buffers kept", "parallel.tp_buffer_reuse=all", mesh=(1, 2, 2))]
    rows += [on_2x2("tp-local-z2", "local, Z2", "parallel.accumulate=local", "parallel.reshard_after_forward=false", mesh=cube)]
    rows += [on_2x2("tp-sync", "publish sync", "optimizer.muon.replicate_async=false", mesh=cube)]
    rows += [on_2x2("tp-owner-rank0", "owner rank0", "parallel.owner.strategy=rank0", mesh=cube)]
    rows += [on_2x2(f"tp-delays-{s}", f"1 record, delays {s}", f"log.every={2 * HALF}", mesh=cube, DMUON_TEST_DELAY_SEED=str(s))
             for s in (21, 22)]
    return rows


def replicated_rows() -> list[Run]:
    """Every rank keeps all weights."""
    ddp = "parallel.data=ddp"
    return [on_2x2("ddp-1x4", "ddp", ddp, mesh=(1, 4)), on_2x2("ddp-4x1", "ddp", ddp, mesh=(4, 1)),
            on_2x2("ddp-2x2", "ddp", ddp), on_2x2("ddp-sync", "ddp, sync", ddp, "optimizer.muon.replicate_async=false"),
            on_2x2("ddp-local", "ddp, local", ddp, "parallel.accumulate=local"),
            on_2x2("ddp-2x2x2", "ddp", ddp, mesh=(2, 2, 2)),
            on_2x2("ddp-delays", "ddp, 1 record, delays 31", ddp, f"log.every={2 * HALF}", DMUON_TEST_DELAY_SEED="31")]


def shaken_rows() -> list[Run]:
    local = "parallel.accumulate=local"
    deep = "parallel.prefetch=3"
    rows = [on_2x2(f"delays-{s}", f"delays {s}", DMUON_TEST_DELAY_SEED=str(s)) for s in (1, 2, 3)]
    rows += [on_2x2("delays-local", "delays 4, local", local, DMUON_TEST_DELAY_SEED="4"),
             on_2x2("delays-prefetch", "delays 5, prefetch 3", deep, DMUON_TEST_DELAY_SEED="5"),
             on_2x2("delays-both", "delays 6, local, prefetch 3", local, deep, DMUON_TEST_DELAY_SEED="6"),
             on_2x2("delays-z2-sync", "delays 7, Z2, sync", "parallel.reshard_after_forward=false",
                    "optimizer.muon.replicate_async=false", DMUON_TEST_DELAY_SEED="7"),
             on_2x2("delays-2x4", "delays 8", mesh=(2, 4), DMUON_TEST_DELAY_SEED="8"),
             on_2x2("delays-2x4-both", "delays 9, local, prefetch 3", local, deep, mesh=(2, 4), DMUON_TEST_DELAY_SEED="9")]
    return rows


def overlapping_rows() -> list[Run]:
    once = f"log.every={2 * HALF}"
    rows = [Run(f"overlap-{mesh_name(*mesh)}", *mesh, "1 record", (once,)) for mesh in [(2, 2), (4, 2)]]
    rows += [on_2x2(f"overlap-delays-{s}", f"1 record, delays {s}", once, DMUON_TEST_DELAY_SEED=str(s)) for s in (11, 12)]
    rows += [on_2x2("overlap-prefetch", "1 record, prefetch 3, delays 13", once, "parallel.prefetch=3", DMUON_TEST_DELAY_SEED="13"),
             on_2x2("overlap-local-z2", "1 record, local, Z2, delays 14", once, "parallel.accumulate=local",
                    "parallel.reshard_after_forward=false", DMUON_TEST_DELAY_SEED="14"),
             on_2x2("overlap-2x4", "1 record, delays 15", once, mesh=(2, 4), DMUON_TEST_DELAY_SEED="15")]
    return rows


def resumed_rows() -> list[Run]:
    return [Run("resume-2x2-1x4", 2, 2, f"resumed at {HALF}", resume_on=(1, 4, 1)),
            Run("resume-1x1-4x2", 1, 1, f"resumed at {HALF}", resume_on=(4, 2, 1)),
            Run("resume-2x4-1x1", 2, 4, f"resumed at {HALF}", resume_on=(1, 1, 1)),
            Run("resume-2x2-1x2x2", 2, 2, f"resumed at {HALF}", resume_on=(1, 2, 2))]


TABLE = mesh_rows() + mode_rows() + cut_rows() + replicated_rows() + shaken_rows() + overlapping_rows() + resumed_rows()


# ---- starting them ----

def program() -> Path:
    return ROOT / os.environ.get("DM_BIN", "bin") / "dmuon-train"


def environment(extra: dict[str, str]) -> dict[str, str]:
    """The caller's, with what Open MPI asks for where it runs as root or in a container."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("DMUON_", "SLURM_"))}
    env.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    env.setdefault("OMPI_MCA_btl_vader_single_copy_mechanism", "none")
    env.update(extra)
    return env


def command(run: Run, mesh: tuple[int, int, int], run_dir: Path, extra: tuple[str, ...], binary: Path | None) -> list[str]:
    ranks = mesh[0] * mesh[1] * mesh[2]
    launcher = ["mpirun", "-q", "-np", str(ranks), "--oversubscribe", "--bind-to", "none"] if ranks > 1 else []
    return [*launcher, str(binary or program()), run.config, f"mesh.replicate={mesh[0]}", f"mesh.shard={mesh[1]}",
            f"mesh.tp={mesh[2]}", f"run.dir={run_dir}", *run.keys, *extra]


def start(words: list[str], env: dict[str, str], timeout: float) -> None:
    """In a process group of its own, so that a time-out ends all of it."""
    process = subprocess.Popen(words, cwd=ROOT, env=env, text=True, errors="replace", stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        raise Failed(f"{' '.join(words)}\nnot done after {timeout} s\n{output}") from None
    if process.returncode != 0:
        raise Failed(f"{' '.join(words)}\nexit code {process.returncode}\n{output}")


def read_events(run_dir: Path) -> list[dict]:
    lines = (run_dir / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def steps_of(events: list[dict]) -> list[Step]:
    steps = [e for e in events if e["event"] == "step"]
    numbers = [e["step"] for e in steps]
    if not numbers or numbers != list(range(numbers[0], numbers[-1] + 1, numbers[0])):
        raise Failed(f"steps in the log: {numbers}")
    return [Step(e["step"], e["loss_bits"], e["grad_sumsq_bits"], e["params_hash"]) for e in steps]


def stop_half_way(first: Path, second: Path) -> None:
    """What a job leaves that dies after its checkpoint of step HALF: that set, and a log that went on."""
    name = f"step-{HALF:08d}"
    shutil.copytree(first / "checkpoints" / name, second / "checkpoints" / name)
    shutil.copy(first / "log.jsonl", second / "log.jsonl")


def execute(run: Run, scratch: Path, binary: Path | None = None, timeout: float = TIMEOUT_S) -> list[dict]:
    """All events of the run's log. `binary` stands in for dmuon-train."""
    env = environment(dict(run.env))
    run_dir = scratch / run.name
    if run.resume_on is None:
        start(command(run, run.sizes, run_dir, (), binary), env, timeout)
        return read_events(run_dir)
    every = (f"checkpoint.every={HALF}", "checkpoint.keep=0")
    start(command(run, run.sizes, run_dir, every, binary), env, timeout)
    resumed = scratch / f"{run.name}-resumed"
    stop_half_way(run_dir, resumed)
    start(command(run, run.resume_on, resumed, (), binary), env, timeout)
    events = read_events(resumed)
    at = [i for i, e in enumerate(events) if e["event"] == "resume" and e["step"] == HALF]
    if len(at) != 1 or [e["step"] for e in events[at[0]:] if e["event"] == "step"][:1] != [HALF + 1]:
        raise Failed(f"{run.name}: the log does not show a run that was resumed at step {HALF}")
    return events


def missing_isa(run: Run) -> bool:
    """Is the vector unit that the run asks for absent here?"""
    isa = dict(run.env).get("DMUON_ISA")
    if isa in (None, "generic"):
        return False
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split() if Path("/proc/cpuinfo").exists() else []
    needed = {"avx2": ["avx2", "fma"], "avx512": ["avx512f", "avx512dq", "avx512bw", "avx512vl"]}[isa]
    return not all(flag in flags for flag in needed)


# ---- comparing ----

def first_difference(a: list[Step], b: list[Step]) -> str | None:
    """None when all bits are equal, else the first step and field that differ. `b` may hold every n-th step of `a` only."""
    if a[-1].number != b[-1].number:
        return f"{len(a)} steps to {a[-1].number} against {len(b)} to {b[-1].number}"
    steps = {step.number: step for step in a}
    for step in b:
        for field in Step._fields:
            mine, theirs = getattr(steps[step.number], field), getattr(step, field)
            if mine != theirs:
                return f"step {step.number}: {field} {mine} against {theirs}"
    return None


def losses_hash(steps: list[Step]) -> str:
    return hashlib.sha256(" ".join(step.loss for step in steps).encode()).hexdigest()[:16]


COLUMNS = "{:24} {:11} {:30} {:16} {:16} {}"


def print_row(name: str, run: Run, steps: list[Step] | None, verdict: str) -> None:
    hashes = (losses_hash(steps), steps[-1].params) if steps else ("-", "-")
    print(COLUMNS.format(name, run.mesh, run.mode, *hashes, verdict), flush=True)


def try_row(name: str, run: Run, scratch: Path, reference: list[Step] | None) -> tuple[bool, list[Step] | None]:
    """Runs and prints one row. True unless it differs from the reference or fails."""
    if missing_isa(run):
        print_row(name, run, None, "not on this processor")
        return True, None
    try:
        steps = steps_of(execute(run, scratch))
    except Failed as failure:
        print_row(name, run, None, "FAILED")
        print(failure, file=sys.stderr)
        return False, None
    difference = first_difference(reference, steps) if reference else None
    print_row(name, run, steps, f"NO: {difference}" if difference else "yes")
    return difference is None, steps


def run_classic(classic: Classic, scratch: Path, reference: list[Step] | None) -> bool:
    """Both sides; the second against the first, and both against the reference if there is one."""
    here = scratch / classic.name
    equal, steps = try_row(classic.name, classic.sides[0], here, reference)
    also_equal, _ = try_row("", classic.sides[1], here, reference or steps)
    return equal and also_equal and steps is not None


def run_rows(name: str | None, scratch: Path) -> bool:
    print(COLUMNS.format("run", "mesh", "mode", "losses", "final state", "equal"))
    classic = {c.name: c for c in CLASSIC}
    if name in classic:
        return run_classic(classic[name], scratch, None)
    ok, reference = try_row(REFERENCE.name, REFERENCE, scratch, None)
    if reference is None:
        return False
    if name is None:
        for row in CLASSIC:
            ok = run_classic(row, scratch, reference) and ok
    for row in TABLE:
        if name in (None, row.name):
            ok = try_row(row.name, row, scratch, reference)[0] and ok
    left_out = [row.name for row in TABLE if name in (None, row.name) and missing_isa(row)]
    if name in left_out:
        print("nothing was compared")
    else:
        print(("all bits are equal" if ok else "NOT all bits are equal") + (f"; not run: {', '.join(left_out)}" if left_out else ""))
    return ok


def main() -> int:
    names = [c.name for c in CLASSIC] + [REFERENCE.name] + [run.name for run in TABLE]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", help="a row; all if absent")
    parser.add_argument("--list", action="store_true", help="print the names of the rows")
    args = parser.parse_args()
    if args.list:
        print("\n".join(names))
        return 0
    if args.name is not None and args.name not in names:
        parser.error(f"no row '{args.name}'; --list prints the names")
    if not program().exists():
        parser.error(f"{program()} is missing: make builds it")
    with tempfile.TemporaryDirectory(prefix="dmuon-reproduce-") as scratch:
        return 0 if run_rows(args.name, Path(scratch)) else 1


if __name__ == "__main__":
    sys.exit(main())
