"""Sets of meshes with tensor parallelism, distributed Gram and ddp: each continues on every other with the bits of a run that never stopped,
and their tensors are the same bytes."""
import itertools
import shutil
import subprocess

import pytest

from helpers import CKPT, SLOW, records, run_mesh, set_dir, set_names, steps

GRAM = "optimizer.muon.tp_distributed_gram=always"
DDP = "parallel.data=ddp"
WAYS = {
    "1x1x1": ((1, 1, 1), ()),
    "2x2x2-gram": ((2, 2, 2), (GRAM,)),
    "1x2x4": ((1, 2, 4), ()),
    "2x4x1-ddp": ((2, 4, 1), (DDP,)),
    "1x1x4-ddp": ((1, 1, 4), (DDP,)),
}
ALL = list(itertools.permutations(WAYS, 2))
NAMES = list(WAYS)
SOME = [(a, NAMES[(i + far) % len(NAMES)]) for i, a in enumerate(NAMES) for far in (1, 2)]
# Where the work of Newton-Schulz is done is no part of the state, but a key that a resume asks about.
ALLOWED = "checkpoint.allow_changes=[optimizer.muon.tp_distributed_gram]"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """saved(way): the directory of a ten-step run with sets of steps 5 and 10, made once."""
    made = {}

    def get(way):
        if way not in made:
            mesh, keys = WAYS[way]
            made[way] = tmp_path_factory.mktemp("saved") / way
            run_mesh(mesh, made[way], "checkpoint.every=5", *keys)
            assert set_names(made[way]) == ["step-00000005", "step-00000010"]
        return made[way]

    return get


def ckpt(*arguments):
    return subprocess.run([CKPT, *map(str, arguments)], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("source,target", ALL if SLOW else SOME)
def test_a_set_of_one_mesh_continues_on_another_with_the_same_bits(source, target, saved, tmp_path):
    mesh, keys = WAYS[target]
    run_mesh(mesh, tmp_path / "run", f"checkpoint.resume={set_dir(saved(source), 5)}", "checkpoint.every=5", ALLOWED, *keys)
    whole = steps(saved("1x1x1"))
    assert steps(tmp_path / "run") == {step: whole[step] for step in range(6, 11)}
    assert [r["step"] for r in records(tmp_path / "run", "resume")] == [5]
    done = ckpt("diff", set_dir(tmp_path / "run", 10), set_dir(saved("1x1x1"), 10))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("way", NAMES[1:])
def test_sets_of_different_meshes_are_equal(way, saved):
    assert steps(saved(way)) == steps(saved("1x1x1"))
    for step in (5, 10):
        verified = ckpt("verify", set_dir(saved(way), step))
        assert verified.returncode == 0, verified.stdout + verified.stderr
        done = ckpt("diff", set_dir(saved("1x1x1"), step), set_dir(saved(way), step))
        assert done.returncode == 0 and "equal" in done.stdout, done.stdout + done.stderr


def test_sets_of_different_steps_differ(saved):
    run = saved("2x2x2-gram")
    assert ckpt("diff", set_dir(run, 5), set_dir(run, 10)).returncode == 1


def test_a_run_goes_on_where_it_stopped_on_another_mesh(saved, tmp_path):
    """In its own directory: the log is cut back, the newest set found."""
    run = tmp_path / "run"
    shutil.copytree(saved("1x1x4-ddp"), run)
    shutil.rmtree(set_dir(run, 10))
    run_mesh((2, 1, 2), run, "checkpoint.every=5")
    assert steps(run) == steps(saved("1x1x1"))


@pytest.mark.parametrize("source,target", [("2x2x2-gram", "1x2x4"), ("1x1x4-ddp", "2x2x2-gram")])
def test_momentum_of_a_padded_vocabulary_continues_on_another_mesh(source, target, tmp_path):
    """301 rows are stored as 304; a set holds 301."""
    muon = ["model.vocab_size=301", "optimizer.muon.match=['model.embed_tokens.weight', 'lm_head.weight', '*.o_proj.weight']"]
    run_mesh((1, 1, 1), tmp_path / "one", "checkpoint.every=5", *muon)
    mesh, keys = WAYS[source]
    run_mesh(mesh, tmp_path / "first", "checkpoint.every=5", "checkpoint.keep=0", *keys, *muon)
    assert ckpt("diff", set_dir(tmp_path / "one", 5), set_dir(tmp_path / "first", 5)).returncode == 0
    mesh, keys = WAYS[target]
    run_mesh(mesh, tmp_path / "second", f"checkpoint.resume={set_dir(tmp_path / 'first', 5)}", "checkpoint.every=5", ALLOWED, *keys, *muon)
    assert ckpt("diff", set_dir(tmp_path / "one", 10), set_dir(tmp_path / "second", 10)).returncode == 0
