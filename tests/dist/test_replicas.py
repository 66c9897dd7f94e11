"""log.replica_check_every compares what the replicate rows hold: one bit on one rank is found, by name."""
import pytest


@pytest.mark.parametrize("kind,tensor", [("none", None), ("weights", "lm_head.weight"), ("moments", "exp_avg_sq.lm_head.weight")])
@pytest.mark.parametrize("mesh", [(2, 2), (4, 1)])
def test_one_bit_of_one_replica_is_found(mpirun, mesh, kind, tensor, tmp_path):
    done = mpirun(mesh[0] * mesh[1], "replica_check", "configs/bits-tiny.yaml", kind, f"run.dir={tmp_path / 'run'}",
                  f"mesh.replicate={mesh[0]}", f"mesh.shard={mesh[1]}", "threads=1")
    assert done.returncode == 0, done.stderr
    if tensor:
        assert f"tensor {tensor} differs between the replicate rows 0 and {mesh[0] - 1} of shard {mesh[1] - 1}" in done.stdout
