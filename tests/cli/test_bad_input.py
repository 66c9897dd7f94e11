"""Every bad input ends before training, once, with cause and remedy, the same exit code on one rank and on four, within seconds, and
with nothing created or changed."""
import os
import shutil
import signal
import struct
import subprocess
import time

import pytest

from helpers import (CKPT, STOPPED, TINY, TRAIN, finish, has_step, mesh_keys, read_set, records, run_mesh, set_dir, set_names, start, steps,
                     train, tree, wait_for, warnings)

SECONDS = 20  # on a loaded machine; a wait for a lost rank would take comm.timeout_s = 600
MODEL = """model:
  {{family: llama, d_model: 64, n_layers: 2, n_heads: 8, n_kv_heads: {kv}, head_dim: {head}, d_ff: 176, vocab_size: 256, max_seq_len: 2048}}
mesh: {{replicate: 1, shard: 1}}
batch: {{global: 16, micro: 1, seq_len: 32}}
data: {{train: configs/data/kjv_train.txt}}
train: {{steps: 3}}
"""


def refused(ranks, arguments, code, parts, config=TINY, env=None):
    """Runs and compares; `arguments` come last, so that they win over the mesh that fits."""
    began = time.monotonic()
    done = train(ranks, "threads=1", *mesh_keys((1, ranks)), *arguments, config=config, env=env)
    assert time.monotonic() - began < SECONDS
    assert done.returncode == code, f"exit {done.returncode}, not {code}\n{done.stdout}{done.stderr}"
    missing = [part for part in parts if part not in done.stderr]
    assert not missing, f"{missing} not in\n{done.stderr}"
    assert done.stderr.count("dmuon-train: ") == 1, done.stderr
    return done


def write(path, text):
    path.write_text(text)
    return path


def shard(path, words, ids, width=2, extra=b""):
    header = list(words) + [0] * (256 - len(words))
    path.write_bytes(struct.pack("<256i", *header) + b"".join(i.to_bytes(width, "little") for i in ids) + extra)
    return path


def good_ids(n=4096):
    return [i % 251 for i in range(n)]


# ---- the command line and the configuration: exit 2 ----

CUDA = "cuda" in subprocess.run([TRAIN, "--version"], capture_output=True, text=True, check=True).stdout
NO_CUDA = "needs a GPU" if CUDA else "is not built into this program"

CONFIGURATION = {
    "ranks and mesh": (["mesh.replicate=3", "mesh.shard=5", "batch.global=30"], ["needs 15 ranks", "a mesh that fits"]),
    "mesh and auto": (["mesh.replicate=3", "mesh.shard=auto", "batch.global=48"], ["needs a multiple of 3 ranks", "a mesh that fits"]),
    "global batch": (["batch.global=15", "batch.micro=4"], ["batch.global", "multiple", "nearest legal value is 16"]),
    "segments": (["numerics.segments=6"], ["numerics.segments", "power of two"]),
    "seq_len": (["batch.seq_len=4096"], ["batch.seq_len", "model.max_seq_len = 2048"]),
    "all hyper-parameters at once": (["optimizer.muon.lr=-1", "optimizer.muon.momentum=1", "optimizer.adamw.betas=[0.9, 1.5]",
                                      "optimizer.adamw.eps=0", "optimizer.clip.max_norm=-2", "optimizer.muon.ns.steps=0",
                                      "optimizer.schedule.min_ratio=2", "train.steps=0"],
                                     ["optimizer.muon.lr=-1", "optimizer.muon.momentum=1", "optimizer.adamw.betas=", "optimizer.adamw.eps=0",
                                      "optimizer.clip.max_norm=-2", "optimizer.muon.ns.steps=0", "optimizer.schedule.min_ratio=2",
                                      "train.steps=0"]),
    "cuda": (["device=cuda"], ["device: cuda", NO_CUDA]),
    "nccl on the cpu": (["device=cpu", "comm.transport=nccl"], ["comm.transport", "device is cpu"]),
    "gradients in bf16": (["numerics=fast", "precision.grad_reduce=bf16"], ["precision.grad_reduce", "not built yet"]),
    "tf32 on a cpu": (["numerics=fast", "precision.compute=tf32"], ["precision.compute=tf32", "needs device: cuda"]),
    "tp": (["mesh.tp=3"], ["mesh.tp=3", "must divide n_heads = 8", "legal values: 1, 2, 4"]),
    "tp and segments": (["mesh.tp=4", "numerics.segments=2"], ["mesh.tp=4", "segments = 2", "legal values: 1, 2"]),
    "exact with bf16": (["precision.wire=bf16"], ["precision.wire", "exact requires f32"]),
    "exact with native": (["comm.reduce=native"], ["comm.reduce", "exact requires canonical"]),
    "eval without data": (["train.eval_every=2", "data.val="], ["train.eval_every", "needs data.val"]),
    "a prompt in words for ids": (["model.vocab_size=300", "train.sample_every=2", "train.sample_prompt=In the"],
                                  ["train.sample_prompt", "In the", "token ids from 0 to 299"]),
    "unknown key": (["optimizer.muon.momentun=0.9"], ["optimizer.muon.momentun", "optimizer.muon.momentum"]),
    "misplaced key": (["momentum=0.9"], ["momentum", "optimizer.muon.momentum"]),
    "wrong type": (["train.steps=many"], ["train.steps=many"]),
    "a glob without a matrix": (["optimizer.muon.match=[nothing.*]"], ["nothing.*"]),
    "a glob of norms": (['optimizer.muon.match=["model.layers.*.input_layernorm.weight"]'], ["input_layernorm"]),
    "unknown option": (["--fast"], ["--fast", "unknown option", "usage:"]),
    "two configurations": (["other.yaml"], ["other.yaml", "only one configuration file"]),
    "two commands": (["--eval", "--sample"], ["only one of"]),
    "memory": (["model=models/llama-7b.yaml", "batch.seq_len=512"], ["95 %", "MiB per rank", "lowered by", "weights"]),
}


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("case", CONFIGURATION)
def test_configuration(case, ranks, tmp_path):
    arguments, parts = CONFIGURATION[case]
    refused(ranks, [f"run.dir={tmp_path / 'run'}", *arguments], 2, parts)
    assert tree(tmp_path) == {}


FILES = {
    "odd head_dim": (MODEL.format(kv=8, head=7), ["head_dim", "even"]),
    "kv heads": (MODEL.format(kv=3, head=8), ["n_kv_heads", "divide"]),
    "unknown key": (MODEL.format(kv=8, head=8) + "trian: {steps: 3}\n", ["c.yaml:7", "trian", "train"]),
    "duplicate key": (MODEL.format(kv=8, head=8) + "train: {steps: 4}\n", ["c.yaml:7", "train", "first given in line 6"]),
    "misplaced key": (MODEL.format(kv=8, head=8) + "steps: 4\n", ["c.yaml:7", "steps", "train.steps"]),
    "no YAML": ("model: {\n", ["c.yaml:"]),
    "no model": ("data: {train: configs/data/kjv_train.txt}\nmesh: {shard: 1}\n", ["model"]),
    "no such model": ("model: models/none.yaml\ndata: {train: configs/data/kjv_train.txt}\n", ["models/none.yaml"]),
}


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("case", FILES)
def test_configuration_file(case, ranks, tmp_path):
    text, parts = FILES[case]
    config = write(tmp_path / "c.yaml", text)
    before = tree(tmp_path)
    refused(ranks, [f"run.dir={tmp_path / 'run'}"], 2, parts, config=config)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("ranks", [1, 4])
def test_no_configuration(ranks):
    done = finish(start(ranks, config=None))
    assert done.returncode == 2 and "a configuration file is needed" in done.stderr and "usage:" in done.stderr
    assert done.stderr.count("dmuon-train: ") == 1, done.stderr
    refused(ranks, [], 2, ["none.yaml", "No such file"], config="none.yaml")


@pytest.mark.parametrize("words", ["four", "0", "4,2", ""])
def test_a_count_of_threads_that_is_none(words, tmp_path):
    refused(2, [f"run.dir={tmp_path / 'run'}", "threads=auto"], 2, [f"OMP_NUM_THREADS={words}:", "1..1024"], env={"OMP_NUM_THREADS": words})
    assert tree(tmp_path) == {}


@pytest.mark.parametrize("ranks", [1, 4])
def test_an_unknown_vector_unit(ranks, tmp_path):
    refused(ranks, [f"run.dir={tmp_path / 'run'}"], 2, ["DMUON_ISA=foo", "avx2", "generic"], env={"DMUON_ISA": "foo"})
    assert tree(tmp_path) == {}


@pytest.mark.parametrize("ranks", [1, 4])
def test_a_start_of_the_job_that_is_no_time(ranks, tmp_path):
    refused(ranks, [f"run.dir={tmp_path / 'run'}"], 2, ["DMUON_JOB_START=today", "seconds since 1970"], env={"DMUON_JOB_START": "today"})
    assert tree(tmp_path) == {}


def test_a_launcher_that_does_not_know_mpi(tmp_path):
    refused(1, [f"run.dir={tmp_path / 'run'}", "mesh.replicate=2", "mesh.shard=2"], 2, ["SLURM_NTASKS is 4", "mpirun", "pmix"],
            env={"SLURM_NTASKS": "4"})
    assert tree(tmp_path) == {}


# ---- data: exit 3 ----


def beyond_the_vocabulary(top):
    ids = good_ids()
    ids[-3] = 256
    return shard(top / "a.bin", [20240520, 1, len(ids)], ids)


DATA = {
    "no file": (lambda t: t / "none-*.txt", ["data.train", "none-*.txt", "no file"]),
    "a directory": (lambda t: t, ["is a directory"]),
    "a name auto cannot judge": (lambda t: write(t / "a.dat", "x" * 999), ["a.dat", ".txt", ".bin", "data.format"]),
    "an empty file": (lambda t: write(t / "a.txt", ""), ["a.txt", "empty"]),
    "magic": (lambda t: shard(t / "a.bin", [7, 1, 4096], good_ids()), ["a.bin", "magic number 7", "20240520"]),
    "version": (lambda t: shard(t / "a.bin", [20240520, 2, 4096], good_ids()), ["a.bin", "version 2", "version 1"]),
    "version of wide ids": (lambda t: shard(t / "a.bin", [20240801, 1, 4096], good_ids(), 4), ["a.bin", "version 1", "version 7"]),
    "too short": (lambda t: shard(t / "a.bin", [20240520, 1, 4097], good_ids()), ["a.bin", "9216 bytes", "9218"]),
    "too long": (lambda t: shard(t / "a.bin", [20240520, 1, 4096], good_ids(), extra=b"x"), ["a.bin", "9217 bytes", "9216"]),
    "no header": (lambda t: write(t / "a.bin", "x" * 1000), ["a.bin", "1000 bytes", "header"]),
    "shorter than a window": (lambda t: write(t / "a.txt", "x" * 32), ["a.txt", "32 tokens", "33"]),
    "one of two files": (lambda t: (write(t / "a.txt", "x" * 999), write(t / "b.txt", "x" * 5)) and t / "*.txt", ["b.txt", "5 tokens"]),
    "an id beyond the vocabulary": (beyond_the_vocabulary, ["a.bin", "token 4093", "byte 9210", "id 256", "vocab_size = 256"]),
}


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("case", DATA)
def test_data(case, ranks, tmp_path):
    make, parts = DATA[case]
    (tmp_path / "data").mkdir()
    data = make(tmp_path / "data")
    before = tree(tmp_path)
    refused(ranks, [f"run.dir={tmp_path / 'run'}", f"data.train={data}"], 3, parts)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("where,ranks", [("training", 1), ("training", 4), ("validation", 4)])
def test_a_bad_id_that_is_met_in_a_step_ends_all_ranks_at_once(where, ranks, tmp_path):
    """More than 2 GiB of ids are checked only as they are used: here by one rank, while the others wait for it."""
    data, count = tmp_path / "big.bin", 1_200_000_000
    with open(data, "wb") as file:  # a sparse file of zeros
        file.write(struct.pack("<256i", 20240520, 1, count, *[0] * 253))
        file.truncate(1024 + 2 * count)
        file.seek(1024 + 2 * (32 * 9 + 5))  # in window 9
        file.write(struct.pack("<H", 300))
    key = "data.train" if where == "training" else "data.val"
    done = refused(ranks, [f"run.dir={tmp_path / 'run'}", f"{key}={data}", "data.shuffle=false", "train.eval_every=1", "train.eval_batches=1"],
                   3, ["big.bin", "token 293", "id 300", "vocab_size = 256", *(["rank "] if ranks > 1 else [])])
    data.unlink()
    assert "time" not in done.stderr.lower()
    assert set_names(tmp_path / "run") == []


# ---- checkpoints and run directories: exit 4 ----


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of four steps with sets of 2 and 4."""
    run = tmp_path_factory.mktemp("made") / "run"
    run_mesh((1, 1), run, "train.steps=4", "checkpoint.every=2")
    return run


@pytest.fixture
def run(made, tmp_path):
    return shutil.copytree(made, tmp_path / "run")


STEPS = ["train.steps=4", "checkpoint.every=2"]


@pytest.mark.parametrize("ranks", [1, 4])
def test_another_run_in_the_same_directory(ranks, run, tmp_path):
    run_mesh((1, 1), tmp_path / "other", "train.steps=4", "checkpoint.every=2", "seed=5")
    shutil.copy(tmp_path / "other" / "log.jsonl", run / "log.jsonl")
    before = tree(tmp_path)
    parts = ["run.dir=", "checkpoint.resume=none"]
    refused(ranks, [f"run.dir={run}", *STEPS], 4, ["no usable checkpoint of that run", *parts])
    refused(ranks, [f"run.dir={run}", *STEPS, f"checkpoint.resume={set_dir(run, 2)}"], 4, ["holds another run", *parts])
    assert tree(tmp_path) == before


@pytest.mark.parametrize("ranks", [1, 4])
def test_a_log_without_a_set(ranks, tmp_path):
    run_mesh((1, 1), tmp_path / "run", "train.steps=2")
    before = tree(tmp_path)
    refused(ranks, [f"run.dir={tmp_path / 'run'}", "train.steps=2"], 4, ["log.jsonl but no usable", "run.dir=", "checkpoint.resume=none"])
    assert tree(tmp_path) == before


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("command", ["resume", "eval", "init_from"])
def test_a_missing_checkpoint(ranks, command, tmp_path):
    path = tmp_path / "nowhere"
    argument = {"resume": f"checkpoint.resume={path}", "eval": f"--eval={path}", "init_from": f"checkpoint.init_from={path}"}[command]
    refused(ranks, [f"run.dir={tmp_path / 'run'}", argument], 4, ["nowhere"])
    assert tree(tmp_path) == {}


@pytest.mark.parametrize("ranks", [1, 4])
def test_another_architecture(ranks, run, tmp_path):
    before = tree(tmp_path)
    parts = ["model.n_layers: saved 2, now 3", "can never change"]
    refused(ranks, [f"run.dir={run}", *STEPS, "model.n_layers=3"], 4, parts)
    refused(ranks, [f"run.dir={tmp_path / 'new'}", "model.n_layers=3", f"checkpoint.resume={set_dir(run, 2)}"], 4, parts)
    refused(ranks, [f"run.dir={tmp_path / 'new'}", "model.n_layers=3", f"checkpoint.init_from={set_dir(run, 2)}"], 4,
            ["num_hidden_layers", "2", "3"])
    assert tree(tmp_path) == before


@pytest.mark.parametrize("ranks", [1, 4])
def test_a_damaged_checkpoint(ranks, run, tmp_path):
    file = set_dir(run, 4) / "optim-00001-of-00001.safetensors"
    data = bytearray(file.read_bytes())
    data[-9] ^= 64
    file.write_bytes(data)
    before = tree(tmp_path)
    named = [f"run.dir={tmp_path / 'new'}", f"checkpoint.resume={set_dir(run, 4)}"]
    refused(ranks, named, 4, [file.name, "damaged", "tensor exp_avg_sq.lm_head.weight"])
    assert tree(tmp_path) == before
    file.write_bytes(data[:-4])
    refused(ranks, named, 4, [file.name, "bytes", "trainer.json says"])


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("place", ["below a file", "below /proc"])
def test_an_unwritable_run_directory(ranks, place, tmp_path):
    (tmp_path / "file").write_text("x")
    before = tree(tmp_path)
    top = tmp_path / "file" if place == "below a file" else "/proc/none"
    refused(ranks, [f"run.dir={top}/run"], 2, [f"{top}", "run.dir"])
    assert tree(tmp_path) == before


@pytest.mark.parametrize("ranks", [1, 4])
def test_a_live_lock(ranks, tmp_path):
    run = tmp_path / "run"
    first = start(1, f"run.dir={run}", *mesh_keys((1, 1)), "train.steps=100000", "log.params_hash_every=0")
    try:
        wait_for(lambda: has_step(run, 1), first)
        lock = (run / "lock").read_text()
        refused(ranks, [f"run.dir={run}"], 4, [f"{run} is in use by pid {first.pid} on host", "run.dir="])
        assert (run / "lock").read_text() == lock
    finally:
        os.kill(first.pid, signal.SIGUSR1)
    done = finish(first)
    assert done.returncode == STOPPED, done.stderr
    numbers = sorted(steps(run))
    assert numbers == list(range(1, numbers[-1] + 1)) and set_names(run) == [f"step-{numbers[-1]:08d}"]


# ---- numbers: exit 5 ----

# decay alone multiplies the weights of AdamW by -10^12 in each step: binary32 ends at 10^38
BLOW_UP = ["optimizer.adamw.lr=1e6", "optimizer.adamw.weight_decay=1e6", "optimizer.schedule.kind=constant"]


@pytest.mark.parametrize("ranks", [1, 4])
def test_numbers_that_are_not_finite_stop_the_run(ranks, tmp_path):
    run = tmp_path / "run"
    done = train(ranks, "threads=1", *mesh_keys((1, ranks)), f"run.dir={run}", "checkpoint.every=1", "checkpoint.keep=0", *BLOW_UP)
    assert done.returncode == 5, done.stderr
    last = max(steps(run))
    for part in (f"step {last + 1}: loss", "first tensor with a non-finite gradient: ", "the last checkpoint is intact",
                 "train.nonfinite=skip"):
        assert part in done.stderr, done.stderr
    assert done.stderr.count("dmuon-train: ") == 1, done.stderr
    assert set_names(run)[-1] == f"step-{last:08d}"
    assert subprocess.run([CKPT, "verify", set_dir(run, last)], check=False, capture_output=True).returncode == 0
    assert records(run, "end")[-1]["exit_code"] == 5


def test_steps_that_are_not_finite_are_skipped_and_counted(tmp_path):
    run = tmp_path / "run"
    run_mesh((1, 2), run, "checkpoint.every=10", "train.nonfinite=skip", *BLOW_UP)
    found = records(run, "step")
    assert [r["step"] for r in found] == list(range(1, 11))
    counts = [r["nonfinite"] for r in found]
    first = next(i for i, n in enumerate(counts) if n)
    assert counts == [max(0, i - first + 1) for i in range(10)] and 0 < first < 9
    assert len(warnings(run)) == 10 - first
    state = read_bits(set_dir(run, 10))
    # the state of step 10 is that before the first bad step
    run_mesh((1, 2), tmp_path / "short", f"checkpoint.every={first}", f"train.steps={first}", "train.nonfinite=skip", *BLOW_UP)
    assert read_bits(set_dir(tmp_path / "short", first)) == state


def read_bits(directory):
    return {name: array.tobytes() for name, array in read_set(directory).items()}


# ---- a full disk ----


@pytest.fixture
def small_disk(tmp_path):
    """small_disk(size): a file system of its own, as root."""
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no tmpfs of our own: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place, left):
    """Leaves `left` bytes free."""
    info = os.statvfs(place)
    (place / "filler").write_bytes(bytes(info.f_bavail * info.f_frsize - left))


STATE_BYTES = 4 * (2 * 256 * 64 * 3 + 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 176) * 2 + 5 * 64 * 3)


@pytest.mark.parametrize("background", ["true", "false"])
@pytest.mark.parametrize("left,reason", [(STATE_BYTES // 2, "a checkpoint needs"), (STATE_BYTES + 24576, "No space left")],
                         ids=["seen before", "met while writing"])
def test_a_full_disk_is_a_warning_until_the_last_save(left, reason, background, small_disk):
    run = small_disk / "run"
    run_mesh((1, 2), run, "train.steps=2", "checkpoint.every=2", "optimizer.schedule.kind=constant")
    flight = sum(f.stat().st_blocks * 512 for f in (run / "flight").iterdir())  # the next start writes its own beside them
    fill(small_disk, left + flight)
    done = run_mesh((1, 2), run, "train.steps=7", "checkpoint.every=2", "optimizer.schedule.kind=constant",
                    f"checkpoint.background={background}", "log.params_hash_every=0", code=4)
    assert "the checkpoint of step 7 could not be saved" in done.stderr and reason in done.stderr
    said = [w for w in warnings(run) if "could not be saved, training goes on" in w]
    assert len(said) == 2 and "step 4" in said[0] and "step 6" in said[1] and all(reason in w for w in said), said
    assert sorted(steps(run)) == list(range(1, 8))
    assert set_names(run) == ["step-00000002"]
    (small_disk / "filler").unlink()
    run_mesh((1, 2), run, "train.steps=7", "checkpoint.every=2", "optimizer.schedule.kind=constant")
    assert sorted(steps(run)) == list(range(1, 8)) and set_names(run) == ["step-00000006", "step-00000007"]
