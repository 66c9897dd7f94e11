"""Hugging Face transformers against the engine, both ways. Its models start runs whose first loss is theirs, always from the
golden files of tests/golden/make_hf_golden.py; where transformers is installed it also opens what the engine writes, and makes new
models. Logits are compared by build/unit/test_hf_golden."""
import functools
import json
import os
import shutil
import struct
import subprocess
import sys

import pytest

from helpers import CKPT, ROOT, environment, records, set_dir, train

GOLDEN = ROOT / "tests/golden/hf"
MAKE = ROOT / "tests/golden/make_hf_golden.py"
LOGITS = ROOT / os.environ.get("DM_BUILD", "build/release") / "unit/test_hf_golden"
KINDS = sorted(p.name for p in GOLDEN.iterdir() if p.is_dir())
MESHES = [(1, 1, 1), (2, 2, 1), (1, 1, 2)]
TOLERANCE = 1e-5
ABSENT = 77  # exit code of MAKE without transformers

CONFIG = """\
model:
  family: llama
  d_model: {hidden_size}
  n_layers: {num_hidden_layers}
  n_heads: {num_attention_heads}
  n_kv_heads: {num_key_value_heads}
  head_dim: {head_dim}
  d_ff: {intermediate_size}
  vocab_size: {vocab_size}
  max_seq_len: {max_position_embeddings}
  rope_theta: {rope_theta}
  norm_eps: {rms_norm_eps}
  tie_embeddings: {tied}
  qkv_bias: {qkv_bias}
  qk_norm: {qk_norm}
mesh: {{replicate: 1, shard: 1, tp: 1}}
batch: {{global: 4, micro: 1, seq_len: 16}}
data: {{train: {tokens}, val: {tokens}, shuffle: false}}
train: {{steps: 2}}
checkpoint: {{every: 2, init_from: {directory}}}
"""


def config_of(directory, path):
    """A configuration for the model that `directory` holds, which starts from it."""
    theirs = json.loads((directory / "config.json").read_text())
    kind = theirs["model_type"]
    theirs.update(theirs.get("rope_parameters") or {})
    path.write_text(CONFIG.format(
        **theirs, directory=directory, tokens=directory.parent / "tokens.bin", tied=str(theirs["tie_word_embeddings"]).lower(),
        qkv_bias=str(kind == "qwen2").lower(), qk_norm=str(kind == "qwen3").lower()))
    return path


def golden_loss(directory):
    return struct.unpack_from("<f", (directory / "golden.bin").read_bytes())[0]


def train_from(directory, mesh, scratch):
    """The step records of two steps that start from a Hugging Face directory."""
    sizes = [f"mesh.{axis}={n}" for axis, n in zip(("replicate", "shard", "tp"), mesh)]
    config = config_of(directory, scratch / f"{directory.name}.yaml")
    run_dir = scratch / f"{directory.name}-{'x'.join(map(str, mesh))}"
    done = train(mesh[0] * mesh[1] * mesh[2], f"run.dir={run_dir}", "threads=1", *sizes, config=config)
    assert done.returncode == 0, done.stderr
    return run_dir, records(run_dir, "step")


def assert_logits_agree(root):
    """Loss and logits of every kind below `root`, as the engine computes them, are those of golden.bin."""
    done = subprocess.run([LOGITS, root], cwd=ROOT, text=True, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0 and f"PASSED  ] {len(KINDS)} test" in done.stdout + done.stderr, done.stdout + done.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_starts_from_their_weights_has_their_loss_on_every_mesh(kind, tmp_path):
    runs = {mesh: train_from(GOLDEN / kind, mesh, tmp_path)[1] for mesh in MESHES}
    for mesh, steps in runs.items():
        assert steps[0]["loss"] == pytest.approx(golden_loss(GOLDEN / kind), rel=TOLERANCE), mesh
        assert [s["loss_bits"] for s in steps] == [s["loss_bits"] for s in runs[MESHES[0]]], mesh
        assert steps[1]["loss"] < steps[0]["loss"], "a step on the same windows"


# ---- where transformers is installed ----


@functools.lru_cache(maxsize=None)
def python_with_transformers():
    """The first Python that has it, or None."""
    look = "import importlib.util as u, sys; sys.exit(not (u.find_spec('torch') and u.find_spec('transformers')))"
    for python in dict.fromkeys(p for p in (sys.executable, shutil.which("python3"), "/usr/bin/python3") if p):
        if subprocess.run([python, "-c", look], capture_output=True, check=False).returncode == 0:
            return python
    return None


def transformers(*arguments):
    """Runs make_hf_golden.py, which asserts that transformers finds every weight of a directory and knows each."""
    python = python_with_transformers()
    if python is None:
        pytest.skip("torch and transformers are installed neither for this Python nor for python3 of PATH")
    done = subprocess.run([python, MAKE, *map(str, arguments)], text=True, capture_output=True, timeout=300, check=False)
    if done.returncode == ABSENT:
        pytest.skip(f"{python}: transformers cannot be imported: {done.stderr.strip()}")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module", name="sets")
def fixture_sets(tmp_path_factory):
    """A folder with sets/KIND and exports/KIND of short runs, and the golden values that transformers finds for them."""
    if python_with_transformers() is None:
        transformers()
    scratch = tmp_path_factory.mktemp("hf")
    for folder in ("sets", "exports"):
        (scratch / folder).mkdir()
        shutil.copy(GOLDEN / "tokens.bin", scratch / folder)
    for kind in KINDS:
        run_dir, _ = train_from(GOLDEN / kind, (2, 2, 1), scratch)
        shutil.copytree(set_dir(run_dir, 2), scratch / "sets" / kind)
        subprocess.run([CKPT, "export", set_dir(run_dir, 2), "--out", scratch / "exports" / kind, "--dtype", "bf16", "--single-file"],
                       env=environment(), check=True, capture_output=True, timeout=60)
    said = transformers("--golden", *(scratch / folder / kind for folder in ("sets", "exports") for kind in KINDS))
    for kind in KINDS:
        assert said.count(f"{kind}: {kind.split('_')[0].capitalize()}ForCausalLM") == 2, said
    return scratch


@pytest.mark.parametrize("kind", KINDS)
def test_transformers_opens_a_set_and_finds_the_loss_of_our_evaluation(kind, sets):
    config, run_dir = sets / f"{kind}.yaml", sets / f"{kind}-2x2x1"
    done = train(1, f"--eval={set_dir(run_dir, 2)}", f"run.dir={run_dir}", config=config)
    assert done.returncode == 0, done.stderr
    words = done.stdout.split()
    loss = float(words[words.index("loss") + 1])
    assert loss == pytest.approx(golden_loss(sets / "sets" / kind), rel=TOLERANCE)
    assert loss != pytest.approx(golden_loss(GOLDEN / kind), rel=0.01), "it was trained"


def test_logits_of_a_set_are_those_of_transformers(sets):
    assert_logits_agree(sets / "sets")


def test_transformers_opens_an_export_in_bf16_in_one_file_with_the_logits_that_we_find(sets):
    for kind in KINDS:
        names = sorted(p.name for p in (sets / "exports" / kind).iterdir())
        assert names == ["config.json", "golden.bin", "model.safetensors"]
        assert golden_loss(sets / "exports" / kind) != golden_loss(sets / "sets" / kind), "rounded"
    assert_logits_agree(sets / "exports")


def test_new_models_of_transformers_have_its_loss_and_its_logits_here(tmp_path):
    theirs = tmp_path / "theirs"
    transformers("--out", theirs, "--seed", 7)
    for kind in KINDS:
        _, steps = train_from(theirs / kind, (1, 1, 1), tmp_path)
        assert steps[0]["loss"] == pytest.approx(golden_loss(theirs / kind), rel=TOLERANCE)
        assert golden_loss(theirs / kind) != golden_loss(GOLDEN / kind)
    assert_logits_agree(theirs)
