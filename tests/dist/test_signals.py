"""A wish to stop, by a signal or by the wall-time budget: the step in flight finishes, a valid set is saved, the exit code is 75, and
the resumed run has the bits of one that nobody stopped."""
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from helpers import (BIN, CKPT, ROOT, SLOW, STOPPED, TINY, environment, finish, has_step, mesh_keys, ranks_of, records, run_mesh,
                     set_dir, set_names, start, steps, wait_for)

MANY = ["train.steps=100000", "optimizer.schedule.kind=constant", "threads=1"]
MORE = 3


def check_stopped(done, run, mesh):
    """The set of the last step is there, valid, and continues with the bits of a run that was not stopped."""
    assert done.returncode == STOPPED, done.stderr
    assert done.stderr.count("dmuon-train: ") == 1 and "checkpoint saved" in done.stderr, done.stderr
    log = steps(run)
    last = max(log)
    assert sorted(log) == list(range(1, last + 1)) and set_names(run) == [f"step-{last:08d}"]
    assert subprocess.run([CKPT, "verify", set_dir(run, last)], check=False, capture_output=True).returncode == 0
    assert records(run, "end")[-1]["exit_code"] == STOPPED
    run_mesh(mesh, run, f"train.steps={last + MORE}", "optimizer.schedule.kind=constant")
    straight = run.parent / "straight"
    run_mesh((1, 1), straight, f"train.steps={last + MORE}", "optimizer.schedule.kind=constant")
    assert steps(run) == steps(straight)


@pytest.mark.parametrize("who,number", [("mpirun", signal.SIGUSR1), ("rank 0", signal.SIGUSR1), ("rank 2", signal.SIGUSR1),
                                        ("rank 1", signal.SIGTERM), ("rank 3", signal.SIGINT)])
def test_a_signal_stops_after_the_step_with_a_set(who, number, tmp_path):
    run = tmp_path / "run"
    process = start(4, f"run.dir={run}", *mesh_keys((2, 2)), *MANY)
    wait_for(lambda: has_step(run, 3), process)
    os.kill(process.pid if who == "mpirun" else ranks_of(process, 4)[int(who[-1])], number)
    check_stopped(finish(process), run, (2, 2))


def test_a_second_interrupt_ends_at_once(tmp_path):
    """The step is long, so that the first one cannot be done before the second comes."""
    run = tmp_path / "run"
    process = start(1, f"run.dir={run}", *mesh_keys((1, 1)), *MANY, "batch.global=8192", "batch.seq_len=256")
    wait_for(lambda: (run / "log.jsonl").exists(), process)
    time.sleep(0.3)
    os.kill(process.pid, signal.SIGINT)
    time.sleep(0.2)
    os.kill(process.pid, signal.SIGINT)
    assert finish(process, timeout=20).returncode == 130
    assert set_names(run) == []


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_signal_in_the_start_saves_step_0(ranks, tmp_path):
    """Sent as soon as the lock shows that the handlers are there; whatever it meets, the set is that of the last step. On a
    busy machine it may meet the first step."""
    for attempt in range(5):
        run = tmp_path / f"run{attempt}"
        process = start(ranks, f"run.dir={run}", *mesh_keys((1, ranks)), *MANY)
        wait_for(lambda run=run: (run / "lock").exists(), process)
        os.kill(process.pid, signal.SIGUSR1)
        done = finish(process)
        assert done.returncode == STOPPED, done.stderr
        last = max(steps(run), default=0)
        assert f"stopped at step {last} of" in done.stderr and set_names(run) == [f"step-{last:08d}"], done.stderr
        if last == 0:
            break
    assert last == 0
    run_mesh((1, 1), run, "train.steps=3", "optimizer.schedule.kind=constant")
    run_mesh((1, 1), tmp_path / "straight", "train.steps=3", "optimizer.schedule.kind=constant")
    assert steps(run) == steps(tmp_path / "straight")


def test_a_signal_in_the_start_of_a_resumed_run_saves_nothing_new(tmp_path):
    run = tmp_path / "run"
    run_mesh((1, 1), run, "train.steps=2", "optimizer.schedule.kind=constant", "checkpoint.every=2")
    stamp = (set_dir(run, 2) / "trainer.json").stat()
    (run / "lock").unlink()
    process = start(1, f"run.dir={run}", *mesh_keys((1, 1)), *MANY)
    wait_for(lambda: (run / "lock").exists(), process)
    os.kill(process.pid, signal.SIGUSR1)
    done = finish(process)
    assert done.returncode == STOPPED and "stopped at step 2 of" in done.stderr, done.stderr
    now = (set_dir(run, 2) / "trainer.json").stat()
    assert (now.st_ino, now.st_mtime_ns) == (stamp.st_ino, stamp.st_mtime_ns)
    assert set_names(run) == ["step-00000002"] and sorted(steps(run)) == [1, 2]


def test_a_signal_in_an_evaluation_stops_it(tmp_path):
    """All windows of the validation text take far longer than this test."""
    run = tmp_path / "run"
    process = start(2, f"run.dir={run}", *mesh_keys((1, 2)), *MANY, "train.eval_every=2", "batch.seq_len=8", "batch.global=2")
    wait_for(lambda: has_step(run, 2), process)
    time.sleep(0.3)
    os.kill(process.pid, signal.SIGUSR1)
    done = finish(process, timeout=30)
    assert done.returncode == STOPPED, done.stderr
    assert set_names(run) == ["step-00000002"] and records(run, "eval") == []


@pytest.mark.parametrize("ranks", [1, 4])
def test_the_wall_time_of_the_job_stops_the_run(ranks, tmp_path):
    run = tmp_path / "run"
    process = start(ranks, f"run.dir={run}", *mesh_keys((1, ranks)), *MANY, "train.max_wall_time=1:00:00",
                    env={"DMUON_JOB_START": str(int(time.time()) - 3600 + 100)})
    check_stopped(finish(process), run, (1, ranks))
    assert max(steps(run)) == 1 + MORE, "less than two saves of 60 s were left when the first step ended"


@pytest.mark.skipif(not SLOW, reason="12 s of waiting: DM_SLOW=1")
def test_time_that_is_left_is_used(tmp_path):
    """Twice the longest save seen, not 60 s, once there was one."""
    run = tmp_path / "run"
    process = start(1, f"run.dir={run}", *mesh_keys((1, 1)), *MANY, "train.max_wall_time=1:00:00", "checkpoint.every=1",
                    "log.params_hash_every=0", env={"DMUON_JOB_START": str(time.time() - 3600 + 130)})
    time.sleep(12)
    assert process.poll() is None, process.communicate()
    os.kill(process.pid, signal.SIGUSR1)
    assert finish(process).returncode == STOPPED and max(steps(run)) > 1


# ---- scripts/run.sh ----


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_run_sh_passes_a_wish_to_stop_on_in_peace(number, tmp_path):
    run = tmp_path / "run"
    command = ["scripts/run.sh", "2", TINY, f"run.dir={run}", *mesh_keys((1, 2)), *MANY]
    process = subprocess.Popen(command, cwd=ROOT, env=environment({"DMUON_TRAIN": str(BIN / "dmuon-train")}), text=True,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    wait_for(lambda: has_step(run, 3), process)
    os.killpg(process.pid, number)  # as a terminal does
    check_stopped(finish(process), run, (1, 2))


def launcher_of(pid):
    """Has the script started mpirun?"""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [c for c in children if Path(f"/proc/{c}/comm").exists() and Path(f"/proc/{c}/comm").read_text() == "mpirun\n"]


@pytest.mark.parametrize("wait_s", [0, 0.1, 0.2, 0.3, 0.4, 0.6])
def test_run_sh_keeps_a_wish_that_comes_before_the_ranks_are_there(wait_s, tmp_path):
    command = ["scripts/run.sh", "2", TINY, f"run.dir={tmp_path / 'run'}", *mesh_keys((1, 2)), *MANY]
    process = subprocess.Popen(command, cwd=ROOT, env=environment({"DMUON_TRAIN": str(BIN / "dmuon-train")}), text=True,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    wait_for(lambda: launcher_of(process.pid), process)
    time.sleep(wait_s)
    process.send_signal(signal.SIGTERM)
    done = finish(process)
    assert done.returncode == STOPPED and "checkpoint saved" in done.stderr, done.stderr


def test_run_sh_gives_the_exit_code_of_the_run(tmp_path):
    done = subprocess.run(["scripts/run.sh", "2", TINY, f"run.dir={tmp_path / 'run'}", "seed=-1"], cwd=ROOT, capture_output=True, text=True,
                          env=environment({"DMUON_TRAIN": str(BIN / "dmuon-train")}), timeout=60, check=False)
    assert done.returncode == 2 and "seed" in done.stderr, done.stderr
