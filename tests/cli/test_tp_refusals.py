"""Meshes with tensor parallelism that cannot be: refused before anything is made, with the legal values."""
import pytest

from helpers import train, tree

MODEL = "{family: llama, d_model: 32, n_layers: 1, n_heads: %d, n_kv_heads: %d, head_dim: %d, d_ff: %d, vocab_size: 256, max_seq_len: 64}"
FILE = """
model: %s
mesh: %s
numerics: {segments: %d}
batch: {global: 8, micro: 1, seq_len: 16}
data: {train: configs/data/kjv_train.txt}
train: {steps: 1}
"""


def write(path, model=(8, 8, 4, 64), mesh="{tp: 2}", segments=8):
    path.write_text(FILE % (MODEL % model, mesh, segments))
    return path


# (heads, kv heads, head_dim, d_ff), segments, tp, words: what T must divide, and every legal T
INDIVISIBLE = {
    "heads": ((6, 6, 8, 64), 8, 4, ["n_heads = 6", "legal values: 1, 2"]),
    "kv heads": ((8, 2, 8, 64), 8, 4, ["n_kv_heads = 2", "legal values: 1, 2"]),
    "d_ff": ((8, 8, 4, 68), 8, 8, ["d_ff = 68", "legal values: 1, 2, 4"]),
    "segments": ((8, 8, 4, 64), 2, 4, ["the segments = 2", "legal values: 1, 2"]),
    "lowered segments": ((8, 4, 4, 36), 8, 8, ["the segments = 4", "legal values: 1, 2, 4"]),
    "no power of two": ((6, 6, 8, 48), 8, 3, ["n_heads = 6", "the segments = 8", "legal values: 1, 2"]),
    "one head of keys": ((8, 1, 8, 64), 8, 2, ["n_kv_heads = 1", "legal values: 1"]),
}


def refused(config, tmp_path, parts, *arguments, ranks=1):
    before = tree(tmp_path)
    done = train(ranks, f"run.dir={tmp_path / 'run'}", *arguments, config=config)
    assert done.returncode == 2, done.stderr
    first = done.stderr.splitlines()[0]
    assert first.startswith("dmuon-train: ") and done.stderr.count("dmuon-train: ") == 1, done.stderr
    for part in parts:
        assert part in first, f"{part!r} is not in {first!r}"
    assert tree(tmp_path) == before
    return first


@pytest.mark.parametrize("case,how", [*[(c, h) for c in INDIVISIBLE for h in ("file", "override")], ("kv heads", "ranks")])
def test_tp_divides_heads_kv_heads_d_ff_and_segments(case, how, tmp_path):
    model, segments, tp, parts = INDIVISIBLE[case]
    if how == "override":
        first = refused(write(tmp_path / "a.yaml", model, "{tp: 1}", segments), tmp_path, parts, f"mesh.tp={tp}")
    else:
        first = refused(write(tmp_path / "a.yaml", model, f"{{tp: {tp}}}", segments), tmp_path, parts, ranks=tp if how == "ranks" else 1)
    assert f"mesh.tp={tp}" in first if how == "override" else "a.yaml:3: mesh.tp" in first
    assert first.endswith(parts[-1])


def test_an_automatic_tp_must_divide_too(tmp_path):
    refused(write(tmp_path / "a.yaml", (8, 2, 8, 64), "{tp: auto}"), tmp_path, ["mesh.tp = 4", "n_kv_heads = 2", "legal values: 1, 2"], ranks=4)


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_every_value_that_is_called_legal_is(tp, tmp_path):
    done = train(1, "--plan=json", config=write(tmp_path / "a.yaml", mesh=f"{{tp: {tp}}}"))
    assert done.returncode == 0, done.stderr


# Axes: mapping, words of the message
AXES = {
    "an unknown axis": ("{tensor: 2}", ["unknown key 'mesh.tensor'"]),
    "a pipeline": ("{pipeline: 2, tp: 2}", ["unknown key 'mesh.pipeline'"]),
    "a second tp axis": ("{tp: 2, tp: 2}", ["duplicate key 'mesh.tp'"]),
    "a second tp axis by another name": ("{tp: 2, tp2: 2}", ["unknown key 'mesh.tp2'", "nearest valid key is 'mesh.tp'"]),
    "tp as an axis of axes": ("{tp: {inner: 2, outer: 2}}", ["mesh.tp"]),
    "tp as a list": ("{tp: [2, 2]}", ["mesh.tp = [2, 2]", "must be an integer", "not a list"]),
    "a list of sizes": ("[2, 2, 2]", ["'mesh' must be a mapping with keys of replicate, shard, tp"]),
    "a list of axes": ("[{replicate: 2}, {tp: 2}]", ["'mesh' must be a mapping with keys of replicate, shard, tp"]),
    "a number": ("8", ["'mesh' must be a mapping with keys of replicate, shard, tp"]),
    "nothing": ("{tp: 0}", ["mesh.tp", "must be at least 1"]),
    "two automatic axes": ("{shard: auto, tp: auto}", ["only one axis of the mesh may be auto"]),
}


@pytest.mark.parametrize("case,ranks", [*[(c, 1) for c in AXES], ("a list of sizes", 2), ("a second tp axis", 2)])
def test_axes(case, ranks, tmp_path):
    mesh, parts = AXES[case]
    first = refused(write(tmp_path / "a.yaml", mesh=mesh), tmp_path, parts, ranks=ranks)
    assert "a.yaml:3: " in first


def test_ranks_that_are_not_the_product_with_tp(tmp_path):
    refused(write(tmp_path / "a.yaml", mesh="{replicate: 2, shard: 2, tp: 2}"), tmp_path,
            ["replicate 2 x shard 2 x tp 2", "needs 8 ranks", "there are 4", "mesh.replicate=2 mesh.shard=1 mesh.tp=2"], ranks=4)


def test_distributed_gram_and_buffers_take_words_of_their_list(tmp_path):
    config = write(tmp_path / "a.yaml")
    refused(config, tmp_path, ["must be one of off, beneficial, always"], "optimizer.muon.tp_distributed_gram=sometimes")
    refused(config, tmp_path, ["must be one of off, gather, scatter, all"], "parallel.tp_buffer_reuse=both")
