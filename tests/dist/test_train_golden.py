"""The engine as a whole, from file to checkpoint, against five steps of PyTorch in binary64 (tests/golden)."""
import json
import struct

import numpy as np
import pytest

from runs import ROOT, Run, reproduce

CONFIG = "tests/golden/golden_train.yaml"
TOLERANCE = {"direct": 5e-5, "gram": 3e-4}  # of the norm; measured: 4e-7 and 4e-6


def read_weights(directory):
    """Name -> float32 array of every tensor of a safetensors directory."""
    weights = {}
    for file in sorted(directory.glob("model*.safetensors")):
        data = file.read_bytes()
        (length,) = struct.unpack_from("<Q", data)
        for name, entry in json.loads(data[8:8 + length]).items():
            if name == "__metadata__":
                continue
            assert entry["dtype"] == "F32"
            first, last = entry["data_offsets"]
            weights[name] = np.frombuffer(data[8 + length + first:8 + length + last], dtype="<f4").reshape(entry["shape"])
    return weights


@pytest.mark.parametrize("algorithm", TOLERANCE)
@pytest.mark.parametrize("mesh", [(1, 1, 1), (2, 2, 1), (1, 2, 2)], ids=lambda mesh: reproduce.mesh_name(*mesh))
def test_weights_after_five_steps_are_those_of_pytorch(algorithm, mesh, tmp_path):
    keys = (f"optimizer.muon.ns.algorithm={algorithm}", "batch.micro=1")
    run = Run("golden", mesh[0], mesh[1], "", keys, config=CONFIG, tp=mesh[2])
    events = reproduce.execute(run, tmp_path)
    weights = read_weights(tmp_path / "golden" / "checkpoints" / "step-00000005")
    start = read_weights(ROOT / "tests/golden/tiny_init")
    golden = np.fromfile(ROOT / "tests/golden/train_weights.bin", dtype="<f4")
    at = 0
    for row in events[0]["parameters"]:
        size = int(np.prod(row["shape"]))
        expected = golden[at:at + size].reshape(row["shape"]).astype(np.float64)
        at += size
        got = weights.pop(row["name"])
        assert list(got.shape) == row["shape"]
        error = np.linalg.norm(got - expected) / np.linalg.norm(expected)
        moved = np.linalg.norm(start[row["name"]] - expected) / np.linalg.norm(expected)
        assert error < TOLERANCE[algorithm] < moved, f"{row['name']}: off by {error:.3g} of its norm"
    assert at == golden.size and not weights
