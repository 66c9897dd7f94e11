#!/usr/bin/env python3
"""Speed as ratios of one run: prints a table (figure, value, bar, ok) and writes the figures to build/bench.json.

The three programs of tests/bench measure one thread's processor time; whole steps are wall time, two ranks and one in
turn, so that a slow moment of the machine meets both. A figure below its bar is shown and does not fail the command:
on a machine that does other work no wall time is a verdict.
"""
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / os.environ.get("DM_BUILD", "build/release")
BIN = ROOT / os.environ.get("DM_BIN", "bin")
CUDA_BUILD = ROOT / os.environ.get("DM_CUDA_BUILD", "build/release-cuda")
STANDIN = CUDA_BUILD / "standin"

BARS = {
    "gemm_vs_openblas_geomean": 0.90,
    "gemm_vs_openblas_min": 0.75,
    "train_mfu_1rank": 0.70,
    "ns_gram_vs_peak": 0.75,
    "scaling_2ranks": 1.7,
    "tp2_vs_1rank": 1.5,
    "saving_background": 0.87,  # a step grows by less than 15 %
}
# Bars from above.
MOST = {f"launches_per_layer_{way}_{mode}": 40 for way in ("forward", "backward") for mode in ("exact", "fast")}
MOST["launches_per_ns_group_fast"] = 20
# One thread per rank; nothing but steps. The text is bytes, which any vocabulary of at least 256 can read.
STEPS_ONLY = ["threads=1", "train.eval_every=0", "train.sample_every=0", "checkpoint.every=0"]
LLAMA_60M = ["model=models/llama-60m.yaml", "batch.micro=2", "batch.seq_len=512"]
ROUNDS = 2  # of every pair of runs that is compared
WARM_UP = 1  # steps of a run that touch memory for the first time
MESHES = {"1rank": (1, "mesh.shard=1"), "2ranks": (2, "mesh.shard=2"), "tp2": (2, "mesh.tp=2")}
# One leaf of llama-124m on the CUDA stand-ins; a layer asks for the same launches whatever the vocabulary is.
LLAMA_124M = ["device=cuda", "model=models/llama-124m.yaml", "model.vocab_size=256", "batch.micro=1", "batch.global=1",
              "batch.seq_len=1024"]
# What is launched in the step after its n-th mark: model.c marks forward, backward and their end, update.c the end of the
# gradients, of their reduction, and begin and end of the update.
FORWARD, BACKWARD, UPDATE, MARKS = 1, 2, 6, 7
MODES = {"exact": [], "fast": ["numerics.mode=fast", "precision.compute=bf16", "precision.wire=bf16"]}
LAYERS_124M = 12
# Newton-Schulz is queued as it is in the first step, recorded in the second and replayed from the third on.
REPLAYED = 3
TRACED = 2  # the step whose collectives are timed


def fail(what: str) -> None:
    sys.exit(f"bench.py: {what}")


def run(command: list[str], **env: str) -> str:
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        fail(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def program(name: str, *args: str) -> dict:
    print(f"  {name} {' '.join(args)}".rstrip(), file=sys.stderr, flush=True)
    return json.loads(run([str(BUILD / "bench" / name), *args]))


def train(ranks: int, config: str, *overrides: str) -> list[dict]:
    """The records of a run's log."""
    print(f"  dmuon-train on {ranks} rank(s): {' '.join(overrides)}", file=sys.stderr, flush=True)
    directory = tempfile.mkdtemp(prefix="dmuon-bench-")
    try:
        run(["mpirun", "-q", "--oversubscribe", "--bind-to", "none", "-np", str(ranks), str(BIN / "dmuon-train"),
             config, *STEPS_ONLY, f"run.dir={directory}", *overrides])
        records = [json.loads(line) for line in (Path(directory) / "log.jsonl").read_text().splitlines()]
        return records + [tp_share(path) for path in Path(directory).glob("trace-*.json")]
    finally:
        shutil.rmtree(directory)


def tp_share(trace: Path) -> dict:
    """Of a traced step of one rank, the part in which its compute stream was in a collective over the tp axis."""
    spans = [s for s in json.loads(trace.read_text()) if s["ph"] == "X" and s["tid"] == 0]
    length = max(s["ts"] + s["dur"] for s in spans) - min(s["ts"] for s in spans)
    return {"event": "trace", "tp_share": sum(s["dur"] for s in spans if s["name"].startswith("tp ")) / length}


def steps(records: list[dict]) -> list[dict]:
    return [r for r in records if r["event"] == "step"][WARM_UP:]


def step_ms(records: list[dict]) -> list[float]:
    return [r["step_ms"] for r in steps(records)]


def optimizer_ms(records: list[dict]) -> float:
    return statistics.median(r["phase_ms"]["optimizer"] for r in steps(records))


def kernels(figures: dict) -> None:
    gemm = program("bench_gemm")
    leaf = program("bench_train", "llama-60m")
    demo = program("bench_train", "demo", "41")
    newton_schulz = program("bench_newton_schulz")
    for name in ("gemm_vs_openblas_geomean", "gemm_vs_openblas_min"):
        figures[name] = gemm[name]
    figures["gemm_peak_gflops"] = leaf["peak_gflops"]
    figures["train_mfu_1rank"] = leaf["train_mfu_1rank"]
    figures["train_mfu_1rank_demo"] = demo["train_mfu_1rank"]
    figures["ns_gram_vs_peak"] = newton_schulz["ns_gram_vs_peak"]
    for size in newton_schulz["sizes"]:
        figures[f"ns_gram_vs_peak_{size['m']}x{size['n']}"] = size["ratio"]


def scaling(figures: dict) -> None:
    """Whole steps of llama-60m, 8 x 512 tokens: two ranks, sharded or tensor-parallel, against one. A step has the same
    tokens and, in exact mode, the same bits on all three."""
    times: dict[str, list[float]] = {name: [] for name in MESHES}
    optimizer, tp = [], []
    for _ in range(ROUNDS):
        for name, (ranks, mesh) in MESHES.items():
            records = train(ranks, "configs/kjv-one.yaml", *LLAMA_60M, "batch.global=8", mesh, f"train.steps={ranks + 1}",
                            f"log.trace_steps=[{TRACED}]")
            times[name] += step_ms(records)
            if name == "1rank":
                optimizer += [r["phase_ms"]["optimizer"] / r["step_ms"] for r in steps(records)]
            if name == "tp2":
                tp += [r["tp_share"] for r in records if r["event"] == "trace"]
    median = {name: statistics.median(found) for name, found in times.items()}
    figures["scaling_2ranks"] = median["1rank"] / median["2ranks"]
    figures["tp2_vs_1rank"] = median["1rank"] / median["tp2"]
    for name, found in median.items():
        figures[f"step_ms_{name}"] = found
    figures["optimizer_share_1rank"] = statistics.median(optimizer)
    figures["tp_comm_share_tp2"] = statistics.median(tp)


def optimizers(figures: dict) -> None:
    """The update of llama-60m on one rank: Muon for the layers' matrices, or AdamW for all of them but one (Muon
    without a matrix is refused). One leaf a step, for the update does not depend on the batch."""
    small = [*LLAMA_60M, "batch.global=2", "train.steps=3"]
    figures["optimizer_ms_muon"] = optimizer_ms(train(1, "configs/kjv-one.yaml", *small))
    one_matrix = 'optimizer.muon.match=["model.layers.0.self_attn.q_proj.weight"]'
    figures["optimizer_ms_adamw"] = optimizer_ms(train(1, "configs/kjv-one.yaml", *small, one_matrix))


def publishing(figures: dict) -> None:
    """The demo model on two replicas: new weights published behind the next forward pass, or waited for."""
    times: dict[str, list[float]] = {"true": [], "false": []}
    for _ in range(ROUNDS):
        for mode in times:
            records = train(2, "configs/kjv-one.yaml", "mesh.replicate=2", "train.steps=8",
                            f"optimizer.muon.replicate_async={mode}")
            times[mode] += step_ms(records)
    figures["step_ms_async"] = statistics.median(times["true"])
    figures["step_ms_sync"] = statistics.median(times["false"])


def saved_step_ms(records: list[dict], background: bool) -> float:
    """A step and what the save behind it holds up: the copy and the wait for the save before, or all of it."""
    saved = [r for r in records if r["event"] == "checkpoint"]
    held = [r["copy_ms"] + r["save_wait_ms"] + (0 if background else r["write_ms"]) for r in saved[WARM_UP:]]
    return statistics.median(step_ms(records)) + statistics.median(held)


def saving(figures: dict) -> None:
    """Steps of llama-60m, 4096 tokens, one thread: none is saved, or every one, behind the next step or before it. What
    they keep of their speed."""
    saves: dict[str, list[str]] = {"": [], "background": ["checkpoint.every=1"],
                                   "foreground": ["checkpoint.every=1", "checkpoint.background=false"]}
    times: dict[str, list[float]] = {name: [] for name in saves}
    for _ in range(ROUNDS):
        for name, keys in saves.items():
            records = train(1, "configs/kjv-one.yaml", *LLAMA_60M, "batch.global=8", "train.steps=4", *keys)
            times[name].append(saved_step_ms(records, name == "background") if keys else statistics.median(step_ms(records)))
            if name == "background":
                last = [r for r in records if r["event"] == "checkpoint"][-1]
    for name in ("background", "foreground"):
        figures[f"saving_{name}"] = statistics.median(times[""]) / statistics.median(times[name])
    figures["checkpoint_copy_ms"] = last["copy_ms"]
    figures["checkpoint_write_ms"] = last["write_ms"]
    figures["checkpoint_write_mib_per_s"] = last["bytes"] / 2**20 / (last["write_ms"] * 1e-3)


def counts_of(*overrides: str) -> dict:
    """What a run on the stand-ins asks of the device. Its kernels do nothing."""
    print(f"  dmuon-train on the CUDA stand-ins: {' '.join(overrides)}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="dmuon-bench-") as directory:
        counts = Path(directory) / "counts.json"
        run([str(CUDA_BUILD / "bin" / "dmuon-train"), "configs/kjv-one.yaml", *STEPS_ONLY, *LLAMA_124M,
             f"run.dir={directory}/run", *overrides], LD_LIBRARY_PATH=str(STANDIN), DM_STANDIN_COUNTS=str(counts),
            DM_STANDIN_KERNELS=str(STANDIN / "libkernels_emu.so"), DM_STANDIN_SEED="0", DM_STANDIN_SKIP_KERNELS="1")
        return json.loads(counts.read_text())


def launches(counts: dict, mark: int, last: int) -> dict:
    """By kernel, from one mark of the last step, number `last`, to the next."""
    groups = [f"launches after timed record {n}" for n in ((last - 1) * MARKS + mark, last * MARKS + 1)]
    if groups[0] not in counts or groups[1] in counts:
        fail("the marks of a step are not where they were")
    return counts[groups[0]]


def calls(counts: dict) -> int:
    """Without those that poll: how often depends on time."""
    return sum(n for name, n in counts["calls"].items() if not name.endswith("Query"))


def device_work(figures: dict) -> None:
    """Launches and calls that the host queues, as differences: what one more layer, step or matrix asks for."""
    if not (STANDIN / "libkernels_emu.so").exists():
        print(f"  no launches are counted: {STANDIN} is not there (make CUDA=1 all standin)", file=sys.stderr, flush=True)
        return
    for mode, keys in MODES.items():
        before = {n: counts_of(f"train.steps={REPLAYED - 1}", f"model.n_layers={n}", *keys) for n in (1, 2)}
        after = {n: counts_of(f"train.steps={REPLAYED}", f"model.n_layers={n}", *keys) for n in (1, 2)}
        for name, mark in (("forward", FORWARD), ("backward", BACKWARD)):
            one, two = (sum(launches(after[n], mark, REPLAYED).values()) for n in (1, 2))
            figures[f"launches_per_layer_{name}_{mode}"] = two - one
        for name, total in (("launches", lambda counts: sum(counts["kernels"].values())), ("calls", calls)):
            one, two = (total(after[n]) - total(before[n]) for n in (1, 2))
            figures[f"{name}_per_step_{mode}"] = one + (LAYERS_124M - 1) * (two - one)
        figures[f"launches_per_ns_group_{mode}"] = newton_schulz_launches(keys)


def newton_schulz_launches(keys: list[str]) -> int:
    """Of the four square matrices of a layer, which have one owner here. A graph is one launch."""
    down, square = "*.down_proj.weight", ["*.q_proj.weight", "*.k_proj.weight", "*.v_proj.weight", "*.o_proj.weight"]
    before, after = (launches(counts_of(f"train.steps={REPLAYED}", "model.n_layers=1", f"optimizer.muon.match={json.dumps(match)}", *keys),
                              UPDATE, REPLAYED) for match in ([down], [down, *square]))
    return sum(max(0, n - before.get(name, 0)) for name, n in after.items())  # AdamW has fewer


def print_table(figures: dict) -> None:
    print(f"{'figure':<30} {'value':>10} {'bar':>6}  ok")
    for name, value in figures.items():
        bar = BARS.get(name, MOST.get(name))
        verdict = "" if bar is None else "yes" if (value <= bar if name in MOST else value >= bar) else "NO"
        shown = f"{value:.3f}" if value < 100 else f"{value:.0f}"
        print(f"{name:<30} {shown:>10} {'' if bar is None else bar:>6}  {verdict}".rstrip())


def main() -> None:
    figures: dict[str, float] = {}
    for part in (device_work, kernels, scaling, optimizers, publishing, saving):
        part(figures)
    path = ROOT / "build" / "bench.json"
    path.write_text(json.dumps(figures, indent=2) + "\n")
    print_table(figures)
    print(f"written to {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
