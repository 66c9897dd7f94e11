"""The run directory: what a killed job leaves never blocks or misleads the next one, and what is written says what ran."""
import json
import os
import random
import re
import shutil
import signal
import subprocess
import time

import pytest

from helpers import (ROOT, SLOW, STOPPED, finish, mesh_keys, records, run_mesh, set_dir, set_names, start, steps, train, tree,
                     wait_for, warnings)

KEYS = ["threads=1", "optimizer.schedule.kind=constant", "checkpoint.every=2"]
LAST = 40


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    run = tmp_path_factory.mktemp("straight") / "run"
    run_mesh((1, 1), run, "optimizer.schedule.kind=constant", f"train.steps={LAST}")
    return steps(run)


@pytest.mark.parametrize("mesh", [(1, 1), (2, 2)])
def test_a_run_that_is_killed_again_and_again_ends_with_the_bits_of_a_straight_one(mesh, straight, tmp_path):
    run, rng, kills, codes = tmp_path / "run", random.Random(7), 8 if SLOW else 3, []
    for _ in range(kills):
        had = len(set_names(run))
        process = start(mesh[0] * mesh[1], f"run.dir={run}", *mesh_keys(mesh), *KEYS, f"train.steps={LAST}")
        end = time.monotonic() + 60
        while process.poll() is None and len([n for n in set_names(run) if n.startswith("step-")]) <= min(had, 1):
            assert time.monotonic() < end
            time.sleep(0.01)
        time.sleep(rng.random() * 0.2)
        if mesh == (1, 1):
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)  # mpirun; its ranks end with it
        codes.append(finish(process).returncode)
        time.sleep(0 if mesh == (1, 1) else 1.0)
    assert -signal.SIGKILL in codes
    run_mesh(mesh, run, *KEYS, f"train.steps={LAST}")
    assert steps(run) == straight
    assert set_names(run) == [f"step-{LAST - 2:08d}", f"step-{LAST:08d}"]


def test_a_new_run_puts_the_sets_of_an_earlier_one_aside(tmp_path):
    run = tmp_path / "run"
    keys = ("checkpoint.every=1", "optimizer.schedule.kind=constant")
    run_mesh((1, 1), run, *keys, "train.steps=3")
    earlier = {name: tree(run / "checkpoints" / name) for name in set_names(run)}
    run_mesh((1, 1), run, *keys, "train.steps=2", "seed=9", "checkpoint.resume=none")
    aside = [name.replace("step-", "rewound-") for name in earlier]
    assert set_names(run) == sorted([*aside, "step-00000001", "step-00000002"])
    assert [tree(run / "checkpoints" / name) for name in aside] == list(earlier.values())
    assert sum("a new run begins: checkpoint" in text for text in warnings(run)) == len(earlier)


def test_each_warning_of_a_start_is_one_record(tmp_path):
    run = tmp_path / "run"
    keys = ("checkpoint.every=1", "optimizer.schedule.kind=constant", "train.sample_tokens=5")
    run_mesh((1, 1), run, *keys, "train.steps=2")
    run_mesh((1, 1), run, *keys, "train.steps=2", f"checkpoint.resume={set_dir(run, 1)}")
    texts = warnings(run)
    assert [sum(part in text for text in texts) for part in ("train.sample_tokens has no effect", "the run goes on from step 1")] == [2, 1], texts
    assert not [text for text in texts if "no effect" in text and "goes on" in text]


def test_what_a_killed_save_left_is_removed_by_a_start_and_not_by_a_refused_one(tmp_path):
    run = tmp_path / "run"
    run_mesh((1, 1), run, *KEYS, "train.steps=2")
    half = run / "checkpoints" / ".tmp-step-00000004"
    shutil.copytree(set_dir(run, 2), half)
    (half / "trainer.json").unlink()
    before = tree(run)
    done = train(1, f"run.dir={run}", *mesh_keys((1, 1)), *KEYS, "train.steps=2", "seed=3")
    assert done.returncode == 4 and tree(run) == before
    run_mesh((2, 1), run, *KEYS, "train.steps=3")
    assert set_names(run) == ["step-00000002", "step-00000003"]


def test_sets_are_ordered_by_number(tmp_path):
    """Step 100000000 has one digit more, and comes first as text."""
    run = tmp_path / "run"
    run_mesh((1, 1), run, *KEYS, "train.steps=2")
    shutil.copytree(set_dir(run, 2), run / "checkpoints" / "step-100000000")
    done = run_mesh((1, 1), run, *KEYS, "train.steps=3")
    assert "step-100000000" in done.stderr, "the newest by number is looked at first"


def test_half_a_line_of_the_log_is_dropped(straight, tmp_path):
    run = tmp_path / "run"
    run_mesh((1, 1), run, *KEYS, "train.steps=4")
    log = run / "log.jsonl"
    for tail in ('{"event":"step","step":5,"loss', "\0\0\0", "rubbish\n"):
        log.write_text(log.read_text() + tail)
    run_mesh((1, 1), run, *KEYS, "train.steps=6")
    assert steps(run) == {s: straight[s] for s in range(1, 7)}


def test_each_new_start_moves_the_log_to_the_next_number(tmp_path):
    run = tmp_path / "run"
    ids = []
    for _ in range(3):
        run_mesh((1, 1), run, *KEYS, "train.steps=1", "checkpoint.resume=none")
        ids.append(records(run, "start")[0]["run_id"])
    assert len(set(ids)) == 3
    moved = [json.loads((run / f"log.jsonl.{n}").read_text().splitlines()[0])["run_id"] for n in (1, 2)]
    assert moved == ids[:2]


def test_the_written_configuration_gives_the_same_run_again(tmp_path):
    run = tmp_path / "run"
    run_mesh((2, 1), run, *KEYS, "train.steps=3", "optimizer.muon.lr=0.013")
    again = train(2, f"run.dir={tmp_path / 'again'}", config=run / "config.yaml")
    assert again.returncode == 0, again.stderr
    assert steps(tmp_path / "again") == steps(run)
    assert (set_dir(run, 2) / "trainer.json").exists()
    manifest = json.loads((set_dir(run, 2) / "trainer.json").read_text())
    assert manifest["config"] == (run / "config.yaml").read_text()
    assert records(run, "start")[0]["config"]["optimizer"]["muon"]["lr"] == 0.013


def test_the_default_directory_has_the_name_of_the_configuration(tmp_path):
    for name in ("configs", "models"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copy(ROOT / "configs" / "bits-tiny.yaml", tmp_path / "my-run.yaml")
    done = train(1, *mesh_keys((1, 1)), "train.steps=1", config="my-run.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(p.name for p in (tmp_path / "runs" / "my-run").iterdir()) == ["config.yaml", "lock", "log.jsonl"]


def test_a_lock_that_nobody_holds_blocks_nobody(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "lock").write_text("pid 1 on host elsewhere\n")
    run_mesh((1, 1), run, *KEYS, "train.steps=1")


def test_a_run_that_ends_leaves_nothing_but_its_files(tmp_path):
    run = tmp_path / "run"
    run_mesh((1, 2), run, *KEYS, "train.steps=2")
    assert sorted(p.name for p in run.iterdir()) == ["checkpoints", "config.yaml", "flight", "lock", "log.jsonl"]
    assert records(run, "end")[-1]["exit_code"] == 0 and records(run)[-1]["event"] == "end"
    save, = records(run, "checkpoint")
    assert save["step"] == 2 and save["save_wait_ms"] >= 0
    assert save["bytes"] == sum(p.stat().st_size for p in set_dir(run, 2).iterdir()) - (set_dir(run, 2) / "trainer.json").stat().st_size


def test_an_older_set_that_cannot_be_removed_is_a_warning_and_no_failed_save(tmp_path):
    run = tmp_path / "run"
    process = start(1, f"run.dir={run}", *mesh_keys((1, 1)), "threads=1", "train.steps=100000", "optimizer.schedule.kind=constant",
                    "checkpoint.every=2", "checkpoint.keep=1", "data.val=")
    wait_for(lambda: set_dir(run, 2).exists(), process)
    os.kill(process.pid, signal.SIGSTOP)
    (stuck,) = [set_dir(run, int(name[5:])) / "stuck" for name in set_names(run) if name.startswith("step-")][-1:]
    stuck.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(stuck)], capture_output=True, text=True, check=False)
    try:
        os.kill(process.pid, signal.SIGCONT)
        if mounted.returncode != 0:
            process.kill()
            finish(process)
            pytest.skip(f"no mount of our own: {mounted.stderr.strip()}")
        wait_for(lambda: "were not removed" in (run / "log.jsonl").read_text(), process)
        os.kill(process.pid, signal.SIGUSR1)
        done = finish(process)
        assert done.returncode == STOPPED, done.stderr
        (warning,) = [w for w in warnings(run) if "older ones were not removed" in w]
        saved = int(re.match(r"the checkpoint of step (\d+) was saved", warning)[1])
        assert "stuck" in warning and saved in [r["step"] for r in records(run, "checkpoint")], warning
        assert f"step-{max(steps(run)):08d}" in set_names(run)
    finally:
        for place in tmp_path.rglob("stuck"):
            subprocess.run(["umount", "-l", str(place)], check=False)
