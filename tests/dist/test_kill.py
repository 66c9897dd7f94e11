"""kill -9 after each single change that a run makes in its directory, from the lock to the last save: whatever is listed is complete,
and the next start continues from it with the bits of a run that nobody killed."""
import os
import re
import shutil
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from helpers import CKPT, ROOT, SLOW, environment, finish, mesh_keys, set_dir, set_names, start, steps, train, warnings

CONFIG = "tests/dist/one-layer.yaml"
LAST = 5
KEPT = {"1": [LAST], "0": [2, LAST - 1, LAST]}  # by checkpoint.keep

pytestmark = pytest.mark.skipif("SAN" in os.environ, reason="a sanitizer must be the first library")


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    library = tmp_path_factory.mktemp("shim") / "kill_shim.so"
    source = ROOT / "tests" / "fixtures" / "kill_shim.c"
    subprocess.run(["gcc", "-std=c17", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", library, source, "-ldl"],
                   check=True)
    return library


class Job:
    """A run of five steps that stands at step 2, with a set of it and the remains of killed saves."""

    def __init__(self, top, shim):
        self.shim, self.base = shim, top / "base"
        done = train(1, f"run.dir={top / 'straight'}", config=CONFIG)
        assert done.returncode == 0, done.stderr
        self.whole, self.straight = top / "straight", steps(top / "straight")
        assert sorted(self.straight) == list(range(1, LAST + 1))
        shutil.copytree(self.whole, self.base)
        shutil.rmtree(set_dir(self.base, LAST))
        half = set_dir(self.base, 4).rename(self.base / "checkpoints" / ".tmp-step-00000004")
        (half / "trainer.json").unlink()
        shutil.copytree(set_dir(self.base, 2), self.base / "checkpoints" / ".tmp-old-00000001")

    def go(self, run, mesh, *keys, **variables):
        """A start with the shim in front of the C library."""
        ranks = mesh[0] * mesh[1]
        env = {"LD_PRELOAD": str(self.shim), "DM_KILL_BELOW": str(run), "DM_KILL_WHO": "self",
               **{f"DM_KILL_{name.upper()}": str(value) for name, value in variables.items()}}
        return finish(start(ranks, f"run.dir={run}", *mesh_keys(mesh), *keys, config=CONFIG, env=env))

    def changes(self, scratch, mesh, *keys, rank=0, base=None):
        """The changes in the run directory of a start that nobody kills: [(call, path)]."""
        run = shutil.copytree(base or self.base, scratch / "counted")
        done = self.go(run, mesh, *keys, rank=rank, log=scratch / "changes")
        assert done.returncode == 0 and steps(run) == self.straight, done.stderr
        lines = [line.split(" ", 1) for line in (scratch / "changes").read_text().splitlines()]
        shutil.rmtree(run)
        return [(call, os.path.relpath(path, run)) for call, path in lines]

    def check(self, run, mesh, *keys, sets):
        """What a killed job left: complete sets only, from which a start goes on."""
        listed = [name for name in set_names(run) if not name.startswith((".", "rewound-"))]
        assert listed and all(re.fullmatch("step-0000000[245]", name) for name in listed), listed
        for name in listed:
            done = subprocess.run([CKPT, "verify", run / "checkpoints" / name], check=False, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
        done = train(mesh[0] * mesh[1], f"run.dir={run}", *mesh_keys(mesh), *keys, config=CONFIG)
        assert done.returncode == 0, done.stderr
        assert f"resuming after step {int(listed[-1][5:])}" in done.stderr or "finished" in done.stderr, done.stderr
        assert steps(run) == self.straight and not [w for w in warnings(run) if "passed over" in w]
        left = [int(name[5:]) for name in set_names(run) if not name.startswith((".", "rewound-"))]
        assert set(sets) <= set(left) or "finished" in done.stderr, left


@pytest.fixture(scope="module")
def job(shim, tmp_path_factory):
    return Job(tmp_path_factory.mktemp("job"), shim)


def kill_each(job, scratch, places, keys, sets, base=None):
    """One rank, killed at each of `places`; two at a time."""

    def one(k):
        run = shutil.copytree(base or job.base, scratch / f"run-{k}")
        done = job.go(run, (1, 1), *keys, at=k)
        assert done.returncode == -signal.SIGKILL, (k, done.returncode, done.stderr)
        again = [key for key in keys if not key.startswith("checkpoint.resume")]
        try:
            job.check(run, (1, 1), *again, sets=sets)
        except AssertionError as wrong:
            raise AssertionError(f"killed after change {k}: {wrong}") from wrong
        shutil.rmtree(run)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(one, places))


def test_a_save_makes_every_byte_durable_before_its_name(job, tmp_path):
    """No kill shows this, only a power cut would: contents, then the directory, then the rename, then the parent."""
    changes = job.changes(tmp_path, (1, 1), "checkpoint.background=false")
    for step in (4, 5):
        temporary, final = f"checkpoints/.tmp-step-{step:08d}", f"checkpoints/step-{step:08d}"
        at = changes.index(("rename", final))
        assert changes[at - 1] == ("fsync", temporary) and changes[at + 1] == ("fsync", "checkpoints")
        first = max(i for i, change in enumerate(changes[:at]) if change == ("mkdir", temporary))
        names = {p.name for p in set_dir(job.whole, step).iterdir()}
        for name in names:
            # small files are written beside their name, whose path is the one that fsync sees
            calls = [call for call, path in changes[first:at] if path in (f"{temporary}/{name}", f"{temporary}/{name}.tmp")]
            assert "pwrite" in calls and "fsync" in calls, (name, calls)
            assert len(calls) - calls[::-1].index("fsync") > len(calls) - calls[::-1].index("pwrite"), (name, calls)


def test_directories_that_a_run_makes_are_durable_before_what_they_hold(job, tmp_path):
    (tmp_path / "empty").mkdir()
    changes = job.changes(tmp_path, (1, 1), "checkpoint.background=false", base=tmp_path / "empty")
    for name, parent in (("checkpoints", "."), ("checkpoints/.tmp-step-00000002", "checkpoints")):
        at = changes.index(("mkdir", name))
        assert changes[at + 1] == ("fsync", parent), changes[at:at + 2]


@pytest.mark.parametrize("background", ["true", "false"])
def test_one_rank_killed_after_each_change_continues_with_the_same_bits(background, job, tmp_path):
    """keep=1: the older set goes with each save. In the background a save begins in one step and ends in another."""
    keys = ["checkpoint.keep=1", f"checkpoint.background={background}"]
    changes = job.changes(tmp_path, (1, 1), *keys)
    kinds = {call for call, _ in changes}
    assert kinds == {"write", "pwrite", "fsync", "rename", "mkdir", "unlink", "rmdir"} and len(changes) > 80, changes
    assert all(("rename", f"checkpoints/.tmp-old-{step:08d}") in changes for step in (2, 4)), "both saves remove a set"
    places = range(1, len(changes) + 1) if SLOW or background == "true" else range(1, len(changes) + 1, 4)
    kill_each(job, tmp_path, places, keys, KEPT["1"])


def test_going_back_to_an_older_set_loses_none_of_the_newer_ones(job, tmp_path):
    base = tmp_path / "base"
    shutil.copytree(job.whole, base)
    shutil.rmtree(set_dir(base, LAST))
    keys = [f"checkpoint.resume={set_dir(job.base, 2)}", "checkpoint.background=false"]
    changes = job.changes(tmp_path, (1, 1), *keys, base=base)
    at = changes.index(("rename", "checkpoints/rewound-00000004")) + 1
    kill_each(job, tmp_path, range(at - 1, at + 9), keys, KEPT["0"], base=base)


def test_killed_in_its_first_save_a_run_says_what_to_do(job, tmp_path):
    """There is no complete set yet, and the log of a run is there: nobody's steps are overwritten unasked."""
    (tmp_path / "empty").mkdir()
    changes = job.changes(tmp_path, (1, 1), "checkpoint.background=false", base=tmp_path / "empty")
    run = tmp_path / "run"
    done = job.go(run, (1, 1), "checkpoint.background=false", at=changes.index(("rename", "checkpoints/step-00000002")))
    assert done.returncode == -signal.SIGKILL and set_names(run) == [".tmp-step-00000002"]
    done = train(1, f"run.dir={run}", config=CONFIG)
    assert done.returncode == 4 and "checkpoint.resume=none" in done.stderr, done.stderr
    done = train(1, f"run.dir={run}", "checkpoint.resume=none", config=CONFIG)
    assert done.returncode == 0 and steps(run) == job.straight and ".tmp-step-00000002" not in set_names(run), done.stderr


# mesh, the rank that counts, who is killed, where among its changes (0 the first, 1 the last)
RANKS = [((2, 1), 0, "all", 0.0), ((2, 1), 0, "all", 0.3), ((2, 1), 0, "all", 0.5), ((2, 1), 0, "all", 1.0), ((2, 1), 1, "all", 0.4),
         ((2, 1), 0, "self", 0.45), ((2, 1), 0, "self", 0.9), ((2, 1), 1, "self", 0.1), ((2, 1), 1, "self", 1.0),
         ((2, 2), 0, "all", 0.7), ((2, 2), 3, "self", 0.2)]


@pytest.fixture(scope="module")
def counted(job, tmp_path_factory):
    known = {}

    def get(mesh, rank):
        if (mesh, rank) not in known:
            known[mesh, rank] = job.changes(tmp_path_factory.mktemp("counted"), mesh, "checkpoint.keep=1", rank=rank)
        return known[mesh, rank]

    return get


@pytest.mark.parametrize("mesh,rank,who,where", RANKS, ids=lambda v: "x".join(map(str, v)) if isinstance(v, tuple) else str(v))
def test_ranks_killed_in_a_save_continue_with_the_same_bits(mesh, rank, who, where, job, counted, tmp_path):
    changes = counted(mesh, rank)
    assert len(changes) > 10, "each rank writes files of its own"
    run = shutil.copytree(job.base, tmp_path / "run")
    done = job.go(run, mesh, "checkpoint.keep=1", rank=rank, who=who, at=1 + round(where * (len(changes) - 1)))
    assert done.returncode == -signal.SIGKILL if who == "all" else done.returncode not in (0, 75), (done.returncode, done.stderr)
    job.check(run, mesh, "checkpoint.keep=1", sets=KEPT["1"])
