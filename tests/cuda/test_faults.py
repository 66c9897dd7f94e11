"""Each call of the CUDA runtime and of NCCL that fails ends the job with a clean message and a code, without a hang."""
import json
import os
import re
import signal
import subprocess

import pytest

from helpers import SLOW, TINY, finish, has_step, ranks_of, wait_for
from standin import GRAPH_CALLS, ROOT, TRAIN, environment, first_seed, launch, needs_build, start

pytestmark = needs_build
FAULT = 86  # of the stand-in: the program did something wrong
POINTS = 50
JOB = ("threads=1", "train.steps=3", "batch.global=4", "batch.seq_len=8", "device=cuda", "mesh.replicate=1", "mesh.shard=2", "comm.timeout_s=20")


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    """{transport: the first call from each place in the program}."""
    found = {}
    for transport in ("nccl", "mpi"):
        top = tmp_path_factory.mktemp(transport)
        code, err = start(2, top / "run", *JOB, f"comm.transport={transport}", seed=first_seed(), DM_STANDIN_COUNTS=top / "counts",
                          DM_STANDIN_LEAKS=1)
        assert code == 0, err
        calls = json.loads((top / "counts").read_text())["sites"]
        assert GRAPH_CALLS <= {s["api"] for s in calls}
        found[transport] = sorted((s["call"], s["api"]) for s in calls)
    return found


@pytest.mark.parametrize("point", range(10 * POINTS if SLOW else POINTS))
def test_a_call_that_fails_ends_the_job(point, sites, tmp_path):
    points = [(transport, *site) for transport, calls in sites.items() for site in calls]
    step = max(1, len(points) // POINTS)
    index = point if SLOW else (point * step + first_seed()) % len(points)
    if index >= len(points):
        pytest.skip(f"the program has {len(points)} places")
    transport, call, api = points[index]
    code, err = start(2, tmp_path / "run", *JOB, f"comm.transport={transport}", seed=first_seed(), timeout=60, DM_STANDIN_FAIL=call)
    where = f"{transport}, call {call} ({api}), seed {first_seed()}: exit {code}\n{err}"
    assert code not in (0, FAULT) and 0 < code < 126, where
    lines = [line for line in err.splitlines() if line.startswith("dmuon-train: ")]
    assert len(lines) == 1 and not re.search(r"(dmuon-train|\)): internal error", err) and "Signal" not in err, where


@pytest.mark.parametrize("transport", ["nccl", "mpi"])
def test_a_rank_that_stops_is_named_with_the_operation_that_waits_for_it(transport, tmp_path):
    arguments = [*JOB, "train.steps=400", "comm.timeout_s=4", f"comm.transport={transport}", f"run.dir={tmp_path / 'run'}"]
    process = subprocess.Popen([*launch(2), str(TRAIN), TINY, *arguments], env=environment(first_seed()), cwd=ROOT, text=True,
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
    wait_for(lambda: has_step(tmp_path / "run", 3), process)
    os.kill(ranks_of(process, 2)[1], signal.SIGSTOP)
    done = finish(process, timeout=60)
    said = [line for line in done.stderr.splitlines() if line.startswith("dmuon-train: rank")]
    assert done.returncode == 6 and len(said) == 1, done.stderr
    assert re.search(r"step \d+ .*stream \w+: \w+ '.+' on axis \w+, \d+ bytes: no answer in 3.2 s \(waiting for rank 1", said[0]), said
    assert re.search(r"rank 1 \(\S+\) does not answer", said[0]), said
