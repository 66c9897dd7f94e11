"""Tensor parallelism against PyTorch in binary64 (tests/golden): the loss and every gradient of one step, and the weights after five."""
import importlib.util
import json
import math
import struct
import sys
import unittest.mock

import numpy as np
import pytest

from helpers import ROOT, read_set, records, run_mesh, set_dir
from runs import reproduce

TRAIN_TOLERANCE = {"direct": 5e-5, "gram": 3e-4}  # of the norm, as without tp
TOLERANCE = 1e-5
GOLDEN = ROOT / "tests" / "golden"
B, T = 2, 16


def recipe():
    """The script that made the golden files. What it does with PyTorch stands in functions that are not called here."""
    spec = importlib.util.spec_from_file_location("make_model_golden", GOLDEN / "make_model_golden.py")
    module = importlib.util.module_from_spec(spec)
    with unittest.mock.patch.dict(sys.modules, torch=unittest.mock.MagicMock()):
        spec.loader.exec_module(module)
    return module


RECIPE = recipe()


def formula_array(row, name, shape):
    """formula_tensor of the recipe, without PyTorch."""
    unit = np.array([((RECIPE.formula(row, i) >> 20) - 2048) / 2048 for i in range(math.prod(shape))]).reshape(shape)
    if "embed_tokens" in name:
        return unit
    return 1 + unit / 4 if name.endswith("norm.weight") else unit / 4


def write_weights(path, model):
    header, blobs, at = {}, [], 0
    for row, (name, shape) in enumerate(RECIPE.registry(model)):
        blobs.append(formula_array(row, name, shape).astype("<f4").tobytes())
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + len(blobs[-1])]}
        at += len(blobs[-1])
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def write_windows(folder, model):
    """One file for each window, so that none overlaps another."""
    for b in range(B):
        ids = [RECIPE.formula(1000, b * (T + 1) + t) % model["vocab"] for t in range(T + 1)]
        (folder / f"window-{b}.bin").write_bytes(struct.pack("<256i", 20240520, 1, len(ids), *[0] * 253) + struct.pack(f"<{len(ids)}H", *ids))


CONFIG = """
model: {{family: llama, d_model: {d_model}, n_layers: {n_layers}, n_heads: {n_heads}, n_kv_heads: {n_kv_heads}, head_dim: {head_dim},
         d_ff: {d_ff}, vocab_size: {vocab}, max_seq_len: 64, rope_theta: {theta}, norm_eps: {eps}, tie_embeddings: {tied},
         qkv_bias: {qkv_bias}, qk_norm: {qk_norm}}}
mesh: {{replicate: 1}}
optimizer: {{clip: {{max_norm: 0}}, adamw: {{betas: [0.5, 0.5]}}}}
batch: {{global: 2, micro: 2, seq_len: 16}}
data: {{train: "{folder}/window-*.bin", shuffle: false}}
train: {{steps: 1}}
checkpoint: {{every: 1}}
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """job(kind): configuration that starts from the golden weights."""
    made = {}

    def get(kind):
        if kind not in made:
            folder = tmp_path_factory.mktemp(kind)
            model = RECIPE.KINDS[kind]
            write_windows(folder, model)
            text = CONFIG.format(folder=folder, **{k: str(v).lower() for k, v in model.items()})
            config = made[kind] = folder / "golden.yaml"
            config.write_text(text)
            run_mesh((1, 1), folder / "any", config=config)  # for its config.json
            (folder / "init").mkdir()
            (folder / "init" / "config.json").write_text((set_dir(folder / "any", 1) / "config.json").read_text())
            write_weights(folder / "init" / "model.safetensors", model)
        return made[kind]

    return get


def off_by(got, golden):
    return np.linalg.norm(got.astype(np.float64) - golden) / np.linalg.norm(golden)


# After one step the momentum is the gradient and, with b1 = 0.5, the first moment its half.
@pytest.mark.parametrize("kind,tp", [("mha", 1), ("mha", 2), ("mha", 4), ("gqa_tied_qk_norm", 2), ("bias_vocab61", 2)])
def test_loss_and_gradients_are_those_of_pytorch(kind, tp, job, tmp_path):
    config = job(kind)
    run_mesh((1, 1, tp), tmp_path / "run", f"checkpoint.init_from={config.parent / 'init'}", config=config)
    model = RECIPE.KINDS[kind]
    golden = np.fromfile(GOLDEN / f"model_{kind}.bin", dtype="<f4").astype(np.float64)
    (step,) = records(tmp_path / "run", "step")
    assert abs(step["loss"] - golden[0]) < TOLERANCE * golden[0]
    state = read_set(set_dir(tmp_path / "run", 1))
    at = 1 + B * T * model["vocab"]
    for name, shape in RECIPE.registry(model):
        size = math.prod(shape)
        gradient = state[f"momentum.{name}"] if f"momentum.{name}" in state else 2 * state[f"exp_avg.{name}"]
        error = off_by(gradient.reshape(-1), golden[at:at + size])
        assert error < TOLERANCE, f"{name}: off by {error:.3g} of its norm"
        at += size
    assert at == golden.size


TRAINED = [((1, 1, 2), ()), ((1, 2, 2), ("parallel.data=ddp",)), ((2, 1, 2), ("optimizer.muon.tp_distributed_gram=always",))]


@pytest.mark.parametrize("algorithm", TRAIN_TOLERANCE)
@pytest.mark.parametrize("mesh,keys", TRAINED, ids=lambda x: reproduce.mesh_name(*x) if len(x) == 3 else "".join(x)[-6:])
def test_weights_after_five_steps_are_those_of_pytorch(mesh, keys, algorithm, tmp_path):
    run_mesh(mesh, tmp_path / "run", f"optimizer.muon.ns.algorithm={algorithm}", *keys, config="tests/golden/golden_train.yaml")
    weights = read_set(set_dir(tmp_path / "run", 5))
    golden = np.fromfile(GOLDEN / "train_weights.bin", dtype="<f4").astype(np.float64)
    at = 0
    for name, shape in RECIPE.registry(RECIPE.TRAINED):
        size = math.prod(shape)
        error = off_by(weights[name].reshape(-1), golden[at:at + size])
        assert error < TRAIN_TOLERANCE[algorithm], f"{name}: off by {error:.3g} of its norm"
        at += size
    assert at == golden.size
