"""log.replica_check_every compares what several ranks hold: one bit on one rank is found, by name."""
import math

import pytest

TENSORS = {"none": None, "weights": "lm_head.weight", "moments": "exp_avg_sq.lm_head.weight", "norms": "model.norm.weight"}
CASES = [(mesh, data, kind, axis) for mesh, data, axis in (((2, 2, 1), "fsdp", "replicate"), ((4, 1, 1), "fsdp", "replicate"), ((1, 2, 1), "ddp", "shard"))
         for kind in ("none", "weights", "moments")]
CASES += [((1, 1, 2), "fsdp", kind, "tp") for kind in ("none", "norms")]


@pytest.mark.parametrize("mesh,data,kind,axis", CASES)
def test_one_bit_of_one_rank_is_found(mpirun, mesh, data, kind, axis, tmp_path):
    keys = [f"mesh.{name}={size}" for name, size in zip(("replicate", "shard", "tp"), mesh)]
    done = mpirun(math.prod(mesh), "replica_check", "configs/bits-tiny.yaml", kind, f"run.dir={tmp_path / 'run'}", *keys, f"parallel.data={data}",
                  "threads=1")
    assert done.returncode == 0, done.stderr
    if TENSORS[kind]:
        last = dict(zip(("replicate", "shard", "tp"), mesh))[axis] - 1
        assert f"tensor {TENSORS[kind]} differs between the {axis} ranks 0 and {last} beside" in done.stdout
