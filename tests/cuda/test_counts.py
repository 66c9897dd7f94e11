"""What the stand-ins count between the marks of a step: scripts/bench.py reads launches of forward, backward and update there."""
import json

import pytest

from standin import needs_build, start

pytestmark = needs_build
ONE_LEAF = ("threads=1", "device=cuda", "mesh.replicate=1", "mesh.shard=1", "train.steps=1", "batch.global=1", "batch.seq_len=8")


@pytest.mark.parametrize("skip", [0, 1])
def test_launches_lie_between_the_marks_of_a_step(skip, tmp_path):
    code, err = start(1, tmp_path / "run", *ONE_LEAF, "train.nonfinite=skip", seed=0, DM_STANDIN_COUNTS=tmp_path / "counts",
                      DM_STANDIN_SKIP_KERNELS=skip)
    assert code == 0, err
    counts = json.loads((tmp_path / "counts").read_text())
    groups = {int(name.split()[-1]): kernels for name, kernels in counts.items() if name.startswith("launches after timed record")}
    for kernel, mark in (("attention_forward", 1), ("attention_dq", 2), ("adamw", 6), ("muon_momentum", 6)):
        assert [m for m, kernels in groups.items() if any(name.startswith(kernel) for name in kernels)] == [mark], (kernel, groups)
    assert max(groups) <= 7
    assert sum(sum(kernels.values()) for kernels in groups.values()) == sum(counts["kernels"].values())
