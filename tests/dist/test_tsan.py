"""Streams with shaken delays. In a build with SAN=thread every access that no event orders is an error here; in any other
build the runs must end well.
"""
import pytest

from helpers import run_mesh

# Threads of Open MPI order themselves by instructions that ThreadSanitizer does not see, so what happens inside libraries is
# left out. comm/mpi.c tells it which bytes a message reads and writes.
OPTIONS = "ignore_noninstrumented_modules=1"

MODES = {
    "Z3, reduced at once": ["parallel.prefetch=3", "batch.micro=1"],
    "Z2, reduced once a step": ["parallel.prefetch=1", "parallel.reshard_after_forward=false", "parallel.accumulate=local"],
    "the publish in the step": ["parallel.prefetch=0", "optimizer.muon.replicate_async=false"],
}


@pytest.mark.parametrize("keys", MODES.values(), ids=MODES)
def test_no_access_is_left_to_chance(keys, tmp_path):
    done = run_mesh((2, 2), tmp_path / "run", "optimizer.muon.replicate_async=true", "train.steps=4", "train.eval_every=2",
                    "train.eval_batches=1", "checkpoint.every=2", "threads=2", *keys,
                    env={"DMUON_TEST_DELAY_SEED": "11", "TSAN_OPTIONS": OPTIONS})
    assert "WARNING: ThreadSanitizer" not in done.stderr + done.stdout, done.stderr
