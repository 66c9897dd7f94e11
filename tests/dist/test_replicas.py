"""log.replica_check_every compares what several ranks hold: one bit on one rank is found, by name."""
import pytest

HEAD, NORM = "lm_head.weight", "model.layers.1.post_attention_layernorm.weight"  # the last that the last rank holds


@pytest.mark.parametrize("mesh,keys,kind,tensor,ranks,axis", [
    ((2, 2, 1), [], "none", None, None, None),
    ((2, 2, 1), [], "weights", HEAD, (1, 3), "replicate"),
    ((2, 2, 1), [], "moments", f"exp_avg_sq.{HEAD}", (1, 3), "replicate"),
    ((2, 2, 1), [], "matrices", "model.layers.", (1, 3), "replicate"),
    ((4, 1, 1), [], "weights", HEAD, (0, 3), "replicate"),
    ((1, 4, 1), ["parallel.data=ddp"], "none", None, None, None),
    ((1, 4, 1), ["parallel.data=ddp"], "moments", f"exp_avg_sq.{HEAD}", (0, 3), "data"),
    ((1, 4, 1), ["parallel.data=ddp"], "matrices", "model.layers.", (0, 3), "data"),
    ((2, 1, 2), [], "none", None, None, None),
    ((2, 1, 2), [], "matrices", "model.layers.", (1, 3), "replicate"),
    ((1, 2, 2), [], "none", None, None, None),
    ((1, 2, 2), [], "norms", NORM, (2, 3), "tp"),
])
def test_one_bit_of_one_copy_is_found(mpirun, mesh, keys, kind, tensor, ranks, axis, tmp_path):
    mesh_keys = [f"mesh.{name}={n}" for name, n in zip(("replicate", "shard", "tp"), mesh)]
    done = mpirun(4, "replica_check", "configs/bits-tiny.yaml", kind, f"run.dir={tmp_path / 'run'}", *mesh_keys, "threads=1", *keys)
    assert done.returncode == 0, done.stderr
    if tensor:
        assert f"step 0: tensor {tensor}" in done.stdout
        assert f"differs between rank {ranks[0]} and rank {ranks[1]}, which hold copies of it (axis {axis})" in done.stdout
