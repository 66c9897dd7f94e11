#!/usr/bin/env python3
"""Checks and measures the CUDA backend on a machine with a GPU, in one command and a few minutes.

usage: gpu_check.py bundle DIR    here, after `make CUDA=1 gpu-programs`: what a GPU machine without Open MPI, libyaml or cJSON needs
       gpu_check.py run [DIR]     there: checks, then figures; without DIR the programs of this tree
DM_BUILD names the build directory (build/release-cuda). `run` writes OUT/gpu_check.json (OUT: the environment variable OUT, else
the current directory), prints a table, and exits with 0 when every check passed, 1 otherwise. Figures are no checks.

CUDA's own libraries are not in the bundle: they are looked for in LD_LIBRARY_PATH, in a toolkit, and beside Python's packages.
"""
import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / os.environ.get("DM_BUILD", "build/release-cuda")
PROGRAMS = {"bin/dmuon-train": "bin/dmuon-train", "bin/test_kernels": "cuda/test_kernels", "bin/bench_device": "cuda/bench_device",
            "bin/products_fast": "cuda/products_fast", "bin/attention_fast": "cuda/attention_fast",
            "bin/newton_schulz_fast": "cuda/newton_schulz_fast", "bin/bench_products": "cuda/bench_products"}
FILES = ["configs/bits-tiny.yaml", "configs/kjv-one.yaml", "configs/data/kjv_train.txt", "configs/data/kjv_val.txt", "scripts/gpu_check.py",
         "scripts/gpu_torch.py", *[f"models/llama-{size}.yaml" for size in ("tiny", "1m", "124m", "1b")]]
NOT_OURS = re.compile(r"lib(cudart|cublas|cublasLt|nccl|cuda|nvidia[a-z-]*|c|m|dl|rt|pthread|stdc\+\+|gcc_s)\.so|ld-linux")
CUDA_LIBRARIES = ("libcudart.so.13", "libcublasLt.so.13", "libnccl.so.2")
LIMIT_S = 460  # of the whole command
STEPS = 10
ONE_RANK = ["mesh.replicate=1", "mesh.shard=1"]
BITS = ["threads=1", f"train.steps={STEPS}", "checkpoint.every=0", "train.eval_every=0"]
SPEED = ["threads=1", "train.eval_every=0", "train.sample_every=0", "checkpoint.every=0", *ONE_RANK]
BF16 = ["numerics.mode=fast", "precision.compute=bf16", "precision.wire=bf16"]
# name: model, keys; a step's tokens are batch.global * batch.seq_len
TRAININGS = {
    "llama-124m exact": ("llama-124m", ["batch.global=8", "batch.micro=8", "batch.seq_len=1024", "train.steps=4"]),
    "llama-124m bf16": ("llama-124m", ["batch.global=32", "batch.micro=16", "batch.seq_len=1024", "train.steps=8", *BF16]),
    "llama-1b bf16": ("llama-1b", ["batch.global=8", "batch.micro=4", "batch.seq_len=2048", "train.steps=5", *BF16]),
}
WARM_UP = 2  # steps: kernels are loaded, then graphs recorded


class Failed(Exception):
    """A check that did not pass, or a figure that could not be taken; the text says why."""


# ---- the bundle ----


def linked(program: Path) -> list[Path]:
    text = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
    return [Path(path) for name, path in re.findall(r"(\S+) => (/\S+)", text) if not NOT_OURS.match(name)]


def copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, target)


def open_mpi_paths() -> dict[str, Path]:
    text = subprocess.run(["ompi_info", "--parsable", "--path", "all"], check=True, capture_output=True, text=True).stdout
    return {name: Path(path) for name, path in re.findall(r"^path:(\w+):(/\S+)$", text, re.M)}


def bundle_launcher(top: Path) -> None:
    """mpirun with its components, below top as they are below Open MPI's prefix."""
    paths = open_mpi_paths()
    place = lambda path: top / "mpi" / path.relative_to(paths["prefix"])
    for name in ("orterun", "orted"):
        program = (paths["bindir"] / name).resolve()
        copy(program, place(paths["bindir"] / ("mpirun" if name == "orterun" else name)))
        for library in linked(program):
            copy(library, top / "lib" / library.name)
    for component in paths["pkglibdir"].glob("*.so"):
        copy(component.resolve(), place(component))
        for library in linked(component):
            copy(library, top / "lib" / library.name)
    shutil.copytree(paths["pkgdatadir"], place(paths["pkgdatadir"]), dirs_exist_ok=True)


def bundle(top: Path) -> None:
    if top.exists():
        sys.exit(f"gpu_check.py: {top} exists already; remove it, or name another directory")
    for name, built in PROGRAMS.items():
        if not (BUILD / built).exists():
            sys.exit(f"gpu_check.py: {BUILD / built} is not there: `make CUDA=1 gpu-programs` builds it")
        copy(BUILD / built, top / name)
        for library in linked(BUILD / built):
            copy(library, top / "lib" / library.name)
    for name in FILES:
        copy(ROOT / name, top / name)
    bundle_launcher(top)
    (top / "expected.json").write_text(json.dumps(train(Place(None), 1, ["device=cpu", *ONE_RANK, *BITS])["bits"]))
    nbytes = sum(path.stat().st_size for path in top.rglob("*") if path.is_file())
    print(f"{top}: {nbytes / 2**20:.1f} MiB; there: python3 {top.name}/scripts/gpu_check.py run {top.name}")


# ---- running ----


class Place:
    """Where the programs are, and the environment that they run in."""

    def __init__(self, top: Path | None):
        self.top = top.resolve() if top else ROOT
        self.bundled = top is not None
        self.programs = {name: self.top / name if top else BUILD / built for name, built in PROGRAMS.items()}
        mpi = self.top / "mpi"
        self.mpirun = next(mpi.rglob("bin/mpirun")) if self.bundled else "mpirun"
        self.env = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                        OMPI_MCA_btl_vader_single_copy_mechanism="none")
        if self.bundled:
            libraries = [str(self.top / "lib"), *filter(None, [os.environ.get("LD_LIBRARY_PATH")]), *cuda_folders()]
            self.env.update(LD_LIBRARY_PATH=":".join(libraries), OPAL_PREFIX=str(mpi), OMPI_MCA_plm="isolated")

    def run(self, command: list, limit_s: float) -> str:
        try:
            done = subprocess.run([str(word) for word in command], cwd=self.top, env=self.env, capture_output=True, text=True,
                                  errors="replace", check=False, timeout=limit_s)
        except subprocess.TimeoutExpired as late:
            raise Failed(f"no end within {limit_s:.0f} s") from late
        if done.returncode != 0:
            raise Failed(f"exit {done.returncode}: {(done.stdout + done.stderr)[-800:]}")
        return done.stdout


def cuda_folders() -> list[str]:
    """Folders with CUDA's libraries, each library from the first place that has it."""
    places = [*Path("/usr/local").glob("cuda*/lib64"), *[p for s in sys.path for p in Path(s or ".").glob("nvidia/*/lib")]]
    found = []
    for name in CUDA_LIBRARIES:
        folder = next((str(p) for p in places if (p / name).exists()), None)
        if folder and folder not in found:
            found.append(folder)
    return found


def train(place: Place, ranks: int, keys: list[str], config: str = "configs/bits-tiny.yaml", limit_s: float = 120) -> dict:
    """A run's records: {"bits": [[loss bits, hash of the state], ...], "steps": [...], "start": ...}."""
    with tempfile.TemporaryDirectory() as folder:
        launch = [place.mpirun, "-q", "--oversubscribe", "--bind-to", "none", "-np", ranks] if ranks > 1 else []
        place.run([*launch, place.programs["bin/dmuon-train"], config, f"run.dir={folder}/run", *keys], limit_s)
        records = [json.loads(line) for line in (Path(folder) / "run" / "log.jsonl").read_text().splitlines()]
    steps = [r for r in records if r["event"] == "step"]
    return {"bits": [[r["loss_bits"], r.get("params_hash")] for r in steps], "steps": steps, "start": records[0]}


def same_bits(place: Place, expected: list, ranks: int, keys: list[str]) -> str:
    found = train(place, ranks, ["device=cuda", *BITS, *keys])["bits"]
    if found != expected:
        first = next((i for i, (a, b) in enumerate(zip(found, expected)) if a != b), min(len(found), len(expected)))
        raise Failed(f"step {first + 1}: {found[first:first + 1]} on the GPU, {expected[first:first + 1]} on the CPU")
    return f"{len(found)} steps"


def speed(place: Place, model: str, keys: list[str]) -> dict:
    run = train(place, 1, ["device=cuda", f"model=models/{model}.yaml", *SPEED, *keys], config="configs/kjv-one.yaml", limit_s=150)
    steps = sorted(run["steps"][WARM_UP:], key=lambda r: r["step_ms"])
    middle = steps[len(steps) // 2]
    return {"tokens_per_s": round(middle["tokens"] / middle["step_ms"] * 1e3), "step_ms": round(middle["step_ms"], 1), "mfu": middle["mfu"],
            "optimizer_share": round(middle["phase_ms"]["optimizer"] / middle["step_ms"], 3)}


def torch_speed(place: Place, model: str, keys: list[str], limit_s: float) -> dict:
    numbers = dict(key.split("=") for key in keys if key.startswith("batch."))
    command = [sys.executable, place.top / "scripts/gpu_torch.py", place.top / f"models/{model}.yaml", numbers["batch.global"],
               numbers["batch.micro"], numbers["batch.seq_len"]]
    return json.loads(place.run(command, limit_s).splitlines()[-1])


# ---- the command ----


class Report:
    """Outcomes as they come, within the time."""

    def __init__(self):
        self.start = time.monotonic()
        self.rows = {}

    def add(self, name: str, check: bool, function, *arguments) -> object:
        began = time.monotonic()
        try:
            if began - self.start > LIMIT_S:
                raise Failed("no time was left")
            value, error = function(*arguments), None
        except (Failed, OSError, ValueError, KeyError, StopIteration) as problem:
            value, error = None, f"{type(problem).__name__}: {problem}"
        self.rows[name] = {"check": check, "ok": error is None, "value": value, "error": error, "seconds": round(time.monotonic() - began, 1)}
        shown = value if error is None else error
        print(f"{name:<34} {'ok' if error is None else 'FAILED' if check else 'no figure':<10} {shown}", flush=True)
        return value

    def passed(self) -> bool:
        return all(row["ok"] for row in self.rows.values() if row["check"])


def describe_gpu(place: Place) -> str:
    names = "name,driver_version,memory.total"
    return place.run(["nvidia-smi", f"--query-gpu={names}", "--format=csv,noheader"], 30).strip()


def parity(place: Place) -> str:
    passed = re.findall(r"(\d+) test\(s\) run", place.run([place.programs["bin/test_kernels"]], 150))
    return f"{sum(map(int, passed))} tests"


def rounded(place: Place, program: str, kind: str) -> str:
    place.run([place.programs[program], kind], 60)
    return "within their bound, the same bits from call to call"


def fast_newton_schulz(place: Place) -> str:
    place.run([place.programs["bin/newton_schulz_fast"]], 60)
    return "the same bits in a batch as alone, queued and replayed as a graph"


def bench(place: Place, program: str, words: list[str]) -> dict:
    return json.loads(place.run([place.programs[f"bin/{program}"], *words], 90))


def figures(report: Report, place: Place) -> None:
    for name, program, *words in (("exact products, Newton-Schulz", "bench_device", "cuda"), ("Newton-Schulz in fp16", "bench_device", "cuda", "1", "fast"),
                                  ("cuBLASLt pinned against its best", "bench_products")):
        report.add(name, False, bench, place, program, words)
    for name, (model, keys) in TRAININGS.items():
        report.add(name, False, speed, place, model, keys)
    for name, (model, keys) in TRAININGS.items():
        if "bf16" in name:
            report.add(f"{name}, PyTorch", False, torch_speed, place, model, keys, 120)


def run(top: Path | None) -> int:
    place = Place(top)
    report = Report()
    report.add("GPU", True, describe_gpu, place)
    expected = top / "expected.json" if top else None
    bits = json.loads(expected.read_text()) if expected else train(place, 1, ["device=cpu", *ONE_RANK, *BITS])["bits"]
    report.add("kernels against the CPU's", True, parity, place)
    for kind in ("bf16", "tf32", "large"):
        report.add(f"rounded products, {kind}", True, rounded, place, "bin/products_fast", kind)
        report.add(f"attention by products, {kind}", True, rounded, place, "bin/attention_fast", kind)
    report.add("Newton-Schulz in batches and graphs", True, fast_newton_schulz, place)
    report.add("exact, 1 rank", True, same_bits, place, bits, 1, ONE_RANK)
    report.add("exact, 4 ranks on one GPU", True, same_bits, place, bits, 4, ["mesh.replicate=2", "mesh.shard=2", "comm.transport=mpi"])
    report.add("exact, tp 2 on one GPU", True, same_bits, place, bits, 2, [*ONE_RANK, "mesh.tp=2", "comm.transport=mpi"])
    figures(report, place)
    out = Path(os.environ.get("OUT", ".")) / "gpu_check.json"
    out.write_text(json.dumps(report.rows, indent=1) + "\n")
    print(f"{'all checks passed' if report.passed() else 'a check FAILED'}; written to {out}")
    return 0 if report.passed() else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("bundle").add_argument("dir", type=Path)
    commands.add_parser("run").add_argument("dir", type=Path, nargs="?")
    args = parser.parse_args()
    if args.command == "run":
        return run(args.dir)
    bundle(args.dir)
    return 0


if __name__ == "__main__":
    sys.exit(main())
