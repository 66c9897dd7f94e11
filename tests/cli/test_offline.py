"""The commands that never initialise MPI: what they print, what they refuse and with which exit code, and that they leave nothing behind."""
import fcntl
import json
import os
import shutil
import struct
import subprocess
import time
from pathlib import Path

import pytest

from helpers import ROOT, TRAIN

MODEL = """family: llama
d_model: 32
n_layers: 2
n_heads: 4
n_kv_heads: 2
head_dim: 8
d_ff: 48
vocab_size: 256
max_seq_len: 64
"""
RUN = """model: m.yaml
mesh: {replicate: 1, shard: 1}
batch: {global: 8, micro: 1, seq_len: 16}
data: {train: t.txt, val: v.txt}
train: {steps: 4}
"""
F32 = 4


def run(*args, cwd=ROOT, env=None, timeout=60):
    """The finished process; text captured."""
    return subprocess.run([TRAIN, *map(str, args)], cwd=cwd, env={**os.environ, **(env or {})}, capture_output=True, text=True,
                          timeout=timeout, check=False)


def tree(top: Path):
    """Every path below `top` with what would change if somebody wrote: mode, size, time."""
    return {p.relative_to(top): (p.stat().st_mode, p.stat().st_size, p.stat().st_mtime_ns) for p in top.rglob("*")}


@pytest.fixture(name="place")
def fixture_place(tmp_path):
    """A directory with a small run that could start."""
    (tmp_path / "m.yaml").write_text(MODEL)
    (tmp_path / "a.yaml").write_text(RUN)
    (tmp_path / "t.txt").write_bytes(bytes(range(32, 127)) * 40)
    (tmp_path / "v.txt").write_bytes(bytes(range(32, 127)) * 4)
    return tmp_path


@pytest.fixture(name="trained", scope="module")
def fixture_trained(tmp_path_factory):
    """The same after two steps, with a set after each."""
    top = tmp_path_factory.mktemp("trained")
    (top / "m.yaml").write_text(MODEL)
    (top / "a.yaml").write_text(RUN + "checkpoint: {every: 1, keep: 0}\noptimizer: {schedule: {kind: constant}}\n")
    (top / "t.txt").write_bytes(bytes(range(32, 127)) * 40)
    (top / "v.txt").write_bytes(bytes(range(32, 127)) * 4)
    done = run("a.yaml", "train.steps=2", "threads=1", cwd=top)
    assert done.returncode == 0, done.stderr
    return top


@pytest.fixture(name="resumable")
def fixture_resumable(trained, tmp_path):
    """A copy of the trained run, to be damaged."""
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


# ---- what they print ----


def test_version_names_program_backend_and_mode():
    done = run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, "dmuon-train 0.1.0 (cpu; exact, fast)\n", "")


def test_help_goes_to_stdout():
    done = run("--help")
    assert done.returncode == 0 and done.stdout.startswith("usage: dmuon-train") and done.stderr == ""


def test_help_config_has_a_line_for_every_kind_of_key():
    done = run("--help-config")
    assert done.returncode == 0 and done.stderr == ""
    for key in ("model", "mesh.shard", "parallel.owner.strategy", "optimizer.muon.ns.restarts", "checkpoint.keep", "run.dir"):
        assert any(line.split()[:1] == [key] for line in done.stdout.splitlines()), key


def plan(*args, cwd=ROOT):
    """--plan=json, read strictly."""
    def refuse(word):
        raise AssertionError(f"{word} is not strict JSON")

    done = run("--plan=json", *args, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout, parse_constant=refuse)


def muon_elements(report):
    return sum(p["shape"][0] * p["shape"][1] for p in report["parameters"] if p["role"] == "MUON")


def test_plan_json_has_the_promised_members(place):
    report = plan("a.yaml", "mesh.replicate=2", "mesh.shard=2", cwd=place)
    assert list(report) == ["mesh", "parameters", "load", "bytes_per_rank", "comm_bytes", "flops"]
    assert report["mesh"] == {"replicate": 2, "shard": 2, "tp": 1}
    assert list(report["load"]) == ["max", "mean", "bound"]
    assert len(report["bytes_per_rank"]) == 4
    for rank in report["bytes_per_rank"]:
        assert rank["total"] == sum(v for k, v in rank.items() if k != "total") > 0
    assert report["flops"]["total"] == report["flops"]["model"] + report["flops"]["newton_schulz"] > 0
    names = [p["name"] for p in report["parameters"]]
    assert names[0] == "model.embed_tokens.weight" and names[-1] == "lm_head.weight" and len(names) == 1 + 2 * 9 + 2
    for p in report["parameters"]:
        assert list(p) == ["name", "shape", "role", "owner", "tp_dim", "local_shape", "algorithm", "cost",
                           "distributed"]
        if p["role"] == "ADAMW":
            assert p["owner"] is None and p["algorithm"] is None
            continue
        assert p["role"] == "MUON" and p["algorithm"] in ("gram", "direct") and p["cost"] > 0
        assert 0 <= p["owner"]["shard"] < 2 and 0 <= p["owner"]["replicate"] < 2 and p["owner"]["tp"] == 0
    q_proj = report["parameters"][2]
    assert (q_proj["shape"], q_proj["local_shape"], q_proj["tp_dim"]) == ([32, 32], [32, 32], 0)


def test_plan_json_shows_padded_rows_only_as_local_shape(place):
    (place / "m.yaml").write_text(MODEL.replace("vocab_size: 256", "vocab_size: 251"))
    embedding = plan("a.yaml", cwd=place)["parameters"][0]
    assert (embedding["shape"], embedding["local_shape"]) == ([251, 32], [256, 32])


def test_plan_load_is_that_of_the_owners(place):
    report = plan("a.yaml", "mesh.shard=4", "batch.global=8", cwd=place)
    load = [0.0] * 4
    for p in report["parameters"]:
        if p["owner"]:
            load[p["owner"]["shard"]] += p["cost"]
    assert report["load"]["max"] == pytest.approx(max(load))
    assert report["load"]["mean"] == pytest.approx(sum(load) / 4)
    assert report["load"]["bound"] == pytest.approx(max(sum(load) / 4, max(p["cost"] for p in report["parameters"])))


@pytest.mark.parametrize("reshard", ["true", "false"])
@pytest.mark.parametrize("accumulate", ["reduce", "local"])
def test_plan_traffic_follows_the_formulas(place, reshard, accumulate):
    report = plan("a.yaml", "mesh.replicate=2", "mesh.shard=2", f"parallel.accumulate={accumulate}",
                  f"parallel.reshard_after_forward={reshard}", cwd=place)
    k = 8 // 4
    r = k if accumulate == "reduce" else 1
    f = 2 * k + r if reshard == "true" else 1 + r
    comm = report["comm_bytes"]
    shard = comm["shard"]["broadcast"]["bus_bytes"] + comm["shard"]["reduce"]["bus_bytes"]
    assert shard == 2 * (2 - 1) * f * F32 * muon_elements(report)
    assert comm["replicate"]["reduce"]["bus_bytes"] == F32 * muon_elements(report)
    assert comm["replicate"]["broadcast"]["bus_bytes"] == F32 * muon_elements(report)


def test_plan_in_words_has_every_part(place):
    done = run("a.yaml", "--plan", "mesh.shard=2", cwd=place)
    assert done.returncode == 0, done.stderr
    for part in ("replicate 1 x shard 2 x tp 1 = 2 ranks", "the flat tree", "model.layers.1.mlp.down_proj.weight", "packed buffers",
                 "AdamW blocks", "bound max(mean, largest)", "gathered weights", "reduce_scatter", "FLOP per step"):
        assert part in done.stdout, part


TP = ("mesh.replicate=2", "mesh.shard=2", "mesh.tp=2")


def test_plan_shows_slices_and_tp_owners(place):
    report = plan("a.yaml", *TP, cwd=place)
    muon = {p["name"]: p for p in report["parameters"] if p["role"] == "MUON"}
    for name, p in muon.items():
        dim = 1 if name.endswith(("o_proj.weight", "down_proj.weight")) else 0
        assert p["tp_dim"] == dim
        assert p["local_shape"] == [size // 2 if i == dim else size for i, size in enumerate(p["shape"])]
        assert p["owner"]["tp"] in (0, 1) and p["distributed"] is False
    assert {p["owner"]["tp"] for p in muon.values()} == {0, 1}
    by_name = {p["name"]: p for p in report["parameters"]}
    assert (by_name["lm_head.weight"]["tp_dim"], by_name["lm_head.weight"]["local_shape"]) == (0, [128, 32])
    assert (by_name["model.norm.weight"]["tp_dim"], by_name["model.norm.weight"]["local_shape"]) == (None, [32])
    load = [0.0] * 8
    for p in muon.values():
        owner = p["owner"]
        load[(owner["replicate"] * 2 + owner["shard"]) * 2 + owner["tp"]] += p["cost"]
    assert report["load"]["max"] == pytest.approx(max(load)) and report["load"]["mean"] == pytest.approx(sum(load) / 8)
    assert any(rank["tp_buffers"] > 0 for rank in report["bytes_per_rank"])
    done = run("a.yaml", "--plan", *TP, cwd=place)
    assert done.returncode == 0, done.stderr
    for part in ("tp 2 = 8 ranks", "tp dim", "tp owner", "[16, 32]", "gradients to their tp owners", "tp buffers", "bound max(mean, largest)"):
        assert part in done.stdout, part


@pytest.mark.parametrize("gram", ["off", "beneficial", "always"])
def test_plan_traffic_over_tp_follows_the_formulas(place, gram):
    report = plan("a.yaml", *TP, f"optimizer.muon.tp_distributed_gram={gram}", cwd=place)
    gathered, rounds = 0, 0
    for p in report["parameters"]:
        if p["role"] != "MUON":
            continue
        out, cols = p["shape"]
        d, long = min(out, cols), p["tp_dim"] == (1 if out <= cols else 0)
        trips = 1 + 1 if p["algorithm"] == "gram" else 5
        assert p["distributed"] == (long and (gram == "always" or (gram == "beneficial" and trips * d * d < out * cols)))
        if p["distributed"]:
            rounds += 2 * trips * d * d * F32
        else:
            gathered += out * cols * F32 // 2
    tp = report["comm_bytes"]["tp"]
    assert tp["gather"]["bus_bytes"] == tp["scatter"]["bus_bytes"] == gathered
    assert tp.get("reduce", {}).get("bus_bytes", 0) + tp.get("broadcast", {}).get("bus_bytes", 0) == rounds
    assert (rounds > 0) == (gram == "always")
    done = run("a.yaml", "--plan", *TP, f"optimizer.muon.tp_distributed_gram={gram}", cwd=place)
    assert ("in slices" in done.stdout) == (gram == "always")


def test_plan_of_ddp_keeps_all_weights(place):
    done = run("a.yaml", "--plan", "mesh.shard=2", "parallel.data=ddp", cwd=place)
    assert done.returncode == 0 and "ddp: every rank keeps" in done.stdout and "on every rank" in done.stdout
    report = plan("a.yaml", "mesh.shard=2", "mesh.replicate=2", "parallel.data=ddp", cwd=place)
    comm = report["comm_bytes"]
    for op in ("reduce", "broadcast"):
        assert sum(comm[axis][op]["bus_bytes"] for axis in ("shard", "replicate")) == (4 - 1) * F32 * muon_elements(report)


def test_plan_says_when_the_sums_are_not_the_flat_tree(place):
    done = run("a.yaml", "--plan", "mesh.shard=3", "batch.global=9", cwd=place)
    assert done.returncode == 0 and "not the flat tree" in done.stdout


def test_ranks_resolve_an_automatic_axis(place):
    assert plan("a.yaml", "mesh.shard=auto", "--ranks", "4", cwd=place)["mesh"] == {"replicate": 1, "shard": 4, "tp": 1}
    done = run("a.yaml", "mesh.shard=auto", "--plan", cwd=place)
    assert done.returncode == 2 and "--ranks" in done.stderr


def test_ranks_that_do_not_fit_the_mesh_are_refused_with_one_that_does(place):
    done = run("a.yaml", "mesh.shard=4", "--plan", "--ranks=2", cwd=place)
    assert done.returncode == 2 and done.stdout == ""
    assert "4 ranks" in done.stderr and "there are 2" in done.stderr and "mesh.shard=2" in done.stderr


@pytest.mark.parametrize("side", [8, 64])
def test_a_large_model_on_a_large_mesh_is_planned_at_once(side):
    begin = time.monotonic()
    report = plan("configs/kjv-one.yaml", "model=models/llama-7b.yaml", f"mesh.replicate={side}", f"mesh.shard={side}",
                  f"batch.global={2 * side * side}", "checkpoint.every=0")
    assert time.monotonic() - begin < 10
    assert len(report["bytes_per_rank"]) == side * side


# ---- no MPI ----

TRAP = """#include <unistd.h>
int MPI_Init(int *argc, char ***argv) { (void)argc, (void)argv; _exit(99); }
int MPI_Init_thread(int *argc, char ***argv, int want, int *have) { (void)argc, (void)argv, (void)want, (void)have; _exit(99); }
"""


def test_mpi_is_never_initialised(place):
    (place / "trap.c").write_text(TRAP)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", place / "trap.so", place / "trap.c"], check=True)
    trap = {"LD_PRELOAD": str(place / "trap.so")}
    for args in (["a.yaml", "--plan"], ["a.yaml", "--plan=json"], ["a.yaml", "--check"], ["--help-config"], ["--version"], ["--help"]):
        assert run(*args, cwd=place, env=trap).returncode == 0, args
    assert run("a.yaml", cwd=place, env=trap).returncode == 99  # the trap works


# ---- --check ----


def test_check_of_a_run_that_could_start_creates_nothing(place):
    before = tree(place)
    done = run("a.yaml", "--check", "checkpoint.every=1", cwd=place)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for part in ("data.train", "data.val", "memory", "run directory", "a new run"):
        assert part in done.stdout, part
    assert tree(place) == before


def refused(place, code, *words, args=()):
    """--check ends with the code and says the words, once; nothing is created."""
    before = tree(place)
    done = run("a.yaml", "--check", *args, cwd=place)
    assert done.returncode == code, done.stdout + done.stderr
    for word in words:
        assert word in done.stderr, done.stderr
    assert done.stderr.count("dmuon-train: ") == 1
    assert tree(place) == before


def test_check_reports_all_errors_of_the_configuration(place):
    refused(place, 2, "optimizer.muon.lr", "batch.seq_len", args=("optimizer.muon.lr=-1", "batch.seq_len=65"))


def test_check_reports_all_that_is_wrong_beside_the_configuration(place):
    refused(place, 3, "nothing.txt", "nowhere.txt", "t.txt/run", args=("data.train=nothing.txt", "data.val=nowhere.txt", "run.dir=t.txt/run"))
    refused(place, 2, "t.txt/run", "gone", args=("run.dir=t.txt/run", "checkpoint.init_from=gone"))


def test_check_finds_a_prompt_that_is_no_list_of_token_ids(place):
    (place / "m300.yaml").write_text(MODEL.replace("vocab_size: 256", "vocab_size: 300"))
    args = ("model=m300.yaml", "data.train=t.bin", "data.val=", "train.eval_every=0", "train.sample_every=1")
    ids = [7] * 500
    header = [20240520, 1, len(ids)] + [0] * 253
    (place / "t.bin").write_bytes(struct.pack("<256i", *header) + struct.pack(f"<{len(ids)}H", *ids))
    refused(place, 2, "train.sample_prompt", "0 to 299", args=(*args, "train.sample_prompt=In the"))
    refused(place, 2, "train.sample_prompt", "0 to 299", args=(*args, "train.sample_prompt=300"))
    done = run("a.yaml", "--check", *args, "train.sample_prompt=299 0", cwd=place)
    assert done.returncode == 0, done.stderr
    assert run("a.yaml", "--plan", *args, "train.sample_prompt=In the", cwd=place).returncode == 0


def test_check_finds_missing_data(place):
    refused(place, 3, "nothing.txt", args=("data.train=nothing.txt",))


def test_check_finds_a_file_shorter_than_a_window(place):
    (place / "v.txt").write_text("short")
    refused(place, 3, "data.val", "v.txt", "5 tokens")


def test_check_finds_a_token_beyond_the_vocabulary(place):
    ids = [7] * 100
    ids[60] = 300
    header = [20240520, 1, len(ids)] + [0] * 253
    (place / "t.bin").write_bytes(struct.pack("<256i", *header) + struct.pack(f"<{len(ids)}H", *ids))
    refused(place, 3, "t.bin", "300", "60", args=("data.train=t.bin",))


def test_check_finds_that_memory_is_short():
    done = run("configs/kjv-one.yaml", "--check", "model=models/llama-7b.yaml", "mesh.shard=64", "batch.global=128")
    assert done.returncode == 2
    assert "95 %" in done.stderr and "64 ranks" in done.stderr and "lowered by" in done.stderr


def test_check_finds_a_run_directory_below_a_file(place):
    refused(place, 2, "t.txt", "run.dir=", args=("run.dir=t.txt/run",))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_check_finds_an_unwritable_run_directory(place):
    (place / "closed").mkdir(mode=0o555)
    refused(place, 2, "closed", "run.dir=", args=("run.dir=closed/run",))


def test_check_finds_a_live_lock(place):
    (place / "live").mkdir()
    (place / "live" / "lock").write_text("pid 1 on host elsewhere\n")
    with open(place / "live" / "lock", "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused(place, 4, "pid 1 on host elsewhere", args=("run.dir=live",))
    assert run("a.yaml", "--check", "run.dir=live", cwd=place).returncode == 0


def test_check_finds_a_checkpoint_that_is_missing(place):
    refused(place, 4, "gone", args=("checkpoint.resume=gone",))


def test_check_finds_weights_that_are_missing(place):
    refused(place, 4, "gone", args=("checkpoint.init_from=gone",))


def sets(place):
    return place / "runs" / "a" / "checkpoints"


def flip(path: Path, at: int):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_check_names_the_set_that_would_be_resumed(resumable):
    before = tree(resumable)
    done = run("a.yaml", "--check", cwd=resumable)
    assert done.returncode == 0, done.stderr
    assert "step-00000002, step 2 of 4" in done.stdout
    done = run("a.yaml", "--check", "train.steps=2", cwd=resumable)
    assert done.returncode == 0 and "the run is finished" in done.stdout
    assert tree(resumable) == before


def test_check_passes_over_a_damaged_set_with_a_warning(resumable):
    flip(next((sets(resumable) / "step-00000002").glob("optim-*.safetensors")), -1)
    done = run("a.yaml", "--check", cwd=resumable)
    assert done.returncode == 0, done.stderr
    assert "step-00000001, step 1 of 4" in done.stdout and "warning" in done.stdout and "step-00000002" in done.stdout


def test_check_refuses_a_damaged_set_that_was_named(resumable):
    flip(next((sets(resumable) / "step-00000002").glob("model-*.safetensors")), -1)
    refused(resumable, 4, "step-00000002", "damaged", args=("checkpoint.resume=runs/a/checkpoints/step-00000002",))


def test_check_refuses_a_log_without_a_usable_set(resumable):
    shutil.rmtree(sets(resumable))
    refused(resumable, 4, "run.dir=", "checkpoint.resume=none")
    assert run("a.yaml", "--check", "checkpoint.resume=none", cwd=resumable).returncode == 0


def test_check_refuses_another_identity_unless_it_is_allowed(resumable):
    refused(resumable, 4, "optimizer.muon.lr", "0.5", args=("optimizer.muon.lr=0.5",))
    done = run("a.yaml", "--check", "optimizer.muon.lr=0.5", "checkpoint.allow_changes=[optimizer.muon.lr]", cwd=resumable)
    assert done.returncode == 0, done.stderr


def test_check_refuses_other_data_than_the_saved_run_read(resumable):
    flip(resumable / "t.txt", 100)
    refused(resumable, 4, "data.train")


def test_check_accepts_weights_of_another_run(resumable):
    args = ("checkpoint.init_from=runs/a/checkpoints/step-00000002", "run.dir=runs/b")
    done = run("a.yaml", "--check", *args, cwd=resumable)
    assert done.returncode == 0 and "a new run with the weights of" in done.stdout, done.stderr
    (resumable / "m.yaml").write_text(MODEL.replace("d_ff: 48", "d_ff: 64"))
    refused(resumable, 4, "48", "64", args=args)
