"""The CUDA build of this tree on the stand-ins: GPUs, the run-time library and NCCL on the CPU (tests/cuda_standin)."""
import os
import shutil
import subprocess

import pytest

import helpers
from helpers import ROOT, finish, launch, records

BUILD = ROOT / os.environ.get("DM_CUDA_BUILD", "build/release-cuda")
LIBRARIES = BUILD / "standin"
TRAIN = BUILD / "bin" / "dmuon-train"
GRAPH_CALLS = {"cudaStreamBeginCapture", "cudaStreamEndCapture", "cudaGraphInstantiate", "cudaGraphLaunch"}
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
    env = {k: v for k, v in helpers.environment().items() if not k.startswith("DM_STANDIN")}
    if seed is not None:
        env.update(LD_LIBRARY_PATH=str(LIBRARIES), DM_STANDIN_KERNELS=str(LIBRARIES / "libkernels_emu.so"), DM_STANDIN_SEED=str(seed))
    env.update({k: str(v) for k, v in extra.items()})
    return env


def start(ranks, run_dir, *arguments, seed=None, timeout=120, binary=TRAIN, **extra):
    """A run of configs/bits-tiny.yaml to its end: (exit code, stderr). One that does not end is killed, and the test fails."""
    command = [*launch(ranks), str(binary), "configs/bits-tiny.yaml", f"run.dir={run_dir}", *arguments]
    process = subprocess.Popen(command, env=environment(seed, **extra), cwd=ROOT, text=True, errors="replace", stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    done = finish(process, timeout)
    return done.returncode, done.stderr


def run(ranks, run_dir, *arguments, seed=None):
    """The steps of a run that must succeed."""
    code, err = start(ranks, run_dir, *arguments, seed=seed)
    assert code == 0, f"seed {seed}: exit {code}\n{err}"
    return steps_of(run_dir)


def steps_of(run_dir):
    """{step: (bits of the loss, of the gradient norm, hash of all state)}"""
    return {r["step"]: (r["loss_bits"], r["grad_sumsq_bits"], r["params_hash"]) for r in records(run_dir, "step")}
