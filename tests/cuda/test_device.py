"""Which device and transport a run takes, and what is refused before anything is created."""
import json
import re
import subprocess

import pytest

from standin import LIBRARIES, ROOT, TRAIN, environment, needs_build, start

pytestmark = needs_build
SHORT = ("threads=1", "train.steps=1", "batch.global=4", "batch.seq_len=8")


def mesh(replicate=1, shard=1):
    return [f"mesh.replicate={replicate}", f"mesh.shard={shard}"]


def gpu_here():
    return subprocess.run(["nvidia-smi", "-L"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode == 0


def start_record(run_dir):
    return json.loads((run_dir / "log.jsonl").read_text().splitlines()[0])


def refused(ranks, run_dir, *arguments, **options):
    """Exit 2 with one message, and nothing made."""
    code, err = start(ranks, run_dir, *SHORT, *arguments, **options)
    lines = [line for line in err.splitlines() if line.startswith("dmuon-train: ")]
    assert code == 2 and len(lines) == 1 and not run_dir.exists(), f"exit {code}\n{err}"
    return lines[0]


def without_a_gpu():
    try:
        return not gpu_here()
    except FileNotFoundError:
        return True


no_gpu = pytest.mark.skipif(not without_a_gpu(), reason="this machine has a GPU")


@no_gpu
@pytest.mark.parametrize("ranks", [1, 4])
def test_cuda_without_a_gpu_is_one_clear_error(ranks, tmp_path):
    line = refused(ranks, tmp_path / "run", *mesh(shard=ranks), "device=cuda")
    assert re.fullmatch(r"dmuon-train: (rank 0 \(\S+\): )?device: cuda needs a GPU, and there is none here: .+", line)


@no_gpu
def test_auto_without_a_gpu_takes_the_cpu_and_says_so(tmp_path):
    code, err = start(2, tmp_path / "run", *SHORT, *mesh(shard=2))
    record = start_record(tmp_path / "run")
    assert code == 0 and record["device"].startswith("cpu ") and "needs a GPU" in record["device_reason"], err
    assert "auto: cpu " in err and "since device: cuda needs a GPU" in err


def test_auto_takes_a_gpu_that_is_there(tmp_path):
    code, err = start(2, tmp_path / "run", *SHORT, *mesh(shard=2), seed=1)
    record = start_record(tmp_path / "run")
    assert code == 0 and (record["device"], record["device_reason"]) == ("cuda CUDA stand-in", "a GPU is there"), err
    assert record["peak_flops"] is None  # of a GPU that is not in the list


def test_nccl_wants_a_gpu_for_each_rank(tmp_path):
    line = refused(4, tmp_path / "run", *mesh(shard=4), seed=1, DM_STANDIN_DEVICES=2)
    assert "2 ranks of this node would share one GPU" in line and "comm.transport: mpi" in line


def test_with_mpi_ranks_may_share_a_gpu(tmp_path):
    code, err = start(4, tmp_path / "run", *SHORT, *mesh(shard=4), "comm.transport=mpi", seed=1, DM_STANDIN_DEVICES=2)
    assert code == 0, err


def test_nccl_on_the_cpu_is_refused(tmp_path):
    assert "moves the memory of GPUs" in refused(1, tmp_path / "run", *mesh(), "device=cpu", "comm.transport=nccl")


def test_the_plan_is_compared_with_the_memory_of_the_gpu(tmp_path):
    line = refused(2, tmp_path / "run", *mesh(shard=2), seed=1, DM_STANDIN_MEMORY=1 << 20)
    assert "1 rank of this GPU plans" in line and "of the 1.0 MiB available" in line


def undefined_symbols(path):
    done = subprocess.run(["nm", "-D", "--undefined-only", str(path)], stdout=subprocess.PIPE, text=True, check=True)
    return {line.split()[-1].split("@")[0] for line in done.stdout.splitlines()}


def exports(path):
    done = subprocess.run(["nm", "-D", "--defined-only", str(path)], stdout=subprocess.PIPE, text=True, check=True)
    return {line.split()[-1].split("@")[0] for line in done.stdout.splitlines()}


def test_the_stand_ins_have_every_symbol_that_the_program_takes_from_cuda():
    needed = {s for s in undefined_symbols(TRAIN) if re.match(r"_*(cuda|nccl|cublas)", s)}
    there = set().union(*(exports(LIBRARIES / f"lib{name}.so.{n}") for name, n in (("cudart", 13), ("nccl", 2), ("cublasLt", 13))))
    assert len(needed) > 30 and "ncclSend" in needed and "cudaMalloc" in needed
    assert needed - there == set()


def test_the_program_finds_the_real_libraries_by_itself():
    done = subprocess.run(["readelf", "-d", str(TRAIN)], stdout=subprocess.PIPE, text=True, check=True)
    assert "RUNPATH" in done.stdout and "RPATH" not in done.stdout.replace("RUNPATH", "")
    listed = subprocess.run(["ldd", str(TRAIN)], env=environment(), cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert "not found" not in listed and "standin" not in listed
