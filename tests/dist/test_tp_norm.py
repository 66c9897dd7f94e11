"""The gradient norm under tensor parallelism: gains are on every tp rank and count once. A job in which the final norm's gain has nearly
all of the gradient, so that counting it T times would multiply the norm by sqrt(T)."""
import numpy as np
import pytest

from helpers import read_set, records, rewrite_set, run_mesh, set_dir
from mutants import UPDATE, Mutant, build
from runs import Run, reproduce

MESHES = [(1, 1, 1), (1, 1, 2), (1, 1, 4), (2, 1, 2), (1, 2, 2), (2, 2, 2), (1, 2, 4)]
GAIN = "model.norm.weight"
NO_LIMIT = ("optimizer.clip.max_norm=0", "train.steps=1")
TWICE = Mutant("gains-counted-for-every-tp-rank", UPDATE, "p->plan->params->row[row].tp_dim >= 0 ? p->plan->mesh.tp : 1;", "p->plan->mesh.tp;", None)


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """Small gains before a head with large weights, and an embedding so large that little of the gradient gets past the norms."""
    run = tmp_path_factory.mktemp("weights") / "run"
    run_mesh((1, 1), run, "train.steps=1", "checkpoint.every=1")
    scale = {GAIN: 2.0**-12, "lm_head.weight": 2.0**12, "model.embed_tokens.weight": 2.0**12}
    tensors = {name: lambda x, by=by: x * np.float32(by) for name, by in scale.items()}
    return rewrite_set(set_dir(run, 1), run.parent / "set", tensors=tensors)


def first_steps(mesh, weights, run, *keys, binary=None):
    """Records of the steps from the weights."""
    keys = ("threads=1", f"checkpoint.init_from={weights}", *NO_LIMIT, *keys)
    events = reproduce.execute(Run(run.name, *mesh[:2], keys=keys, tp=mesh[2]), run.parent, binary=binary)
    return [e for e in events if e["event"] == "step"]


def state(steps):
    return [(s["loss_bits"], s["grad_sumsq_bits"], s["params_hash"]) for s in steps]


@pytest.fixture(scope="module")
def free(weights, tmp_path_factory):
    """One rank without a limit."""
    return first_steps((1, 1, 1), weights, tmp_path_factory.mktemp("free") / "run")


def between(free, part, tp):
    """A limit between the norm (part 0) and one that counts the gain for every tp rank (part 1)."""
    return free[0]["grad_norm"] * (1 + part * (tp**0.5 - 1))


def test_the_gain_has_nearly_all_of_the_gradient(weights, tmp_path):
    run_mesh((1, 1), tmp_path / "run", f"checkpoint.init_from={weights}", *NO_LIMIT, "checkpoint.every=1")
    moments = {name: x for name, x in read_set(set_dir(tmp_path / "run", 1)).items() if name.startswith(("exp_avg.", "momentum."))}
    grads = {name: x.astype(np.float64) / (0.1 if name.startswith("exp_avg.") else 1) for name, x in moments.items()}
    total = sum((g * g).sum() for g in grads.values())
    gain = (grads[f"exp_avg.{GAIN}"] ** 2).sum()
    assert gain > 0.98 * total
    assert np.isclose(total**0.5, records(tmp_path / "run", "step")[0]["grad_norm"], rtol=1e-5)


@pytest.mark.parametrize("mesh", MESHES[1:], ids=lambda m: reproduce.mesh_name(*m))
def test_a_limit_just_above_the_norm_clips_nothing(mesh, weights, free, tmp_path):
    limit = between(free, 0.5, mesh[2])
    for role in ("max_norm", "adamw_max_norm"):
        limits = ("optimizer.clip.max_norm=0",) if role != "max_norm" else ()
        assert state(first_steps(mesh, weights, tmp_path / role, *limits, f"optimizer.clip.{role}={limit}")) == state(free)


def test_a_limit_below_the_norm_clips(weights, free, tmp_path):
    limit = 0.9 * free[0]["grad_norm"]
    clipped = first_steps((1, 1, 1), weights, tmp_path / "run", f"optimizer.clip.max_norm={limit}")
    assert clipped[0]["grad_sumsq_bits"] == free[0]["grad_sumsq_bits"]
    assert clipped[0]["params_hash"] != free[0]["params_hash"]


def test_counting_gains_for_every_tp_rank_is_seen(weights, free, tmp_path):
    binary = build(TWICE, tmp_path)
    mesh = (1, 1, 2)
    wrong = first_steps(mesh, weights, tmp_path / "free", binary=binary)
    assert wrong[0]["grad_norm"] > 1.4 * free[0]["grad_norm"]
    limit = between(free, 0.5, mesh[2])
    wrong = first_steps(mesh, weights, tmp_path / "clipped", f"optimizer.clip.max_norm={limit}", binary=binary)
    assert wrong[0]["params_hash"] != free[0]["params_hash"]
