"""Every key of the reference, set to a second value: its effect, or the promised equality of bits. A key without a row fails."""
import json
import os
import re
import shutil
import signal
import subprocess
import time

import pytest

from helpers import (CKPT, STOPPED, TRAIN, environment, finish, has_step, mesh_keys, ranks_of, records, run_mesh, set_dir, set_names,
                     start, steps, train, wait_for, warnings)

THREE = ["train.steps=3", "data.val="]


class Runs:
    """Short runs, each made once: the directory by mesh and keys."""

    def __init__(self, top):
        self.top, self.made = top, {}

    def get(self, *keys, mesh=(1, 1)):
        name = (mesh, keys)
        if name not in self.made:
            run = self.top / f"run{len(self.made)}"
            run_mesh(mesh, run, *THREE, *keys)
            self.made[name] = run
        return self.made[name]

    def last(self, *keys, mesh=(1, 1)):
        """The hash of the whole state after the last step."""
        log = steps(self.get(*keys, mesh=mesh))
        return log[max(log)][1]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("runs"))


def plan(*keys, mesh=(1, 1)):
    done = subprocess.run([TRAIN, "configs/bits-tiny.yaml", *THREE, *mesh_keys(mesh), *keys, "--plan=json"], capture_output=True, text=True,
                          env=environment(), check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def owners(*keys, mesh):
    return {p["name"]: (p["owner"]["shard"], p["owner"]["replicate"]) for p in plan(*keys, mesh=mesh)["parameters"] if p["owner"]}


# ---- the kinds of rows ----


def changes(*keys, base=()):
    """Other bits than without the key."""
    return lambda runs, tmp: differ(runs.last(*base, *keys), runs.last(*base))


def differ(a, b):
    assert a is not None and b is not None and a != b, "the key changes nothing"


def same(*keys, mesh=(1, 1), effect=None):
    """The bits of the plain run; `effect` sees the directories of both runs on the mesh."""

    def check(runs, tmp):
        assert runs.last(*keys, mesh=mesh) == runs.last()
        if effect:
            effect(runs.get(*keys, mesh=mesh), runs.get(mesh=mesh))

    return check


def same_on(mesh):
    """A mesh: the same bits, and the log names it."""

    def check(runs, tmp):
        same(mesh=mesh)(runs, tmp)
        equal(records(runs.get(mesh=mesh), "start")[0]["config"]["mesh"], dict(zip(("replicate", "shard", "tp"), (*mesh, 1))))

    return check


def equal(a, b):
    assert a == b


def moves_owners(*keys, mesh=(2, 2)):
    """Another owner map, the same bits."""

    def check(runs, tmp):
        differ(owners(*keys, mesh=mesh), owners(mesh=mesh))
        assert runs.last(*keys, mesh=mesh) == runs.last()

    return check


def refused(*keys, code=2, parts=()):
    def check(runs, tmp):
        done = train(1, f"run.dir={tmp / 'run'}", *THREE, *mesh_keys((1, 1)), *keys)
        assert done.returncode == code and all(p in done.stderr for p in parts), done.stderr
        assert not (tmp / "run").exists()

    return check


def unbuilt(key):
    return refused(key, parts=[key.split("=")[0], "not built yet"])


def idle(key):
    """Without effect on one rank, and the run says so."""

    def check(runs, tmp):
        assert runs.last(key) == runs.last()
        name = key.split("=")[0]
        assert any(name in w and "no effect" in w for w in warnings(runs.get(key)))

    return check


def both(*checks):
    return lambda runs, tmp: [check(runs, tmp) for check in checks]


# ---- effects with a shape of their own ----


def traffic(axis):
    """The payload of an axis in step 3, by operation."""
    return lambda run: {op: c["payload_bytes"] for op, c in records(run, "step")[-1]["comm"][axis].items()}


def less_traffic(axis):
    return lambda changed, plain: differ(traffic(axis)(changed), traffic(axis)(plain))


def threads_are(n):
    return lambda changed, plain: equal(records(changed, "start")[0]["threads"], n)


def check_prefetch(runs, tmp):
    same("parallel.prefetch=0", mesh=(1, 2))(runs, tmp)
    gathered = [plan(key, mesh=(1, 2))["bytes_per_rank"][0] for key in ("parallel.prefetch=0", "parallel.prefetch=1")]
    assert gathered[0]["total"] < gathered[1]["total"], "units in flight take room"


def check_match(runs, tmp):
    key = 'optimizer.muon.match=["model.layers.*.mlp.*"]'
    changes(key)(runs, tmp)
    roles = {p["name"]: p["role"].lower() for p in plan(key)["parameters"]}
    assert {n for n, r in roles.items() if r == "muon"} == {n for n in roles if ".mlp." in n}


def check_seq_len_limit(runs, tmp):
    refused("model.max_seq_len=16", parts=["model.max_seq_len = 16"])(runs, tmp)
    assert runs.last("model.max_seq_len=64") == runs.last()


def check_val(runs, tmp):
    keys = ["train.eval_every=1", "train.eval_batches=1"]
    losses = [[r["loss"] for r in records(runs.get(f"data.val=configs/data/kjv_{n}.txt", *keys), "eval")] for n in ("val", "train")]
    assert len(losses[0]) == len(losses[1]) == 3 and losses[0] != losses[1]
    assert runs.last("data.val=configs/data/kjv_val.txt", *keys) == runs.last(), "a look changes nothing"


def check_eval_every(runs, tmp):
    found = records(runs.get("data.val=configs/data/kjv_val.txt", "train.eval_every=2", "train.eval_batches=1"), "eval")
    assert [r["step"] for r in found] == [2, 3], "each second step, and the last"


def check_eval_batches(runs, tmp):
    found = [records(runs.get("data.val=configs/data/kjv_val.txt", "train.eval_every=3", f"train.eval_batches={n}"), "eval")
             for n in (1, 2)]
    assert [r["tokens"] for r, in found] == [16 * 32, 2 * 16 * 32]
    assert found[0][0]["loss"] != found[1][0]["loss"]


def check_epochs(runs, tmp):
    text = tmp / "text.txt"
    text.write_bytes(bytes(range(32, 127)) * 17)  # 1615 bytes: 50 windows of 32, 3 steps of 16
    assert max(steps(runs.get(f"data.train={text}", "train.steps=10", "train.epochs=1"))) == 3
    assert max(steps(runs.get(f"data.train={text}", "train.steps=10", "train.epochs=2"))) == 6


def sample(runs, *keys):
    record, = records(runs.get("train.sample_every=3", *keys), "sample")
    return record


SHORT = "train.sample_tokens=12"


def check_sample_every(runs, tmp):
    assert [r["step"] for r in records(runs.get("train.sample_every=2", SHORT), "sample")] == [2]
    assert runs.last("train.sample_every=2", SHORT) == runs.last(), "a sample changes nothing"


def check_sample_prompt(runs, tmp):
    a, b = sample(runs, SHORT), sample(runs, SHORT, "train.sample_prompt=In the beginning")
    assert a["prompt"] == "" and b["prompt"] == "In the beginning" and a["text"] != b["text"]


def check_sample_tokens(runs, tmp):
    a, b = sample(runs, SHORT, "train.sample_temperature=0"), sample(runs, "train.sample_tokens=24", "train.sample_temperature=0")
    assert b["text"].startswith(a["text"]) and len(b["text"]) > len(a["text"])


def check_sample_temperature(runs, tmp):
    texts = [sample(runs, SHORT, f"train.sample_temperature={t}")["text"] for t in ("0.8", "0", "2")]
    assert len(set(texts)) == 3


BLOW_UP = ["optimizer.adamw.lr=1e6", "optimizer.adamw.weight_decay=1e6", "optimizer.schedule.kind=constant", "train.steps=8"]


def check_nonfinite(runs, tmp):
    run_mesh((1, 1), tmp / "stop", *THREE, *BLOW_UP, code=5)
    run_mesh((1, 1), tmp / "skip", *THREE, *BLOW_UP, "train.nonfinite=skip")
    assert records(tmp / "skip", "step")[-1]["nonfinite"] > 0 and max(steps(tmp / "skip")) == 8


def check_wall_time(runs, tmp):
    late = {"DMUON_JOB_START": str(int(time.time()) - 1000)}
    run_mesh((1, 1), tmp / "run", *THREE, "train.max_wall_time=0:15:00", code=STOPPED, env=late)
    run_mesh((1, 1), tmp / "other", *THREE, "train.max_wall_time=15:00:00", env=late)


def check_every(runs, tmp):
    assert set_names(runs.get()) == []
    assert set_names(runs.get("checkpoint.every=2")) == ["step-00000002", "step-00000003"]
    assert runs.last("checkpoint.every=2") == runs.last()


def check_keep(runs, tmp):
    assert set_names(runs.get("checkpoint.every=1", "checkpoint.keep=1")) == ["step-00000003"]
    assert len(set_names(runs.get("checkpoint.every=1", "checkpoint.keep=0"))) == 3


def check_resume(runs, tmp):
    run = shutil.copytree(runs.get("checkpoint.every=2"), tmp / "run")
    run_mesh((1, 1), run, *THREE, "checkpoint.every=2", "checkpoint.resume=none")
    assert (run / "log.jsonl.1").exists() and not records(run, "resume") and len(steps(run)) == 3
    run_mesh((1, 1), tmp / "new", *THREE, f"checkpoint.resume={set_dir(run, 2)}")
    assert steps(tmp / "new") == {3: steps(runs.get())[3]}


def check_init_from(runs, tmp):
    source = set_dir(runs.get("checkpoint.every=2"), 2)
    changes(f"checkpoint.init_from={source}")(runs, tmp)


def check_allow_changes(runs, tmp):
    run = shutil.copytree(runs.get("checkpoint.every=2"), tmp / "run")
    shutil.rmtree(set_dir(run, 3))
    run_mesh((1, 1), run, *THREE, "checkpoint.every=2", "seed=9", code=4)
    run_mesh((1, 1), run, *THREE, "checkpoint.every=2", "seed=9", "checkpoint.allow_changes=[seed]")
    assert steps(run)[2] == steps(runs.get())[2] and steps(run)[3] != steps(runs.get())[3]


def check_background(runs, tmp):
    a, b = (runs.get("checkpoint.every=2", f"checkpoint.background={word}") for word in ("true", "false"))
    assert steps(a) == steps(b)
    assert subprocess.run([CKPT, "diff", set_dir(a, 2), set_dir(b, 2)], check=False, capture_output=True).returncode == 0


def check_log_every(runs, tmp):
    assert list(steps(runs.get("log.every=2"))) == [2, 3]
    assert records(runs.get("log.every=2"), "step")[0]["tokens"] == 2 * records(runs.get(), "step")[0]["tokens"]


def check_params_hash_every(runs, tmp):
    plain = steps(runs.get())
    assert {s: h for s, (_, h) in steps(runs.get("log.params_hash_every=2")).items()} == {1: None, 2: plain[2][1], 3: plain[3][1]}


def check_trace_steps(runs, tmp):
    run = runs.get("log.trace_steps=[2]")
    assert steps(run) == steps(runs.get())
    traces = [p for p in run.rglob("*") if "trace" in p.name and p.is_file()]
    assert len(traces) == 1 and json.loads(traces[0].read_text())
    assert not [p for p in runs.get().rglob("*") if "trace" in p.name]


def check_timeout(runs, tmp):
    """A rank that is silent for longer ends the job."""
    run = tmp / "run"
    process = start(2, f"run.dir={run}", "threads=1", *mesh_keys((1, 2)), "train.steps=100000", "data.val=", "comm.timeout_s=2")
    wait_for(lambda: has_step(run, 1), process)
    ranks = ranks_of(process, 2)
    os.kill(ranks[1], signal.SIGSTOP)
    try:
        done = finish(process, timeout=40)
    finally:
        for pid in ranks.values():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
    assert done.returncode == 6, done.stderr


def check_run_dir(runs, tmp):
    run_mesh((1, 1), tmp / "a" / "b", *THREE)
    assert (tmp / "a" / "b" / "log.jsonl").exists() and (tmp / "a" / "b" / "config.yaml").exists()


GRAM = ["optimizer.muon.ns.algorithm=gram"]
WSD = ["optimizer.schedule.kind=wsd"]
NO_CLIP = ["optimizer.clip.max_norm=0"]
FAST = "numerics=fast"


def check_wire(runs, tmp):
    """Rounded weights, also where none travel; half the bytes of those that do."""
    keys = (FAST, "precision.wire=bf16")
    changes(*keys)(runs, tmp)
    assert runs.last(*keys, mesh=(1, 2)) == runs.last(*keys)
    wide, narrow = (traffic("shard")(runs.get(*k, mesh=(1, 2))) for k in ((), keys))
    for op in ("broadcast", "all_gather"):
        assert narrow[op] * 2 == wide[op]


def check_recompute(runs, tmp):
    same("parallel.recompute=layer")(runs, tmp)
    same("parallel.recompute=layer", mesh=(1, 1, 2))(runs, tmp)
    kept = [plan(f"parallel.recompute={mode}")["bytes_per_rank"][0]["activations"] for mode in ("none", "layer")]
    assert kept[1] < 0.8 * kept[0], "what is computed again takes no room"


ROWS = {
    "model": changes("model=models/llama-1m.yaml"),
    "model.family": refused("model.family=gpt", parts=["model.family"]),
    "model.d_model": changes("model.d_model=32"),
    "model.n_layers": changes("model.n_layers=3"),
    "model.n_heads": changes("model.n_heads=4"),
    "model.n_kv_heads": changes("model.n_kv_heads=8"),
    "model.head_dim": changes("model.head_dim=16"),
    "model.d_ff": changes("model.d_ff=88"),
    "model.vocab_size": changes("model.vocab_size=512"),
    "model.max_seq_len": check_seq_len_limit,
    "model.rope_theta": changes("model.rope_theta=500"),
    "model.norm_eps": changes("model.norm_eps=1e-2"),
    "model.tie_embeddings": changes("model.tie_embeddings=true"),
    "model.qkv_bias": changes("model.qkv_bias=true"),
    "model.qk_norm": changes("model.qk_norm=true"),
    "model.init_std": changes("model.init_std=0.05"),
    "device": both(same("device=cpu"), refused("device=cuda", parts=["device: cuda"])),
    "numerics.mode": same(FAST, effect=lambda changed, plain: equal(records(changed, "start")[0]["numerics"]["mode"], "fast")),
    "numerics.segments": changes("numerics.segments=1"),
    "precision.compute": both(changes(FAST, "precision.compute=bf16"),
                              refused(FAST, "precision.compute=tf32", parts=["precision.compute", "needs device: cuda"])),
    "precision.wire": check_wire,
    "precision.grad_reduce": refused(FAST, "precision.grad_reduce=bf16", parts=["precision.grad_reduce", "not built yet"]),
    "seed": changes("seed=5"),
    "threads": same("threads=2", effect=threads_are(2)),
    "mesh.replicate": same_on((2, 1)),
    "mesh.shard": same_on((1, 2)),
    "mesh.tp": same_on((1, 1, 2)),
    "parallel.data": both(same("parallel.data=ddp", mesh=(1, 2), effect=less_traffic("shard")), same("parallel.data=ddp", mesh=(1, 2, 2))),
    "parallel.reshard_after_forward.muon": same("parallel.reshard_after_forward.muon=false", mesh=(1, 2), effect=less_traffic("shard")),
    "parallel.reshard_after_forward.adamw": same("parallel.reshard_after_forward.adamw=false", mesh=(1, 2), effect=less_traffic("shard")),
    "parallel.prefetch": check_prefetch,
    "parallel.accumulate": same("parallel.accumulate=local", mesh=(1, 2), effect=less_traffic("shard")),
    "parallel.tp_buffer_reuse": both(idle("parallel.tp_buffer_reuse=all"),
                                     *(same(f"parallel.tp_buffer_reuse={kept}", mesh=(1, 1, 2)) for kept in ("gather", "scatter", "all"))),
    "parallel.recompute": check_recompute,
    "parallel.owner.strategy": both(moves_owners("parallel.owner.strategy=rank0"), moves_owners("parallel.owner.strategy=round_robin")),
    "parallel.owner.cost": refused("parallel.owner.cost=numel", parts=["parallel.owner.cost", "flops"]),
    "parallel.owner.max_per_layer": moves_owners("parallel.owner.max_per_layer=1"),
    "parallel.owner.small_param_threshold": moves_owners("parallel.owner.small_param_threshold=100000"),
    "parallel.owner.column_balance": moves_owners("parallel.owner.column_balance=false"),
    "optimizer.muon.lr": changes("optimizer.muon.lr=0.01"),
    "optimizer.muon.momentum": changes("optimizer.muon.momentum=0.9"),
    "optimizer.muon.nesterov": changes("optimizer.muon.nesterov=false"),
    "optimizer.muon.weight_decay": changes("optimizer.muon.weight_decay=0.5"),
    "optimizer.muon.scale": changes("optimizer.muon.scale=spectral"),
    "optimizer.muon.match": check_match,
    "optimizer.muon.ns.algorithm": both(changes(*GRAM), changes("optimizer.muon.ns.algorithm=direct")),
    "optimizer.muon.ns.coefficients": both(changes("optimizer.muon.ns.coefficients=jordan"), changes("optimizer.muon.ns.coefficients=you"),
                                           changes("optimizer.muon.ns.coefficients=[[2, -1.5, 0.5]]")),
    "optimizer.muon.ns.steps": changes("optimizer.muon.ns.steps=4"),
    "optimizer.muon.ns.restarts": both(changes("optimizer.muon.ns.restarts=[1]", base=GRAM), changes("optimizer.muon.ns.restarts=[]", base=GRAM)),
    "optimizer.muon.replicate_async": same("optimizer.muon.replicate_async=false", mesh=(2, 1)),
    "optimizer.muon.tp_distributed_gram": both(idle("optimizer.muon.tp_distributed_gram=always"),
                                               *(same(f"optimizer.muon.tp_distributed_gram={mode}", mesh=(1, 1, 2), effect=less_traffic("tp"))
                                                 for mode in ("beneficial", "always"))),
    "optimizer.adamw.lr": changes("optimizer.adamw.lr=0.002"),
    "optimizer.adamw.betas": both(changes("optimizer.adamw.betas=[0.8, 0.999]"), changes("optimizer.adamw.betas=[0.9, 0.99]")),
    "optimizer.adamw.eps": changes("optimizer.adamw.eps=1e-3"),
    "optimizer.adamw.weight_decay": changes("optimizer.adamw.weight_decay=0.5"),
    "optimizer.adamw.decay_1d": changes("optimizer.adamw.decay_1d=true"),
    "optimizer.clip.max_norm": both(changes("optimizer.clip.max_norm=0.5"), changes("optimizer.clip.max_norm=0.5", base=NO_CLIP)),
    "optimizer.clip.muon_max_norm": changes("optimizer.clip.muon_max_norm=0.1", base=NO_CLIP),
    "optimizer.clip.adamw_max_norm": changes("optimizer.clip.adamw_max_norm=0.1", base=NO_CLIP),
    "optimizer.schedule.kind": both(*(changes(f"optimizer.schedule.kind={kind}") for kind in ("constant", "linear", "wsd"))),
    "optimizer.schedule.warmup_steps": changes("optimizer.schedule.warmup_steps=2"),
    "optimizer.schedule.min_ratio": changes("optimizer.schedule.min_ratio=0.5"),
    "optimizer.schedule.decay_fraction": changes("optimizer.schedule.decay_fraction=0.9", base=WSD),
    "batch.global": changes("batch.global=8"),
    "batch.micro": changes("batch.micro=2"),
    "batch.seq_len": changes("batch.seq_len=16"),
    "data.train": changes("data.train=configs/data/kjv_val.txt"),
    "data.val": check_val,
    "data.format": both(refused("data.format=tokens", code=3, parts=["magic number"]),
                        changes("data.train=configs/data/kjv_gpt2_val.bin", "data.format=text")),
    "data.shuffle": changes("data.shuffle=false"),
    "train.steps": lambda runs, tmp: equal(list(steps(runs.get("train.steps=4"))), [1, 2, 3, 4]),
    "train.epochs": check_epochs,
    "train.eval_every": check_eval_every,
    "train.eval_batches": check_eval_batches,
    "train.sample_every": check_sample_every,
    "train.sample_prompt": check_sample_prompt,
    "train.sample_tokens": check_sample_tokens,
    "train.sample_temperature": check_sample_temperature,
    "train.nonfinite": check_nonfinite,
    "train.max_wall_time": check_wall_time,
    "checkpoint.every": check_every,
    "checkpoint.keep": check_keep,
    "checkpoint.resume": check_resume,
    "checkpoint.init_from": check_init_from,
    "checkpoint.allow_changes": check_allow_changes,
    "checkpoint.background": check_background,
    "log.every": check_log_every,
    "log.params_hash_every": check_params_hash_every,
    "log.trace_steps": check_trace_steps,
    "log.replica_check_every": same("log.replica_check_every=1", mesh=(2, 1)),
    "comm.timeout_s": check_timeout,
    "comm.reduce": unbuilt("comm.reduce=native"),
    "comm.transport": both(same("comm.transport=mpi", mesh=(1, 2)), refused("comm.transport=nccl", parts=["comm.transport: nccl"])),
    "run.dir": check_run_dir,
}


def test_every_key_of_the_reference_has_a_row():
    done = subprocess.run([TRAIN, "--help-config"], capture_output=True, text=True, env=environment(), check=True)
    keys = re.findall(r"^([a-z][a-z0-9_.]*) {2,}\S", done.stdout, re.M)
    assert len(keys) > 80 and sorted(keys) == sorted(ROWS)


@pytest.mark.parametrize("key", ROWS)
def test_key(key, runs, tmp_path):
    ROWS[key](runs, tmp_path)
