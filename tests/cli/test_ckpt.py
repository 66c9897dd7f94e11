"""dmuon-ckpt on checkpoints of a real run, read a second time by plain Python: formats, exit codes, exports."""
import hashlib
import json
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

from helpers import CKPT, ROOT, TRAIN, environment, launch

STATE = ("momentum.", "exp_avg.", "exp_avg_sq.")


def run(*command, timeout=120):
    return subprocess.run([str(c) for c in command], cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=timeout)


def ckpt(*arguments):
    return run(CKPT, *arguments)


def train(directory, ranks, *overrides):
    done = run(*launch(ranks), TRAIN, "configs/bits-tiny.yaml", "mesh.replicate=1", f"mesh.shard={ranks}", "threads=1",
               "train.steps=4", "checkpoint.every=2", f"run.dir={directory}", *overrides)
    assert done.returncode == 0, done.stderr
    return directory / "checkpoints"


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """Sets of one run on one rank and of the same run on two."""
    tmp = tmp_path_factory.mktemp("ckpt")
    return {1: train(tmp / "one", 1), 2: train(tmp / "two", 2)}


@pytest.fixture
def copy(sets, tmp_path):
    """A set that a test may damage."""
    return Path(shutil.copytree(sets[2] / "step-00000004", tmp_path / "copy"))


def read_safetensors(path):
    """name -> (dtype, array of the stored integers or floats), by the format's definition."""
    data = path.read_bytes()
    (n,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + n])
    assert header.pop("__metadata__") == {"format": "pt"}
    assert n % 8 == 0
    tensors, at = {}, 0
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        assert begin == at, "contiguous, in the header's order"
        at = end
        raw = data[8 + n + begin:8 + n + end]
        array = np.frombuffer(raw, dtype={"F32": "<f4", "BF16": "<u2"}[entry["dtype"]]).reshape(entry["shape"])
        tensors[name] = (entry["dtype"], array)
    assert 8 + n + at == len(data)
    return tensors


def read_weights(directory):
    index = directory / "model.safetensors.index.json"
    if not index.exists():
        return read_safetensors(directory / "model.safetensors")
    weight_map = json.loads(index.read_text())["weight_map"]
    tensors = {}
    for name in sorted(set(weight_map.values())):
        tensors.update(read_safetensors(directory / name))
    assert set(tensors) == set(weight_map)
    return tensors


def test_a_set_is_what_its_table_of_contents_says(sets):
    directory = sets[2] / "step-00000004"
    data = (directory / "trainer.json").read_bytes()
    trainer = json.loads(data)
    comma = data.rindex(b',"self":')
    assert trainer["self"] == hashlib.sha256(data[:comma]).hexdigest()
    assert list(trainer)[-1] == "self"
    assert trainer["step"] == 4 and trainer["samples"] == 64 and trainer["adamw_t"] == 4
    assert trainer["mesh"] == {"replicate": 1, "shard": 2, "tp": 1}
    assert len(trainer["run_id"]) == 32
    listed = {f["name"]: f for f in trainer["files"]}
    assert set(listed) == {p.name for p in directory.iterdir()} - {"trainer.json"}
    for name, entry in listed.items():
        content = (directory / name).read_bytes()
        assert entry["bytes"] == len(content) and entry["sha256"] == hashlib.sha256(content).hexdigest(), name
    tensors = [name for p in directory.glob("*.safetensors") for name in read_safetensors(p)]
    assert sorted(tensors) == sorted(t["name"] for t in trainer["tensors"])
    weights = {n for n in tensors if not n.startswith(STATE)}
    for name in weights:
        has = {p for p in STATE if p + name in tensors}
        assert has in ({"momentum."}, {"exp_avg.", "exp_avg_sq."}), name


def test_the_index_covers_the_weights_with_their_size(sets):
    directory = sets[2] / "step-00000004"
    index = json.loads((directory / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(array.nbytes for _, array in read_weights(directory).values())
    config = json.loads((directory / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"] and config["torch_dtype"] == "float32"


def test_info_says_the_same_in_json(sets):
    directory = sets[2] / "step-00000004"
    done = ckpt("info", directory, "--json")
    assert done.returncode == 0
    info, trainer = json.loads(done.stdout), json.loads((directory / "trainer.json").read_text())
    elsewhere = {"config", "data", "tensors", "self"}
    assert [key for key in trainer if key not in elsewhere and info[key] != trainer[key]] == []
    assert info["parameters"] == sum(array.size for _, array in read_weights(directory).values())
    assert "step 4" in ckpt("info", directory).stdout


def test_sets_of_two_meshes_are_equal_and_of_two_steps_are_not(sets):
    for step in ("step-00000002", "step-00000004"):
        done = ckpt("diff", sets[1] / step, sets[2] / step)
        assert done.returncode == 0, done.stdout
    done = ckpt("diff", sets[1] / "step-00000002", sets[1] / "step-00000004", "--json")
    assert done.returncode == 1
    result = json.loads(done.stdout)
    assert not result["equal"]
    a = {n: t for p in (sets[1] / "step-00000002").glob("*.safetensors") for n, t in read_safetensors(p).items()}
    b = {n: t for p in (sets[1] / "step-00000004").glob("*.safetensors") for n, t in read_safetensors(p).items()}
    for entry in result["tensors"]:
        x, y = (t[entry["name"]][1].ravel().view("<u4") for t in (a, b))
        different = np.flatnonzero(x != y)
        assert entry["index"] == different[0] and entry["differing"] == len(different)
        assert entry["a_bits"] == f"{x[different[0]]:08x}" and entry["b_bits"] == f"{y[different[0]]:08x}"
    unlisted = set(a) - {e["name"] for e in result["tensors"]}
    assert all(np.array_equal(a[n][1].view("<u4"), b[n][1].view("<u4")) for n in unlisted)


def test_one_ulp_is_one_ulp(copy, sets):
    path = next(copy.glob("model-*.safetensors"))
    data = bytearray(path.read_bytes())
    (bits,) = struct.unpack("<I", data[-4:])
    data[-4:] = struct.pack("<I", bits + 1)
    path.write_bytes(data)
    result = json.loads(ckpt("diff", sets[2] / "step-00000004", copy, "--json").stdout)
    (entry,) = result["tensors"]
    assert entry["ulp"] == 1 and entry["differing"] == 1 and entry["index"] == entry["elements"] - 1


def test_verify_accepts_the_whole_and_names_the_damage(copy):
    assert ckpt("verify", copy).returncode == 0
    assert json.loads(ckpt("verify", copy, "--json").stdout) == {"dir": str(copy), "valid": True, "error": None}
    stray = copy / "stray"
    stray.write_text("x")
    done = ckpt("verify", copy)
    assert done.returncode == 4 and "stray" in done.stderr
    stray.unlink()
    for path in sorted(copy.iterdir()):
        original = path.read_bytes()
        damaged = bytearray(original)
        damaged[-3] ^= 1
        for content in (bytes(damaged), original[:-1], original + b"\0"):
            path.write_bytes(content)
            done = ckpt("verify", copy, "--json")
            assert done.returncode == 4, path.name
            result = json.loads(done.stdout)
            assert not result["valid"] and path.name in result["error"], result
        path.unlink()
        assert ckpt("verify", copy).returncode == 4, path.name
        path.write_bytes(original)
    assert ckpt("verify", copy).returncode == 0


def test_a_damaged_tensor_is_named(copy):
    path = sorted(copy.glob("optim-*.safetensors"))[0]
    last = list(read_safetensors(path))[-1]
    data = bytearray(path.read_bytes())
    data[-1] ^= 0x40
    path.write_bytes(data)
    done = ckpt("verify", copy)
    assert done.returncode == 4 and f"tensor {last}" in done.stderr


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_exports_hold_the_weights_and_nothing_else(sets, tmp_path, dtype, single):
    source, out = sets[2] / "step-00000004", tmp_path / "out"
    done = ckpt("export", source, "--out", out, "--dtype", dtype, *(["--single-file"] if single else []))
    assert done.returncode == 0, done.stderr
    names = {p.name for p in out.iterdir()}
    assert ("model.safetensors" in names) == single and "trainer.json" not in names and "config.json" in names
    assert not [n for n in names if n.startswith("optim")]
    assert json.loads((out / "config.json").read_text())["torch_dtype"] == {"f32": "float32", "bf16": "bfloat16"}[dtype]
    before, after = read_weights(source), read_weights(out)
    assert set(before) == set(after)
    for name, (_, x) in before.items():
        kind, y = after[name]
        bits = x.view("<u4").astype(np.uint64)
        if dtype == "f32":
            assert kind == "F32" and np.array_equal(bits, y.view("<u4"))
        else:  # round to nearest, ties to even
            assert kind == "BF16" and np.array_equal((bits + 0x7fff + (bits >> 16 & 1)) >> 16, y)


def test_an_export_never_overwrites(sets, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    done = ckpt("export", sets[1] / "step-00000004", "--out", out)
    assert done.returncode == 2 and "exists already" in done.stderr
    assert not list(out.iterdir())


@pytest.mark.parametrize("arguments", [[], ["info"], ["info", "a", "b"], ["diff", "a"], ["export", "a"], ["export", "a", "--out"],
                                       ["export", "a", "--out", "b", "--dtype", "f16"], ["info", "a", "--out", "b"],
                                       ["look", "a"], ["info", "a", "--wide"]])
def test_wrong_usage_exits_with_2(arguments):
    done = ckpt(*arguments)
    assert done.returncode == 2 and "--help" in done.stderr and done.stdout == ""


def test_what_cannot_be_read_exits_with_4(sets, tmp_path):
    good = sets[1] / "step-00000004"
    for arguments in (["info", tmp_path], ["verify", tmp_path / "absent"], ["diff", good, tmp_path], ["diff", tmp_path, good],
                      ["export", tmp_path, "--out", tmp_path / "new"]):
        assert ckpt(*arguments).returncode == 4, arguments
    assert not (tmp_path / "new").exists()


def test_help_and_version_print_to_stdout():
    assert "usage: dmuon-ckpt" in ckpt("--help").stdout
    assert ckpt("--version").stdout.startswith("dmuon-ckpt ")
