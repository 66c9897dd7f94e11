"""Gradients below the normal range: an average per axis, or any other second rounding, changes bits there and nowhere else."""
import json
import struct

import pytest

from runs import Run, bits, expect_equal, reproduce

CONFIG = "tests/dist/subnormal.yaml"
# With the default o_proj belongs to Muon; here AdamW has it.
ADAMW = "optimizer.muon.match=['*.q_proj.weight', '*.v_proj.weight']"
LOCAL = "parallel.accumulate=local"
TINIEST_NORMAL = 0x00800000


def words_of(directory, prefix):
    """Name -> the elements' bits, of the optimizer state whose names begin so."""
    found = {}
    for file in sorted(directory.glob("optim-*.safetensors")):
        data = file.read_bytes()
        (length,) = struct.unpack_from("<Q", data)
        for name, entry in json.loads(data[8:8 + length]).items():
            if name.startswith(prefix):
                first, last = entry["data_offsets"]
                found[name] = struct.unpack_from(f"<{(last - first) // 4}I", data, 8 + length + first)
    return found


def subnormal_share(words):
    return sum(0 < word & 0x7FFFFFFF < TINIEST_NORMAL for word in words) / len(words)


@pytest.mark.parametrize("keys, prefix, names", [
    ((), "momentum.", ("v_proj", "o_proj")),
    ((ADAMW,), "exp_avg.", ("o_proj",)),
], ids=["muon", "adamw"])
def test_the_gradients_of_this_job_are_subnormal(keys, prefix, names, tmp_path):
    """After one step the momentum is the gradient, the first moment a tenth of it."""
    reproduce.execute(Run("one", keys=(*keys, "train.steps=1", "checkpoint.every=1"), config=CONFIG), tmp_path)
    state = words_of(tmp_path / "one" / "checkpoints" / "step-00000001", prefix)
    for name in names:
        shares = [subnormal_share(words) for tensor, words in state.items() if name in tensor]
        assert len(shares) == 2 and min(shares) > 0.9


@pytest.fixture(scope="module")
def references(tmp_path_factory):
    scratch = tmp_path_factory.mktemp("subnormal")
    return {keys: bits(Run("one", keys=keys, config=CONFIG), scratch / str(len(keys)))
            for keys in ((), (ADAMW,))}


@pytest.mark.parametrize("keys", [(), (ADAMW,)], ids=["muon", "adamw"])
@pytest.mark.parametrize("mesh, mode", [((2, 2, 1), ()), ((1, 4, 1), ()), ((4, 1, 1), ()), ((2, 4, 1), ()), ((2, 2, 1), (LOCAL,)),
                                        ((1, 2, 2), ()), ((2, 2, 1), ("parallel.data=ddp",))],
                         ids=["2x2", "1x4", "4x1", "2x4", "2x2-local", "1x2x2", "2x2-ddp"])
def test_subnormal_gradients_have_the_bits_of_one_rank(keys, mesh, mode, references, tmp_path):
    row = Run("row", mesh[0], mesh[1], "", (*keys, *mode), config=CONFIG, tp=mesh[2])
    expect_equal(row, bits(row, tmp_path), references[keys])
