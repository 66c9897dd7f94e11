"""A rank that is killed, stops, diverges or is started with another configuration: the job is over within the time-out, with one
line that names the rank, a code that is not 0, and no process left."""
import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

from helpers import ROOT, TINY, TRAIN, environment, finish, launch, mesh_keys, start, train
from mutants import COLLECTIVE, HSDP, Mutant, build
from test_signals import has_step, ranks_of, wait_for

TIMEOUT_S = 10
HOST = socket.gethostname()
LONG = ["threads=1", "train.steps=100000", "optimizer.schedule.kind=constant", "data.val=", f"comm.timeout_s={TIMEOUT_S}"]
WHERE = r"step \d+ (unit \d+ )?stream (compute|gather|reduce|publish|host): [a-z_]+ '[^']+' on axis [a-z]+, \d+ bytes"


def begin(run, mesh=(2, 2)):
    """A running training of four ranks that has made three steps: (process, its ranks' ids)."""
    process = start(4, f"run.dir={run}", *mesh_keys(mesh), *LONG)
    wait_for(lambda: has_step(run, 3), process)
    return process, ranks_of(process, 4)


def lines_of(done):
    return [line for line in done.stderr.splitlines() if line.startswith("dmuon-train: ")]


def is_left(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def expect_nobody(pids):
    wait_for(lambda: not any(map(is_left, pids)), seconds=5)


def flight(run):
    done = subprocess.run([sys.executable, ROOT / "scripts" / "flight.py", run], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("number,seconds,victim", [(signal.SIGKILL, 5, 2), (signal.SIGABRT, 5, 0), (signal.SIGSTOP, TIMEOUT_S, 3),
                                                  (signal.SIGSTOP, TIMEOUT_S, 0)])
def test_a_rank_that_is_killed_or_stopped_ends_the_job_and_is_named(number, seconds, victim, tmp_path):
    run = tmp_path / "run"
    process, ranks = begin(run)
    sent = time.monotonic()
    os.kill(ranks[victim], number)
    done = finish(process, timeout=60)
    took = time.monotonic() - sent
    assert done.returncode == (6 if number == signal.SIGSTOP else 128 + number), done.stderr
    assert len(lines_of(done)) == 1, done.stderr
    line = lines_of(done)[0]
    assert re.search(WHERE, line), line
    if number == signal.SIGSTOP:
        assert f"rank {victim} ({HOST}) does not answer" in line and f"comm.timeout_s={TIMEOUT_S}" in line, line
    else:
        assert line.startswith(f"dmuon-train: rank {victim} ({HOST}): killed or crashed (process {ranks[victim]})"), line
    assert took < seconds, f"{took:.1f} s"
    expect_nobody(ranks.values())
    report = flight(run)
    assert all(f"rank {r} of 4 ({HOST}, process {ranks[r]})" in report for r in range(4)) and "under way" in report


def test_a_rank_with_another_configuration_is_refused_in_the_start(tmp_path):
    run = tmp_path / "run"
    keys = [f"run.dir={run}", *mesh_keys((2, 2)), *LONG]
    part = lambda n, *more: ["-np", str(n), str(TRAIN), TINY, *keys, *more]
    command = [*launch(2)[:-2], *part(2), ":", *part(1, "optimizer.muon.lr=0.5"), ":", *part(1)]
    process = subprocess.Popen(command, env=environment(), cwd=ROOT, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, start_new_session=True)
    begin_s = time.monotonic()
    done = finish(process)
    assert done.returncode == 2, done.stderr
    assert time.monotonic() - begin_s < TIMEOUT_S + 5
    assert "rank 2 plans another run than rank 0" in done.stderr and len(lines_of(done)) == 1, done.stderr
    assert not run.exists()


def mutated(old, new, tmp_path, file="src/comm/comm.c"):
    return build(Mutant("failure", file, old, new, HSDP), tmp_path)


def run_binary(binary, run, *keys):
    command = [*launch(4), str(binary), TINY, f"run.dir={run}", *mesh_keys((2, 2)), *LONG, *keys]
    process = subprocess.Popen(command, env=environment(), cwd=ROOT, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, start_new_session=True)
    return finish(process, timeout=60)


ONE_RANK = """static bool once(void) {
    static int calls;
    int rank;
    const char *host;
    comm_identity(&rank, &host);
    return rank == 1 && calls++ == 0;
}
"""


def diverge(tmp_path, op, axis, fault):
    """The first such collective of step 3 goes wrong on rank 1."""
    source = (ROOT / "src/comm/comm.c").read_text()
    start_of = 'static void submit(Comm *comm'
    assert source.count(start_of) == 1
    begin_at, end_at = source.index(start_of), source.index(COLLECTIVE) + len(COLLECTIVE)
    old = source[begin_at:end_at]
    condition = f"watch_step() == 3 && run.op == {op} && comm->name[0] == '{axis[0]}' && once()"
    body = ONE_RANK + old
    return build(Mutant("diverge", "src/comm/comm.c", old,
                        body.replace("const StreamKind kind", f"if ({condition}) {{ {fault} }}\n    const StreamKind kind"), HSDP), tmp_path)


@pytest.mark.parametrize("op,axis,fault,words", [
    ("COMM_BROADCAST", "shard", "return;", []),  # left out
    ("COMM_ALL_GATHER", "shard", "run.op = COMM_ALL_REDUCE; run.dtype = DTYPE_F32;", ["sent ", "do not run the same collectives"]),
    ("COMM_REDUCE_SCATTER", "shard", 'tag.what = "something else";', ["step 3 stream reduce, axis shard", "have not queued the same collectives"]),
], ids=["left-out", "another-operation", "another-label"])
def test_a_rank_whose_collectives_differ_ends_the_job(op, axis, fault, words, tmp_path):
    run = tmp_path / "run"
    begin_s = time.monotonic()
    done = run_binary(diverge(tmp_path, op, axis, fault), run)
    assert done.returncode == 6, done.stderr
    assert len(lines_of(done)) == 1, done.stderr
    line = lines_of(done)[0]
    assert "step 3 " in line and re.search(r"rank \d \(", line), line
    for word in words:
        assert word in line
    report = flight(run)
    assert "first difference: operation" in report, report
    print(f"{time.monotonic() - begin_s:.1f} s: {line}")


def test_a_publish_that_is_lost_is_found_by_the_replica_check(tmp_path):
    wrong = "const bool dropped = comm->size > 1 && (take_drop(run.op) || (run.op == COMM_BROADCAST && comm->name[0] == 'r'));"
    done = run_binary(mutated(COLLECTIVE, wrong, tmp_path), tmp_path / "run", "log.replica_check_every=2")
    assert done.returncode == 6, done.stderr
    assert re.search(r"dmuon-train: step 2: tensor model\.layers\.\S+ differs between the replicate ranks 0 and 1 beside ", done.stderr), done.stderr


def test_the_replica_check_of_a_sound_run_changes_nothing(tmp_path):
    for every in (0, 1):
        done = train(4, f"run.dir={tmp_path / str(every)}", "threads=1", *mesh_keys((2, 2)), "train.steps=3", f"log.replica_check_every={every}")
        assert done.returncode == 0, done.stderr
    logs = [re.findall(r'"loss_bits":"\w+"', (tmp_path / str(every) / "log.jsonl").read_text()) for every in (0, 1)]
    assert logs[0] == logs[1] and logs[0]


def test_the_record_of_the_last_job_is_kept_for_one_more(tmp_path):
    run = tmp_path / "run"
    process, ranks = begin(run)
    os.kill(ranks[1], signal.SIGKILL)
    finish(process)
    done = train(4, f"run.dir={run}", "threads=1", *mesh_keys((2, 2)), "train.steps=3", "checkpoint.resume=none")
    assert done.returncode == 0, done.stderr
    assert f"process {ranks[1]}): ended without a word" in flight(run / "flight.last")
    report = flight(run)
    assert report.count("closed in order") == 4 and "under way" not in report
    assert "all operations that two ranks of an axis both remember are the same" in report


def test_a_training_file_that_shrinks_under_a_run_is_named(tmp_path):
    text, run = tmp_path / "text.txt", tmp_path / "run"
    text.write_bytes((ROOT / "configs/data/kjv_train.txt").read_bytes()[:200000])
    process = start(4, f"run.dir={run}", *mesh_keys((2, 2)), *LONG, f"data.train={text}")
    wait_for(lambda: has_step(run, 3), process)
    ranks = ranks_of(process, 4)
    os.truncate(text, 1000)
    done = finish(process, timeout=60)
    assert done.returncode == 3, done.stderr
    assert f"{text} has 1000 bytes, but had 200000 when it was opened" in done.stderr
    expect_nobody(ranks.values())
