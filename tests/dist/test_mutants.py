"""The comparison of bits is tested itself: each fault of mutants.py must change bits, or end the job with an error."""
import dataclasses

import pytest

from mutants import MUTANTS, SEEDS, TINY, at_full_speed, build
from runs import Failed, Run, bits, reproduce, write_tokens
from test_bits import MODEL

pytestmark = at_full_speed


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """Configuration of each job."""
    scratch = tmp_path_factory.mktemp("jobs")
    write_tokens(scratch / "train.bin", 61, 1200)
    odd = scratch / "odd.yaml"
    odd.write_text(MODEL.format(vocab=61, tied="true", bias="true", data=scratch / "train.bin"))
    subnormal = "tests/dist/subnormal.yaml"
    return {"tiny": (reproduce.CONFIG, ()), "odd": (str(odd), ()), "subnormal": (subnormal, ()),
            "subnormal-adamw": (subnormal, ("optimizer.muon.match=['*.q_proj.weight', '*.v_proj.weight']",)),
            "one-record": (reproduce.CONFIG, ("log.every=3",)),  # a record is agreed on, and its hash waits for the publish
            "wide": (reproduce.CONFIG, ("numerics.segments=1",))}


@pytest.fixture(scope="module")
def reference(jobs, tmp_path_factory):
    """reference(job): the bits of one rank, without a fault."""
    known = {}

    def get(job):
        if job not in known:
            config, keys = jobs[job]
            known[job] = bits(Run("one", keys=(*TINY, *keys), config=config), tmp_path_factory.mktemp(job))
        return known[job]

    return get


def what_differs(run, scratch, binary, reference):
    """The first difference, "abort: ..." when the job failed, or None."""
    try:
        return reproduce.first_difference(reference, bits(run, scratch, binary=binary, timeout=150))
    except Failed as failure:
        return f"abort: {failure}"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_fault_is_seen(mutant, jobs, reference, tmp_path):
    binary = build(mutant, tmp_path)
    config, keys = jobs[mutant.job]
    run = dataclasses.replace(mutant.run, config=config, keys=mutant.run.keys + keys)
    expected = reference(mutant.job)
    for seed in SEEDS if mutant.races else [0]:
        shaken = dataclasses.replace(run, name=f"seed-{seed}", env=(("DMUON_TEST_DELAY_SEED", str(seed)),))
        difference = what_differs(shaken, tmp_path, binary, expected)
        if difference:
            break
    assert difference, f"{mutant.name} is not seen: all bits are equal"
    assert mutant.may_abort or not difference.startswith("abort"), difference
    assert mutant.field in difference
    print(f"{mutant.name}: seed {seed}, {difference}")


@pytest.mark.parametrize("job", ["tiny", "one-record", "odd", "subnormal", "subnormal-adamw", "wide"])
@pytest.mark.parametrize("mesh", [(2, 2), (1, 4)])
def test_without_a_fault_the_same_jobs_have_the_bits_of_one_rank(job, mesh, jobs, reference, tmp_path):
    config, keys = jobs[job]
    run = Run("sound", *mesh, "", (*TINY, *keys), config=config, env=(("DMUON_TEST_DELAY_SEED", "1"),))
    assert reproduce.first_difference(reference(job), bits(run, tmp_path)) is None
