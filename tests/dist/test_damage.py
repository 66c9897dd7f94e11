"""No damage of a set goes unseen: a flipped bit anywhere, a cut or missing file, a hash that is not there. The message names the file
and, where it lies in a tensor, the tensor; `auto` takes an older set and says so."""
import copy
import hashlib
import json
import random
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from helpers import CKPT, records, set_dir, steps, train, tree, warnings

CONFIG = "tests/dist/one-layer.yaml"
FLIPS = 300
LAST = 5


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Five steps with sets of 2, 4 and 5."""
    run = tmp_path_factory.mktemp("made") / "run"
    done = train(1, f"run.dir={run}", config=CONFIG)
    assert done.returncode == 0, done.stderr
    return run


@pytest.fixture(scope="module")
def names(made):
    found = sorted(p.name for p in set_dir(made, LAST).iterdir())
    assert found == ["config.json", "model-00001-of-00001.safetensors", "model.safetensors.index.json", "optim-00001-of-00001.safetensors",
                     "trainer.json"]
    return found


def verify(directory):
    return subprocess.run([CKPT, "verify", directory], check=False, capture_output=True, text=True, errors="replace")


def extents(path):
    """[(first byte, byte after the last, tensor)] of a safetensors file."""
    data = path.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:begin])
    return [(begin + e["data_offsets"][0], begin + e["data_offsets"][1], name) for name, e in header.items() if name != "__metadata__"]


def expect_refusal(done, parts, what):
    assert done.returncode == 4, (what, done.returncode, done.stdout, done.stderr)
    assert all(part in done.stderr for part in parts), (what, parts, done.stderr)


def test_each_of_300_flipped_bits_is_found_and_named(made, names, tmp_path):
    rng = random.Random(11)
    source = set_dir(made, LAST)
    places = [(name, rng.randrange((source / name).stat().st_size), rng.randrange(8)) for _ in range(FLIPS // len(names)) for name in names]
    tensors = {name: extents(source / name) for name in names if name.endswith(".safetensors")}
    hits = []

    def one(number):
        name, at, bit = places[number]
        target = shutil.copytree(source, tmp_path / f"set-{number}")
        data = bytearray((target / name).read_bytes())
        data[at] ^= 1 << bit
        (target / name).write_bytes(data)
        hit = [f"tensor {tensor} differs" for first, end, tensor in tensors.get(name, []) if first <= at < end]
        expect_refusal(verify(target), [name, *hit], f"bit {bit} of byte {at} of {name}")
        hits.extend(hit)
        shutil.rmtree(target)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(one, range(FLIPS)))
    assert len(hits) > 90 and len(set(hits)) > 10, "most flips of a safetensors file are in a tensor, and in different ones"


DAMAGE = {"missing": lambda p: p.unlink(), "empty": lambda p: p.write_bytes(b""),
          "cut to 8 bytes": lambda p: p.write_bytes(p.read_bytes()[:8]),
          "cut to the half": lambda p: p.write_bytes(p.read_bytes()[:p.stat().st_size // 2]),
          "cut by a byte": lambda p: p.write_bytes(p.read_bytes()[:-1])}


@pytest.mark.parametrize("damage", DAMAGE)
def test_each_missing_or_cut_file_is_refused_by_name(damage, made, names, tmp_path):
    for name in names:
        target = shutil.copytree(set_dir(made, LAST), tmp_path / name)
        DAMAGE[damage](target / name)
        expect_refusal(verify(target), [name], damage)
        before = tree(tmp_path)
        check = train(1, f"run.dir={tmp_path / 'run'}", f"checkpoint.resume={target}", "train.steps=9", "--check", config=CONFIG)
        expect_refusal(check, [name, str(target)], damage)
        assert tree(tmp_path) == before


@pytest.mark.parametrize("damage", ["missing", "cut to the half", "a flipped bit"])
def test_auto_takes_an_older_set_and_says_why(damage, made, names, tmp_path):
    rng = random.Random(12)
    for name in names:
        run = shutil.copytree(made, tmp_path / name)
        shutil.rmtree(set_dir(run, LAST))
        path = set_dir(run, 4) / name
        if damage == "a flipped bit":
            data = bytearray(path.read_bytes())
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            path.write_bytes(data)
        else:
            DAMAGE[damage](path)
        done = train(1, f"run.dir={run}", config=CONFIG)
        assert done.returncode == 0 and "resuming after step 2" in done.stderr, done.stderr
        (said,) = [w for w in warnings(run) if "passed over" in w]
        assert f"step-{4:08d}" in said and name in said and said in done.stderr, (said, done.stderr)
        assert steps(run) == steps(made) and records(run, "resume")[-1]["step"] == 2
        assert verify(set_dir(run, 4)).returncode == 0, "the damaged set was replaced"


def seal(directory, manifest):
    """Writes trainer.json as it is, with a "self" that fits."""
    body = json.dumps(manifest, separators=(",", ":"), ensure_ascii=False)[:-1].encode()
    (directory / "trainer.json").write_bytes(body + f',"self":"{hashlib.sha256(body).hexdigest()}"}}\n'.encode())


def test_each_hash_that_is_missing_is_missed(made, tmp_path):
    target = shutil.copytree(set_dir(made, LAST), tmp_path / "set")
    text = (target / "trainer.json").read_bytes()
    manifest = json.loads(text)
    manifest.pop("self")
    seal(target, manifest)
    assert (target / "trainer.json").read_bytes() == text, "nothing changed, nothing but the seal is new"
    without_self = text[:text.rindex(b',"self"')] + b"}\n"
    cases = {"self": without_self}
    for kind, hash_name in (("files", "sha256"), ("tensors", "hash")):
        for index in range(len(manifest[kind])):
            for whole in (False, True):  # the hash of an entry, the entry
                changed = copy.deepcopy(manifest)
                if whole:
                    del changed[kind][index]
                else:
                    del changed[kind][index][hash_name]
                seal(target, changed)
                cases[f"{kind}[{index}]" + ("" if whole else f".{hash_name}")] = (target / "trainer.json").read_bytes()
    for kind in ("files", "tensors"):
        changed = {name: value for name, value in manifest.items() if name != kind}
        seal(target, changed)
        cases[kind] = (target / "trainer.json").read_bytes()
    assert len(cases) == 1 + 2 * len(manifest["files"]) + 2 * len(manifest["tensors"]) + 2
    for case, content in cases.items():
        (target / "trainer.json").write_bytes(content)
        missing = [t["name"] for i, t in enumerate(manifest["tensors"]) if case == f"tensors[{i}]"]
        expect_refusal(verify(target), ["trainer.json", *missing], case)
    for case in ("self", "files[1].sha256", "tensors[3].hash", "files[1]", "tensors[3]", "tensors"):
        (target / "trainer.json").write_bytes(cases[case])
        done = train(1, f"run.dir={tmp_path / 'run'}", f"checkpoint.resume={target}", "train.steps=9", config=CONFIG)
        expect_refusal(done, ["trainer.json"], case)
        assert not (tmp_path / "run").exists()
    (target / "trainer.json").write_bytes(text)
    assert verify(target).returncode == 0
