"""Stop and resume: 5 + 5 steps have the bits of 10 straight ones, on the same mesh and from each mesh to each other; and every
component of the saved state is needed for that. Damaged sets are passed over or refused by name."""
import json
import shutil

import pytest

from helpers import (ROOT, SLOW, read_set, records, rewrite_set, run_mesh, seal, set_dir, set_names, steps, tensor_hash, train, tree,
                     warnings)

MESHES = [(1, 1), (1, 2), (2, 1), (2, 2), (1, 4), (2, 4), (4, 2), (8, 1), (1, 1, 2), (2, 1, 2), (1, 2, 4)]
ODD = (1, 3)  # reproducible on its own mesh only
HALF = range(6, 11)

if SLOW:
    PAIRS = [(a, b) for a in MESHES for b in MESHES if a != b]
else:
    PAIRS = [(a, MESHES[(i + 3) % len(MESHES)]) for i, a in enumerate(MESHES)]


def name(mesh):
    return "x".join(map(str, mesh))


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """Ten steps of 2x2 without any checkpoint."""
    run = tmp_path_factory.mktemp("straight") / "run"
    run_mesh((2, 2), run)
    assert set_names(run) == []
    return steps(run)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """saved(mesh): the directory of a ten-step run with sets of steps 5 and 10, made once."""
    made = {}

    def get(mesh):
        if mesh not in made:
            made[mesh] = tmp_path_factory.mktemp("saved") / name(mesh)
            extra = ["batch.global=24"] if mesh == ODD else []
            run_mesh(mesh, made[mesh], "checkpoint.every=5", *extra)
            assert set_names(made[mesh]) == ["step-00000005", "step-00000010"]
        return made[mesh]

    return get


def second_half(log):
    return {step: log[step] for step in HALF}


def interrupted(run, target):
    """A copy of a run as it was when only the set of step 5 was complete; its log has gone further, and ends in half a line."""
    shutil.copytree(run, target)
    shutil.rmtree(set_dir(target, 10))
    log = target / "log.jsonl"
    log.write_text(log.read_text() + '{"event":"step","step":1')
    return target


@pytest.mark.parametrize("mesh", MESHES + [ODD], ids=name)
def test_stopped_and_resumed_on_its_own_mesh_a_run_has_the_bits_of_a_straight_one(mesh, straight, saved, tmp_path):
    whole = steps(saved(mesh))
    if mesh != ODD:
        assert whole == straight, "saving changes nothing"
    run = interrupted(saved(mesh), tmp_path / "run")
    done = run_mesh(mesh, run, "checkpoint.every=5", *(["batch.global=24"] if mesh == ODD else []))
    assert "resuming after step 5" in done.stderr
    assert steps(run) == whole
    assert set_names(run) == ["step-00000005", "step-00000010"]
    before, after = read_set(set_dir(saved(mesh), 10)), read_set(set_dir(run, 10))
    assert before.keys() == after.keys() and all(before[k].tobytes() == after[k].tobytes() for k in before)


@pytest.mark.parametrize("source,target", PAIRS, ids=lambda m: name(m))
def test_a_set_of_one_mesh_continues_on_another_with_the_same_bits(source, target, straight, saved, tmp_path):
    run_mesh(target, tmp_path / "run", f"checkpoint.resume={set_dir(saved(source), 5)}")
    assert steps(tmp_path / "run") == second_half(straight)
    (resume,) = records(tmp_path / "run", "resume")
    assert resume["step"] == 5


def test_tensors_of_a_set_do_not_depend_on_the_mesh(saved):
    one = read_set(set_dir(saved((1, 1)), 5))
    for mesh in ((2, 2), (1, 4), (2, 4), (2, 1, 2), (1, 2, 4)):
        other = read_set(set_dir(saved(mesh), 5))
        assert one.keys() == other.keys() and all(one[k].tobytes() == other[k].tobytes() for k in one), name(mesh)


DDP = "parallel.data=ddp"
WAYS = {"fsdp to ddp": ([], [DDP]), "ddp to fsdp": ([DDP], []), "ddp to ddp": ([DDP], [DDP])}


@pytest.mark.parametrize("way", WAYS)
def test_a_set_of_one_kind_of_data_parallelism_continues_with_the_other(way, straight, tmp_path):
    first, second = WAYS[way]
    run_mesh((2, 1, 2), tmp_path / "first", "checkpoint.every=5", *first)
    run_mesh((1, 2), tmp_path / "second", f"checkpoint.resume={set_dir(tmp_path / 'first', 5)}", *second)
    assert steps(tmp_path / "first") == straight and steps(tmp_path / "second") == second_half(straight)


def test_sliced_momentum_is_saved_and_loaded_whole(straight, tmp_path):
    always = ["optimizer.muon.tp_distributed_gram=always", "checkpoint.every=5"]
    run_mesh((2, 1, 2), tmp_path / "first", *always)
    run = interrupted(tmp_path / "first", tmp_path / "second")
    run_mesh((1, 1, 4), run, *always)
    assert steps(tmp_path / "first") == straight and steps(run) == straight
    one, other = (read_set(set_dir(tmp_path / top, 10)) for top in ("first", "second"))
    assert one.keys() == other.keys() and all(one[k].tobytes() == other[k].tobytes() for k in one)


def test_two_runs_of_five_steps_equal_one_of_ten_where_steps_are_free(tmp_path):
    constant = ["optimizer.schedule.kind=constant", "checkpoint.every=5"]
    run_mesh((1, 2), tmp_path / "ten", *constant)
    run_mesh((2, 2), tmp_path / "run", *constant, "train.steps=5")
    assert set_names(tmp_path / "run") == ["step-00000005"]
    run_mesh((1, 2), tmp_path / "run", *constant, "train.steps=10")
    assert steps(tmp_path / "run") == steps(tmp_path / "ten")


# ---- every component is needed ----


def zero(array):
    return array * 0


MATRIX = "model.layers.1.self_attn.o_proj.weight"
EMBEDDING = "model.embed_tokens.weight"
NORM = "model.layers.0.input_layernorm.weight"
COMPONENTS = {
    "nothing": {},
    "momentum": {"tensors": {f"momentum.{MATRIX}": zero}},
    "first moment of the embedding": {"tensors": {f"exp_avg.{EMBEDDING}": zero}},
    "second moment of the embedding": {"tensors": {f"exp_avg_sq.{EMBEDDING}": zero}},
    "first moment of a norm": {"tensors": {f"exp_avg.{NORM}": zero}},
    "second moment of a norm": {"tensors": {f"exp_avg_sq.{NORM}": zero}},
    "a matrix": {"tensors": {MATRIX: zero}},
    "a norm": {"tensors": {NORM: zero}},
    "the step": {"step": 4},
    "the data cursor": {"samples": 0},
    "the count of updates": {"adamw_t": 0},
}


@pytest.mark.parametrize("component", COMPONENTS)
def test_without_one_component_of_the_state_the_bits_differ(component, straight, saved, tmp_path):
    changed = rewrite_set(set_dir(saved((2, 2)), 5), tmp_path / "set", **COMPONENTS[component])
    run_mesh((1, 2), tmp_path / "run", f"checkpoint.resume={changed}")
    log = steps(tmp_path / "run")
    same = {step: log.get(step) == straight[step] for step in HALF}
    if component == "nothing":
        assert all(same.values()), "a set that was read and written back is the same set"
    else:
        assert not any(same.values()), f"equal bits without {component}: {same}"


def test_listed_hashes_are_those_of_the_tensors(saved):
    """The Python twin of the hash, against the program's."""
    manifest = json.loads((set_dir(saved((2, 2)), 5) / "trainer.json").read_text())
    tensors = read_set(set_dir(saved((2, 2)), 5))
    assert {t["name"]: int(t["hash"], 16) for t in manifest["tensors"]} == {n: tensor_hash(n, a) for n, a in tensors.items()}


# ---- how a set is written ----


def test_background_saves_hold_the_same_bytes(tmp_path):
    runs = {}
    for background in ("true", "false"):
        run = tmp_path / background
        run_mesh((2, 2), run, "checkpoint.every=2", "checkpoint.keep=0", f"checkpoint.background={background}")
        assert set_names(run) == [f"step-{s:08d}" for s in range(2, 11, 2)]
        events = records(run, "checkpoint")
        assert [e["step"] for e in events] == [2, 4, 6, 8, 10]
        runs[background] = run
    assert steps(runs["true"]) == steps(runs["false"])
    for step in range(2, 11, 2):
        for file in set_dir(runs["true"], step).glob("*.safetensors"):
            assert file.read_bytes() == (set_dir(runs["false"], step) / file.name).read_bytes(), file


def test_keep_leaves_the_newest(tmp_path):
    run_mesh((1, 2), tmp_path / "run", "checkpoint.every=1", "checkpoint.keep=3", "train.steps=6")
    assert set_names(tmp_path / "run") == [f"step-{s:08d}" for s in (4, 5, 6)]


# ---- what a start takes ----


def test_a_finished_run_says_so_and_changes_no_set(saved, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(saved((1, 2)), run)
    before = tree(run / "checkpoints")
    log = (run / "log.jsonl").read_bytes()
    done = run_mesh((1, 2), run, "checkpoint.every=5")
    assert "finished" in done.stderr and "10 steps" in done.stderr
    assert tree(run / "checkpoints") == before and (run / "log.jsonl").read_bytes() == log


def test_none_starts_anew_and_moves_the_old_log(straight, saved, tmp_path):
    run = interrupted(saved((1, 2)), tmp_path / "run")
    old = (run / "log.jsonl").read_bytes()
    first = json.loads(old.splitlines()[0])["run_id"]
    run_mesh((1, 2), run, "checkpoint.every=5", "checkpoint.resume=none")
    assert (run / "log.jsonl.1").read_bytes() == old
    assert steps(run) == straight
    assert records(run, "start")[0]["run_id"] != first
    assert json.loads((set_dir(run, 5) / "trainer.json").read_text())["run_id"] == records(run, "start")[0]["run_id"]


def test_going_back_to_an_older_set_puts_the_newer_ones_aside(saved, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(saved((1, 2)), run)
    change = ["optimizer.muon.lr=0.5", "checkpoint.allow_changes=[optimizer.muon.lr]"]
    older = f"checkpoint.resume={set_dir(run, 5)}"
    run_mesh((1, 2), run, *change, older, "checkpoint.every=2")
    assert any("rewound-00000010" in text for text in warnings(run))
    assert set_names(run) == ["rewound-00000010", "step-00000008", "step-00000010"]
    other = steps(run)[10]
    shutil.rmtree(set_dir(run, 10))
    run_mesh((1, 2), run, *change, "checkpoint.every=2")  # auto: from step 8 of the new branch
    assert steps(run)[10] == other


def test_a_directory_inside_a_set_is_damage_that_goes_with_it(saved, tmp_path):
    run = tmp_path / "run"
    interrupted(saved((1, 2)), run)
    shutil.copytree(set_dir(run, 5), set_dir(run, 10))
    (set_dir(run, 10) / "notes").mkdir()
    (set_dir(run, 10) / "notes" / "a").write_text("a")
    run_mesh((1, 2), run, "checkpoint.every=5")
    assert not (set_dir(run, 10) / "notes").exists()
    run_mesh((1, 2), run, "checkpoint.every=5")


def test_init_from_a_damaged_set_of_ours_is_refused(saved, tmp_path):
    source = tmp_path / "set"
    shutil.copytree(set_dir(saved((1, 2)), 10), source)
    file = sorted(source.glob("model-*.safetensors"))[0]
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)
    done = run_mesh((1, 2), tmp_path / "run", f"checkpoint.init_from={source}", code=4)
    assert file.name in done.stderr


def test_run_id_is_kept_by_a_resume(saved, tmp_path):
    run = interrupted(saved((1, 2)), tmp_path / "run")
    run_mesh((1, 2), run, "checkpoint.every=5")
    ids = {json.loads((set_dir(run, s) / "trainer.json").read_text())["run_id"] for s in (5, 10)}
    assert ids == {r["run_id"] for r in records(run, "start")} and len(ids) == 1


def test_a_changed_identity_needs_its_key_in_allow_changes(straight, saved, tmp_path):
    run = interrupted(saved((1, 2)), tmp_path / "run")
    before = tree(run)
    done = run_mesh((1, 2), run, "checkpoint.every=5", "optimizer.muon.lr=0.01", "seed=7", code=4)
    for part in ("optimizer.muon.lr: saved 0.02, now 0.01", "seed: saved 1234, now 7", "checkpoint.allow_changes"):
        assert part in done.stderr
    assert done.stderr.count("dmuon-train: ") == 1 and tree(run) == before
    done = run_mesh((1, 2), run, "checkpoint.every=5", "optimizer.muon.lr=0.01", "seed=7", code=4,
                    *["checkpoint.allow_changes=[optimizer.muon.lr]"])
    assert "seed: saved" in done.stderr and "optimizer.muon.lr: saved" not in done.stderr and tree(run) == before
    run_mesh((1, 2), run, "checkpoint.every=5", "optimizer.muon.lr=0.01", "checkpoint.allow_changes=[optimizer.muon.lr]")
    log = steps(run)
    assert log[5] == straight[5] and log[6] != straight[6]


@pytest.mark.parametrize("key", ["model.n_layers=3", "model.norm_eps=1e-6", "numerics.segments=4"])
def test_the_model_and_the_segments_can_never_change(key, saved, tmp_path):
    run = interrupted(saved((1, 2)), tmp_path / "run")
    before = tree(run)
    done = run_mesh((1, 2), run, "checkpoint.every=5", key, code=4)
    assert key.split("=")[0].split(".")[1] in done.stderr and "never change" in done.stderr and tree(run) == before
    done = run_mesh((1, 2), run, "checkpoint.every=5", key, f"checkpoint.allow_changes=[{key.split('=')[0]}]", code=2)
    assert "never change" in done.stderr and tree(run) == before


def test_free_keys_may_change(straight, saved, tmp_path):
    run = interrupted(saved((1, 2)), tmp_path / "run")
    run_mesh((2, 2), run, "checkpoint.every=3", "parallel.prefetch=0", "parallel.accumulate=local", "threads=2", "log.trace_steps=[7]",
             "parallel.owner.strategy=round_robin", "train.eval_every=5", "train.eval_batches=1", "comm.timeout_s=100")
    assert steps(run) == straight
    assert [r["step"] for r in records(run, "eval")] == [10]


def test_other_data_are_another_identity(saved, tmp_path):
    run = interrupted(saved((1, 2)), tmp_path / "run")
    data = tmp_path / "kjv_train.txt"
    data.write_bytes((ROOT / "configs/data/kjv_train.txt").read_bytes()[:-1])
    done = run_mesh((1, 2), run, "checkpoint.every=5", f"data.train={data}", code=4)
    assert "data.train" in done.stderr
    run_mesh((1, 2), run, "checkpoint.every=5", f"data.train={data}", "checkpoint.allow_changes=[data.train]")
    assert sorted(steps(run)) == list(range(1, 11))


# ---- init_from ----

TINY_INIT = "tests/golden/golden_train.yaml"


def test_init_from_takes_foreign_weights_to_every_mesh(tmp_path):
    bits = set()
    for mesh in ((1, 1), (1, 2), (2, 1)):
        run = tmp_path / name(mesh)
        run_mesh(mesh, run, "log.params_hash_every=1", "batch.micro=1", config=TINY_INIT)
        bits.add(json.dumps(steps(run)))
    assert len(bits) == 1
    run_mesh((1, 1), tmp_path / "other", "checkpoint.init_from=", "log.params_hash_every=1", "batch.micro=1", config=TINY_INIT)
    assert json.dumps(steps(tmp_path / "other")) not in bits


def test_init_from_a_set_of_ours_takes_weights_and_nothing_else(saved, tmp_path):
    source = set_dir(saved((2, 2)), 5)
    still = ["optimizer.muon.lr=0", "optimizer.adamw.lr=0", "train.steps=1", "checkpoint.every=1"]
    run_mesh((1, 2), tmp_path / "run", f"checkpoint.init_from={source}", *still)
    assert list(steps(tmp_path / "run")) == [1]
    before, after = read_set(source), read_set(set_dir(tmp_path / "run", 1))
    assert before.keys() == after.keys()
    for key in before:
        assert (before[key].tobytes() == after[key].tobytes()) == (not key.startswith(("momentum.", "exp_avg"))), key


def test_init_from_another_architecture_is_refused(tmp_path):
    done = run_mesh((2, 2), tmp_path / "run", "checkpoint.init_from=tests/golden/tiny_init", code=4)
    assert "hidden_size" in done.stderr and "32" in done.stderr and "64" in done.stderr
    assert not (tmp_path / "run").exists()


# ---- damage ----


def flip(directory, file, at):
    data = bytearray((directory / file).read_bytes())
    data[at] ^= 1
    (directory / file).write_bytes(data)


def truncate(directory, file):
    (directory / file).write_bytes((directory / file).read_bytes()[:-1])


OPTIM, MODEL = "optim-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
DAMAGE = {
    "a flipped weight": (lambda d: flip(d, MODEL, -5), [MODEL, "tensor lm_head.weight", "damaged"]),
    "a flipped moment": (lambda d: flip(d, OPTIM, -5), [OPTIM, "tensor ", "damaged"]),
    "a flipped header": (lambda d: flip(d, MODEL, 20), [MODEL, "damaged"]),
    "a flipped trainer.json": (lambda d: flip(d, "trainer.json", 100), ["trainer.json"]),
    "a cut file": (lambda d: truncate(d, OPTIM), [OPTIM, "bytes"]),
    "a cut trainer.json": (lambda d: truncate(d, "trainer.json"), ["trainer.json"]),
    "a missing file": (lambda d: (d / MODEL).unlink(), [MODEL, "missing"]),
    "a missing config.json": (lambda d: (d / "config.json").unlink(), ["config.json", "missing"]),
    "no trainer.json": (lambda d: (d / "trainer.json").unlink(), ["trainer.json"]),
    "a further file": (lambda d: (d / "notes.txt").write_text("x"), ["notes.txt", "not listed"]),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_newest_set_is_passed_over_by_auto_and_refused_when_named(damage, straight, saved, tmp_path):
    inflict, parts = DAMAGE[damage]
    mesh = (2, 2) if damage == "a flipped weight" else (1, 1)
    run = tmp_path / "run"
    shutil.copytree(saved((1, 2)), run)
    inflict(set_dir(run, 10))
    before = tree(tmp_path)
    done = run_mesh(mesh, tmp_path / "new", f"checkpoint.resume={set_dir(run, 10)}", code=4)
    assert all(part in done.stderr for part in [*parts, "step-00000010"]), done.stderr
    assert done.stderr.count("dmuon-train: ") == 1
    assert tree(tmp_path) == before
    run_mesh(mesh, run, "checkpoint.every=5")
    assert steps(run) == straight
    said = [w for w in warnings(run) if "step-00000010" in w]
    assert len(said) == 1 and all(part in said[0] for part in parts), said
    assert set_names(run) == ["step-00000005", "step-00000010"]
    before, after = read_set(set_dir(saved((1, 2)), 10)), read_set(set_dir(run, 10))
    assert before.keys() == after.keys() and all(before[k].tobytes() == after[k].tobytes() for k in before)


def test_when_all_sets_are_damaged_nothing_starts(saved, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(saved((1, 2)), run)
    for step in (5, 10):
        flip(set_dir(run, step), OPTIM, -1)
    before = tree(run)
    done = run_mesh((2, 2), run, "checkpoint.every=5", code=4)
    for part in ("no usable checkpoint", "run.dir=", "checkpoint.resume=none", "step-00000010: " + OPTIM, "step-00000005: " + OPTIM):
        assert done.stderr.count(part) == 1, done.stderr
    done = train(2, f"run.dir={run}", "mesh.replicate=1", "mesh.shard=2", "--eval")
    assert done.returncode == 4 and done.stderr.count("step-00000005: " + OPTIM) == 1, done.stderr
    assert tree(run) == before


def test_a_set_with_a_tensor_too_many_or_too_few_is_refused(saved, tmp_path):
    """Valid by its hashes, but not the state of this model: the manifest and the file lose a tensor."""
    source = set_dir(saved((1, 2)), 5)
    target = tmp_path / "set"
    shutil.copytree(source, target)
    manifest = json.loads((target / "trainer.json").read_text())
    (extra := target / "more.safetensors").write_bytes(tiny_safetensors("model.extra", 4))
    manifest["files"].append({"name": extra.name, "bytes": 0, "sha256": ""})
    manifest["tensors"].append({"name": "model.extra", "hash": ""})
    seal(target, manifest)
    done = run_mesh((1, 2), tmp_path / "run", f"checkpoint.resume={target}", code=4)
    assert "tensors" in done.stderr and not (tmp_path / "run").exists()


def tiny_safetensors(tensor, n):
    header = json.dumps({tensor: {"dtype": "F32", "shape": [n], "data_offsets": [0, 4 * n]}}, separators=(",", ":"))
    header += " " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header.encode() + bytes(4 * n)


def test_a_set_that_is_not_there_is_an_error(tmp_path):
    done = run_mesh((1, 2), tmp_path / "run", f"checkpoint.resume={tmp_path / 'nowhere'}", code=4)
    assert "nowhere" in done.stderr and not (tmp_path / "run").exists()


def test_eval_and_sample_read_a_set_and_change_nothing(saved, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(saved((1, 2)), run)
    before = tree(run)
    keys = [f"run.dir={run}", "mesh.replicate=1", "mesh.shard=2", "train.eval_batches=1"]
    done = train(2, *keys, f"--eval={set_dir(run, 5)}")
    assert done.returncode == 0 and "step 5" in done.stdout and "loss" in done.stdout, done.stderr
    done = train(2, *keys, "--eval")
    assert done.returncode == 0 and "step 10" in done.stdout, done.stderr
    done = train(2, *keys, "--sample", "--prompt", "In the", "train.sample_tokens=8")
    assert done.returncode == 0 and done.stdout.startswith("In the"), done.stderr
    assert tree(run) == before
