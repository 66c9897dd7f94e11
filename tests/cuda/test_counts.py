"""What the stand-ins count between the marks of a step: scripts/bench.py reads launches of forward, backward and update there."""
import json

import pytest

from standin import needs_build, start

pytestmark = needs_build
ONE_LEAF = ("threads=1", "device=cuda", "mesh.replicate=1", "mesh.shard=1", "train.steps=1", "batch.global=1", "batch.seq_len=8")


def groups_of(path):
    """{timed record: {kernel: launches until the next}}, and the launches of all kernels."""
    counts = json.loads(path.read_text())
    groups = {int(name.split()[-1]): kernels for name, kernels in counts.items() if name.startswith("launches after timed record")}
    return groups, sum(counts["kernels"].values())


@pytest.mark.parametrize("skip", [0, 1])
def test_launches_lie_between_the_marks_of_a_step(skip, tmp_path):
    code, err = start(1, tmp_path / "run", *ONE_LEAF, "train.nonfinite=skip", seed=0, DM_STANDIN_COUNTS=tmp_path / "counts",
                      DM_STANDIN_SKIP_KERNELS=skip)
    assert code == 0, err
    groups, launches = groups_of(tmp_path / "counts")
    for kernel, mark in (("attention_forward", 1), ("attention_dq", 2), ("adamw", 6), ("muon_momentum", 6)):
        assert [m for m, kernels in groups.items() if any(name.startswith(kernel) for name in kernels)] == [mark], (kernel, groups)
    assert max(groups) <= 7
    assert sum(sum(kernels.values()) for kernels in groups.values()) == launches


@pytest.mark.parametrize("keys,runs", [((), 14), (("numerics.mode=fast", "precision.compute=bf16"), 8)], ids=["exact", "fast"])
def test_an_update_is_queued_then_recorded_then_replayed(keys, runs, tmp_path):
    """Two layers of seven matrices; q and o, k and v, gate and up have one shape each, and down its own."""
    code, err = start(1, tmp_path / "run", *ONE_LEAF, *keys, "train.steps=3", seed=0, DM_STANDIN_COUNTS=tmp_path / "counts")
    assert code == 0, err
    groups, launches = groups_of(tmp_path / "counts")
    assert [groups[7 * step + 6].get("graph", 0) for step in range(3)] == [0, runs, runs]
    assert groups[6]["ns_combine_kernel"] > 0 and all("ns_combine_kernel" not in groups[7 * step + 6] for step in (1, 2))
    assert groups[6]["muon_apply_kernel"] == groups[20]["muon_apply_kernel"] == 14
    assert sum(sum(kernels.values()) for kernels in groups.values()) == launches
