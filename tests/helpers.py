"""Starting runs and reading what they leave: logs, checkpoint sets, directory trees."""
import hashlib
import json
import math
import os
import shutil
import signal
import struct
import subprocess
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
BIN = ROOT / os.environ.get("DM_BIN", "bin")
TRAIN = BIN / "dmuon-train"
CKPT = BIN / "dmuon-ckpt"
TINY = "configs/bits-tiny.yaml"
SLOW = os.environ.get("DM_SLOW", "") not in ("", "0")
STOPPED = 75


def environment(extra=None):
    """The caller's, with what Open MPI asks for as root and in containers, and without what a surrounding job says."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "DMUON_", "OMP_NUM"))}
    env.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    env.setdefault("OMPI_MCA_btl_vader_single_copy_mechanism", "none")
    env.update(extra or {})
    return env


def launch(ranks):
    """One rank is started without mpirun."""
    return [] if ranks == 1 else ["mpirun", "-q", "--oversubscribe", "--bind-to", "none", "-np", str(ranks)]


def start(ranks, *arguments, config=TINY, env=None, cwd=ROOT):
    """A running training in a process group of its own."""
    command = [*launch(ranks), str(TRAIN), *([str(config)] if config else []), *map(str, arguments)]
    return subprocess.Popen(command, env=environment(env), cwd=cwd, text=True, errors="replace", stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)


def finish(process, timeout=90):
    """Waits; a process that does not end is killed with its group, and the test fails."""
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired as late:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        raise AssertionError(f"{process.args}: not done after {timeout} s\n{out}\n{err}") from late
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def train(ranks, *arguments, config=TINY, env=None, cwd=ROOT, timeout=90):
    return finish(start(ranks, *arguments, config=config, env=env, cwd=cwd), timeout)


def wait_for(condition, process=None, seconds=60):
    """Until `condition()` holds; `process` must not end before."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.02)


def has_step(run_dir, step):
    log = Path(run_dir) / "log.jsonl"
    return log.exists() and f'"event":"step","step":{step},' in log.read_text()


def ranks_of(process, count):
    """{rank: process id} of a running mpirun."""
    found = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
            parent = int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rsplit(")", 1)[1].split()[1])
        except (OSError, ValueError):
            continue
        rank = [v.split("=", 1)[1] for v in variables if v.startswith("PMIX_RANK=")]
        if parent == process.pid and rank:
            found[int(rank[0])] = pid
    assert sorted(found) == list(range(count)), found
    return found


def mesh_keys(mesh):
    """Of (R, G) or (R, G, T)."""
    return [f"mesh.{axis}={size}" for axis, size in zip(("replicate", "shard", "tp"), mesh)]


def run_mesh(mesh, run_dir, *arguments, code=0, **options):
    """A run of configs/bits-tiny.yaml on a mesh (R, G) or (R, G, T), which ends with `code`."""
    done = train(math.prod(mesh), f"run.dir={run_dir}", "threads=1", *mesh_keys(mesh), *arguments, **options)
    assert done.returncode == code, f"{done.args}: exit {done.returncode}, not {code}\n{done.stderr}"
    return done


# ---- the log ----


def strict_json(text):
    """A value without NaN or infinity, and without a name that stands twice in an object."""

    def refuse(word):
        raise ValueError(f"{word} is not JSON")

    def once(pairs):
        if len({name for name, _ in pairs}) != len(pairs):
            raise ValueError(f"a name stands twice: {pairs}")
        return dict(pairs)

    return json.loads(text, parse_constant=refuse, object_pairs_hook=once)


def records(run_dir, event=None):
    """Every line is one strict JSON object."""
    text = (Path(run_dir) / "log.jsonl").read_text()
    assert text.endswith("\n")
    lines = [strict_json(line) for line in text.splitlines()]
    return [r for r in lines if event is None or r["event"] == event]


def steps(run_dir):
    """{step: (loss bits, hash of the whole state)}; no step is there twice, and they ascend."""
    found = records(run_dir, "step")
    numbers = [r["step"] for r in found]
    assert numbers == sorted(set(numbers)), f"repeated or unordered steps: {numbers}"
    return {r["step"]: (r["loss_bits"], r.get("params_hash")) for r in found}


def warnings(run_dir):
    return [r["text"] for r in records(run_dir, "warning")]


# ---- sets ----


def set_dir(run_dir, step):
    return Path(run_dir) / "checkpoints" / f"step-{step:08d}"


def set_names(run_dir):
    root = Path(run_dir) / "checkpoints"
    return sorted(p.name for p in root.iterdir()) if root.exists() else []


def read_safetensors(path):
    """(header text, {name: f32 array}) in the order of the file."""
    data = Path(path).read_bytes()
    (n,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + n])
    header.pop("__metadata__", None)
    body = data[8 + n:]
    return data[:8 + n], {name: np.frombuffer(body[e["data_offsets"][0]:e["data_offsets"][1]], "<f4").reshape(e["shape"]).copy()
                          for name, e in header.items()}


def read_set(directory):
    tensors = {}
    for path in sorted(Path(directory).glob("*.safetensors")):
        tensors.update(read_safetensors(path)[1])
    return tensors


GOLDEN = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1


def mix64(x):
    """The finaliser of splitmix64, on integers or on arrays of uint64."""
    with np.errstate(over="ignore"):
        if isinstance(x, int):
            x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
            x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
            return x ^ (x >> 31)
        u = np.uint64
        x = (x ^ (x >> u(30))) * u(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> u(27))) * u(0x94D049BB133111EB)
        return x ^ (x >> u(31))


def name_hash(name):
    data = name.encode()
    value = mix64((GOLDEN * (len(data) + 1)) & MASK)
    whole = len(data) // 8 * 8
    for i in range(0, whole, 8):
        value = (mix64(value ^ int.from_bytes(data[i:i + 8], "little")) + GOLDEN) & MASK
    return mix64(value ^ int.from_bytes(data[whole:], "little"))


def tensor_hash(name, array):
    """The 64-bit sum over elements that trainer.json lists."""
    bits = np.ascontiguousarray(array, "<f4").view("<u4").reshape(-1).astype(np.uint64)
    with np.errstate(over="ignore"):
        places = np.uint64(name_hash(name)) + np.uint64(GOLDEN) * np.arange(bits.size, dtype=np.uint64)
        return int(np.sum(mix64(mix64(places) ^ bits), dtype=np.uint64))


def seal(directory, manifest):
    """Writes trainer.json with sizes, hashes and "self" as the files are now."""
    directory = Path(directory)
    tensors = read_set(directory)
    for entry in manifest["files"]:
        data = (directory / entry["name"]).read_bytes()
        entry.update(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    for entry in manifest["tensors"]:
        entry["hash"] = f"{tensor_hash(entry['name'], tensors[entry['name']]):016x}"
    manifest.pop("self", None)
    body = json.dumps(manifest, separators=(",", ":"), ensure_ascii=False)[:-1].encode()
    (directory / "trainer.json").write_bytes(body + f',"self":"{hashlib.sha256(body).hexdigest()}"}}\n'.encode())


def rewrite_set(source, target, tensors=None, **members):
    """A valid set that differs from `source`: `tensors` maps names to a function of the array, `members` replaces members
    of trainer.json."""
    shutil.copytree(source, target)
    missing = set(tensors or {})
    for path in sorted(target.glob("*.safetensors")):
        header, arrays = read_safetensors(path)
        for name in missing & set(arrays):
            changed = np.asarray(tensors[name](arrays[name]), "<f4")
            assert changed.shape == arrays[name].shape
            arrays[name] = changed
        missing -= set(arrays)
        path.write_bytes(header + b"".join(a.astype("<f4").tobytes() for a in arrays.values()))
    assert not missing, f"no such tensors: {missing}"
    manifest = json.loads((target / "trainer.json").read_text())
    assert set(members) <= set(manifest)
    manifest.update(members)
    seal(target, manifest)
    return target


# ---- directories ----


def tree(top):
    """Every path below `top` with kind, mode and contents: what would differ if anything were created or changed."""
    top = Path(top)
    return {str(p.relative_to(top)): (oct(p.lstat().st_mode), hashlib.sha256(p.read_bytes()).hexdigest() if p.is_file() else "")
            for p in sorted(top.rglob("*"))}
