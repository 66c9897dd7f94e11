"""Collectives between the memories of GPUs: the bits of the tree over ranks, with NCCL and staged over MPI, under seeded schedules."""
import json
import subprocess

import pytest

from standin import BUILD, ROOT, environment, first_seed, launch, needs_build

pytestmark = needs_build
CHUNK = 4 << 20  # bytes: CHUNK_BYTES of src/comm/nccl.c
SHORT = (1, 7, 1000, 20011)


def collectives(ranks, transport, lengths, seed, **extra):
    command = [*launch(ranks), str(BUILD / "cuda" / "collectives"), transport, *map(str, lengths)]
    done = subprocess.run(command, env=environment(seed, **extra), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=120)
    assert (done.returncode, done.stdout) == (0, ""), f"seed {seed}: exit {done.returncode}\n{done.stdout}"


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("transport", ["nccl", "mpi"])
def test_every_collective_gives_the_bits_of_the_tree(ranks, transport):
    for turn in range(3 if ranks < 8 else 1):
        collectives(ranks, transport, SHORT, first_seed() + turn)


@pytest.mark.parametrize("ranks", [2, 3])
def test_messages_of_several_chunks(ranks):
    collectives(ranks, "nccl", [2 * CHUNK // 4 + 4321], first_seed())


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("operation", ["all_reduce", "reduce", "reduce_scatter"])
def test_no_rank_moves_more_than_in_a_ring(operation, ranks, tmp_path):
    n = ranks * CHUNK // 4 + 1234  # elements; of reduce_scatter per rank
    collectives(ranks, "nccl", [n], first_seed(), DM_STANDIN_COUNTS=tmp_path / "counts", DM_CUDA_ONLY=operation)
    whole = 4 * n * (ranks if operation == "reduce_scatter" else 1)
    # A rank of a ring passes on all but its own part of the sum, and again all but one part of the result.
    limit = {"all_reduce": 2 * (ranks - 1) * whole // ranks, "reduce": whole, "reduce_scatter": (ranks - 1) * whole // ranks}[operation]
    for rank in range(ranks):
        counts = json.loads((tmp_path / (f"counts.{rank}" if rank else "counts")).read_text())["bytes"]
        for way in ("ncclSend", "ncclRecv"):
            assert counts.get(way, 0) <= limit + CHUNK, f"rank {rank}: {counts}, a ring {limit}"
    assert sum(counts.values()) > 0
