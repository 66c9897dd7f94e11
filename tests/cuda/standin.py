"""The CUDA build of this tree on the stand-ins: GPUs, the run-time library and NCCL on the CPU (tests/cuda_standin)."""
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("DM_CUDA_BUILD", "build/release-cuda")
LIBRARIES = BUILD / "standin"
TRAIN = BUILD / "bin" / "dmuon-train"
LAUNCH = ["mpirun", "-q", "--oversubscribe", "--bind-to", "none"]
NEEDS = "the CUDA tests need a build with CUDA=1 (nvcc), which is not there"

needs_build = pytest.mark.skipif(not (LIBRARIES / "libkernels_emu.so").exists(), reason=NEEDS)


def first_seed():
    """Seeds move on with each commit, so that all are tried in time; DM_CUDA_SEED repeats one."""
    if "DM_CUDA_SEED" in os.environ:
        return int(os.environ["DM_CUDA_SEED"])
    git = shutil.which("git")
    done = subprocess.run([git or "false", "rev-parse", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return int(done.stdout[:6], 16) % 100000 + 1 if done.returncode == 0 else 1


def environment(seed=None, **extra):
    """Of a process on the stand-ins; without a seed, of one that finds the real libraries."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "DMUON_", "OMP_NUM", "DM_STANDIN"))}
    env.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    env.setdefault("OMPI_MCA_btl_vader_single_copy_mechanism", "none")
    if seed is not None:
        env.update(LD_LIBRARY_PATH=str(LIBRARIES), DM_STANDIN_KERNELS=str(LIBRARIES / "libkernels_emu.so"), DM_STANDIN_SEED=str(seed))
    env.update({k: str(v) for k, v in extra.items()})
    return env


def launch(ranks):
    return [] if ranks == 1 else [*LAUNCH, "-np", str(ranks)]


def start(ranks, run_dir, *arguments, seed=None, timeout=120, binary=TRAIN, **extra):
    """A run of configs/bits-tiny.yaml to its end: (exit code, stderr). One that does not end is killed, and the test fails."""
    command = [*launch(ranks), str(binary), "configs/bits-tiny.yaml", f"run.dir={run_dir}", *arguments]
    process = subprocess.Popen(command, env=environment(seed, **extra), cwd=ROOT, text=True, errors="replace", stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        pytest.fail(f"{command}, seed {seed}: not done after {timeout} s\n{out}\n{err}")
    return process.returncode, err


def run(ranks, run_dir, *arguments, seed=None):
    """The steps of a run that must succeed."""
    code, err = start(ranks, run_dir, *arguments, seed=seed)
    assert code == 0, f"seed {seed}: exit {code}\n{err}"
    return steps_of(run_dir)


def steps_of(run_dir):
    """{step: (bits of the loss, of the gradient norm, hash of all state)}"""
    records = [json.loads(line) for line in (run_dir / "log.jsonl").read_text().splitlines()]
    return {r["step"]: (r["loss_bits"], r["grad_sumsq_bits"], r["params_hash"]) for r in records if r["event"] == "step"}
