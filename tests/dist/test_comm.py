"""Collectives, agreement and failures over real processes. The programs check and end the job with a line when they fail."""
import socket
import time

import pytest

SIZES = [1, 2, 3, 4, 5, 8]


def expect_success(result):
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""


@pytest.mark.parametrize("n", [*SIZES, 11])  # beyond eight ranks a broadcast goes down a binomial tree
def test_every_collective_gives_the_bits_of_the_tree(mpirun, n):
    expect_success(mpirun(n, "comm_collectives", timeout=240))


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("n", SIZES)
def test_streams_at_once_with_shaken_delays_do_not_mix(mpirun, n, seed):
    expect_success(mpirun(n, "comm_streams", seed, timeout=120))


def test_a_world_of_one_needs_no_launcher(tmp_path):
    from conftest import BUILD, environment, run_group

    expect_success(run_group([str(BUILD / "dist" / "comm_streams")], env=environment(), cwd=tmp_path))


@pytest.mark.parametrize("n, failing, words", [
    (2, [1], "rank 1 ({host}): shard-1.bin: no such file"),
    (4, [3, 2], "rank 2 ({host}): shard-2.bin: no such file"),
    (5, [0, 4], "shard-0.bin: no such file"),
    (3, [], ""),
    (1, [0], "shard-0.bin: no such file"),
])
def test_agreement_gives_all_ranks_the_words_of_the_lowest_failing_one(mpirun, n, failing, words):
    result = mpirun(n, "comm_agree", *failing)
    expect_success(result)
    assert result.stdout.startswith(words.format(host=socket.gethostname()))
    assert bool(words) == ("comm_agree(world.comm" in result.stdout)


def expect_failure(result, seconds, *words):
    assert result.returncode == 6, result.stderr
    for word in words:
        assert word.format(host=socket.gethostname()) in result.stderr, result.stderr
    assert seconds < 20


@pytest.mark.parametrize("way, words", [
    ("absent", ["rank 0 (", "step 17 unit 4 stream gather: all_gather 'layers.3 owner 2' on axis world, 12000 bytes: no answer in 1.6 s",
                "waiting for rank 1 of this axis; comm.timeout_s=2): rank 1 ({host}) does not answer", "operation 1 of this stream and axis"]),
    ("absent-large", ["step 17 unit 1 stream reduce: reduce 'layers.0 grads' on axis world, 1200000 bytes: no answer in 1.6 s"]),
    ("chain", ["rank 0 (", "on axis left, ", "waiting for rank 1 of this axis; comm.timeout_s=2): rank 2 ({host}) does not answer"]),
    ("operation", ["rank 1 (", "step 17 stream gather: broadcast 'something else' on axis world, 4000 bytes: rank 0 of this axis (rank 0, {host}) "
                   "sent all_gather instead", "do not run the same collectives"]),
    ("left-out", ["rank 0 (", "step 17 stream gather, axis world: rank 0 ({host}) and rank 1 ({host}) have not queued the same collectives",
                  "operation 2, hash", "operation 1, hash"]),
    ("label", ["rank 0 (", "step 17 stream reduce, axis world: rank 0 ({host}) and rank 1 ({host})"]),
    ("length", ["layers.3 owner 2", "bytes"]),
    ("assertion", ["rank 1 (", "world.rank == 0 does not hold"]),
])
def test_a_failure_ends_the_job_with_a_line_that_says_where(mpirun, way, words):
    begin = time.monotonic()
    result = mpirun(3, "comm_failure", way)
    expect_failure(result, time.monotonic() - begin, *words)


@pytest.mark.parametrize("n, way", [(4, "absent"), (4, "operation"), (3, "chain"), (4, "label")])
def test_only_one_rank_speaks_although_all_survive_sigterm_for_a_while(mpirun, n, way):
    result = mpirun(n, "comm_failure", way)
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr


def test_a_killed_rank_ends_the_job(mpirun):
    begin = time.monotonic()
    result = mpirun(3, "comm_failure", "killed")
    assert result.returncode != 0
    assert time.monotonic() - begin < 20


def test_the_failure_program_succeeds_when_nothing_fails(mpirun):
    expect_success(mpirun(3, "comm_failure"))
