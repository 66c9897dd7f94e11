"""Every mesh and every mode gives the bits of one rank: loss, binary64 gradient norm and all state, after each step."""
import dataclasses
import json
import subprocess

import pytest

from runs import ROOT, Run, bits, expect_equal, reproduce, write_tokens

SIDES = {side.name: side for classic in reproduce.CLASSIC for side in classic.sides}


@pytest.fixture(scope="module")
def reference_events(tmp_path_factory):
    return reproduce.execute(reproduce.REFERENCE, tmp_path_factory.mktemp("reference"))


@pytest.fixture(scope="module")
def reference(reference_events):
    return reproduce.steps_of(reference_events)


# ---- the table ----

@pytest.mark.parametrize("row", [*SIDES.values(), *reproduce.TABLE], ids=lambda row: row.name)
def test_row_has_the_bits_of_one_rank(row, reference, tmp_path):
    if reproduce.missing_isa(row):
        pytest.skip(f"{row.mode}: not on this processor")
    expect_equal(row, bits(row, tmp_path), reference)


def test_a_run_repeats_itself(reference, tmp_path):
    expect_equal(reproduce.REFERENCE, bits(reproduce.REFERENCE, tmp_path), reference)


def test_another_seed_gives_other_bits(reference, tmp_path):
    other = dataclasses.replace(reproduce.REFERENCE, keys=("threads=1", "seed=5"))
    assert reproduce.first_difference(reference, bits(other, tmp_path)).startswith("step 1: loss")


def test_the_table_job_exercises_every_part_of_a_step(reference_events, reference):
    steps = [e for e in reference_events if e["event"] == "step"]
    limit = reference_events[0]["config"]["optimizer"]["clip"]["max_norm"]
    clipped = [s["grad_norm"] > limit for s in steps]
    assert any(clipped) and not all(clipped)
    assert len(steps) == 2 * reproduce.HALF
    for field in ("loss", "sumsq", "params"):
        assert len({getattr(s, field) for s in reference}) == len(steps)
    optimizer = reference_events[0]["config"]["optimizer"]
    assert optimizer["muon"]["momentum"] == 0.95
    assert optimizer["muon"]["weight_decay"] > 0 and optimizer["adamw"]["weight_decay"] > 0


def plan_of(*keys, config=reproduce.CONFIG):
    done = subprocess.run([reproduce.program(), config, "--plan=json", *keys], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def test_every_layer_of_the_table_job_has_several_owners():
    owners = {}
    for p in plan_of("mesh.replicate=2", "mesh.shard=2")["parameters"]:
        if p["owner"]:
            owners.setdefault(p["name"].split(".")[2], set()).add(tuple(p["owner"].values()))
    assert len(owners) == 2
    for layer in owners.values():
        assert len(layer) == 4
        assert len({o[0] for o in layer}) == 2 and len({o[1] for o in layer}) == 2


def test_owner_strategies_and_bundles_move_the_owners():
    strategies = [["parallel.owner.strategy=lpt"], ["parallel.owner.strategy=round_robin"],
                  ["parallel.owner.strategy=rank0"], ["parallel.owner.small_param_threshold=10000"]]
    maps = [tuple(str(p["owner"]) for p in plan_of(*keys)["parameters"]) for keys in strategies]
    assert len(set(maps)) == len(maps)


def test_a_mesh_of_three_repeats_itself_and_says_that_this_is_all(tmp_path):
    keys = ("batch.global=12", "train.steps=3")
    first = Run("three", 1, 3, "async", keys)
    events = reproduce.execute(first, tmp_path)
    assert any(e["event"] == "warning" and "its own mesh" in e["text"] for e in events)
    second = Run("three-sync", 1, 3, "sync, Z2, delays", (*keys, "optimizer.muon.replicate_async=false",
                                                         "parallel.reshard_after_forward=false"),
                 env=(("DMUON_TEST_DELAY_SEED", "3"),))
    expect_equal(second, bits(second, tmp_path), reproduce.steps_of(events))


def test_evaluation_has_the_same_bits_on_every_mesh(tmp_path):
    keys = ("train.steps=4", "train.eval_every=2", "train.eval_batches=2")
    losses = []
    for mesh in [(1, 1), (2, 2), (1, 8)]:
        events = reproduce.execute(Run(f"eval-{mesh}", *mesh, "", keys), tmp_path)
        losses.append([(e["step"], e["loss_bits"], e["tokens"]) for e in events if e["event"] == "eval"])
    assert losses[0] == losses[1] == losses[2]
    assert [step for step, _, _ in losses[0]] == [2, 4]
    assert losses[0][0][1] != losses[0][1][1]


# ---- a model with everything the first one lacks ----

MODEL = """
model: {{family: llama, d_model: 48, n_layers: 2, n_heads: 8, n_kv_heads: 2, head_dim: 8, d_ff: 80, vocab_size: {vocab},
         max_seq_len: 64, rope_theta: 10000.0, norm_eps: 1.0e-6, tie_embeddings: {tied}, qkv_bias: {bias}, qk_norm: true,
         init_std: 0.05}}
mesh: {{replicate: 1}}
parallel: {{owner: {{small_param_threshold: 1000}}}}
optimizer:
  muon: {{lr: 0.02, weight_decay: 0.1}}
  adamw: {{lr: 0.003, weight_decay: 0.1, decay_1d: true}}
  clip: {{max_norm: 1.5}}
batch: {{global: 16, micro: 2, seq_len: 16}}
data: {{train: {data}}}
train: {{steps: 4}}
log: {{params_hash_every: 1}}
"""
# Of eight segments: 61 the last one short, 50 the last two, 33 one short and one empty.
VOCABULARIES = [(61, True), (50, True), (33, True), (61, False)]
WAYS = {"2x2": (2, 2), "1x4": (1, 4), "4x1": (4, 1), "2x4": (2, 4),
        "2x2-local-z2": (2, 2, "parallel.accumulate=local", "parallel.reshard_after_forward=false"),
        "1x1x2": (1, 1, 2), "2x2x2": (2, 2, 2), "1x2x2-gram": (1, 2, 2, "optimizer.muon.tp_distributed_gram=always"),
        "2x2-ddp": (2, 2, "parallel.data=ddp"), "1x2x2-ddp-local": (1, 2, 2, "parallel.data=ddp", "parallel.accumulate=local"),
        "2x2-recompute": (2, 2, "parallel.recompute=layer"),
        "2x2-prefetch-4": (2, 2, "parallel.prefetch=4"),
        "2x4-prefetch-0": (2, 4, "parallel.prefetch=0")}


@pytest.fixture(scope="module", params=VOCABULARIES, ids=lambda v: f"vocab-{v[0]}-{'tied' if v[1] else 'untied'}")
def other_model(request, tmp_path_factory):
    """(configuration, bits on one rank)"""
    vocab, tied = request.param
    scratch = tmp_path_factory.mktemp("other")
    write_tokens(scratch / "train.bin", vocab, 1200)
    config = scratch / "other.yaml"
    config.write_text(MODEL.format(vocab=vocab, tied=str(tied).lower(), bias="true", data=scratch / "train.bin"))
    return str(config), bits(Run("one", config=str(config)), scratch)


@pytest.mark.parametrize("way", WAYS)
def test_odd_vocabulary_biases_and_qk_norm_have_the_bits_of_one_rank(other_model, way, tmp_path):
    config, reference = other_model
    sizes = [n for n in WAYS[way] if isinstance(n, int)]
    row = Run(way, sizes[0], sizes[1], "", tuple(WAYS[way][len(sizes):]), config=config, tp=(*sizes, 1)[2])
    expect_equal(row, bits(row, tmp_path), reference)


# ---- other ways to update ----

VARIANTS = {
    "direct": ["optimizer.muon.ns.algorithm=direct"],
    "gram": ["optimizer.muon.ns.algorithm=gram"],
    "gram-two-restarts": ["optimizer.muon.ns.algorithm=gram", "optimizer.muon.ns.restarts=[1, 3]"],
    "spectral": ["optimizer.muon.scale=spectral"],
    "jordan": ["optimizer.muon.ns.coefficients=jordan"],
    "you": ["optimizer.muon.ns.coefficients=you"],
    **{f"steps-{n}": [f"optimizer.muon.ns.steps={n}", f"optimizer.muon.ns.restarts=[{2 if n > 2 else ''}]"]
       for n in (1, 2, 3, 4, 6)},
    "no-nesterov": ["optimizer.muon.nesterov=false"],
    "clip-muon": ["optimizer.clip.max_norm=0", "optimizer.clip.muon_max_norm=0.5"],
    "clip-adamw": ["optimizer.clip.max_norm=0", "optimizer.clip.adamw_max_norm=0.5"],
    "clip-each": ["optimizer.clip.max_norm=0", "optimizer.clip.adamw_max_norm=0.6", "optimizer.clip.muon_max_norm=0.4"],
    "constant": ["optimizer.schedule.kind=constant"],
    "adamw-rows-and-columns": ["optimizer.muon.match=['*.k_proj.weight', '*.up_proj.weight']"],
    "muon-embedding-and-head": ["optimizer.muon.match=['*.embed_tokens.weight', 'lm_head.weight', '*.o_proj.weight']"],
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return bits(Run("plain", keys=("train.steps=3",)), tmp_path_factory.mktemp("plain"))


@pytest.mark.parametrize("variant", VARIANTS)
def test_variant_of_the_update_has_the_bits_of_one_rank(variant, plain, tmp_path):
    keys = ("train.steps=3", *VARIANTS[variant])
    one = bits(Run("one", keys=keys), tmp_path)
    assert reproduce.first_difference(plain, one) is not None, "the key has no effect"
    for replicate, shard, tp in ((2, 2, 1), (1, 2, 2)):
        row = Run(f"{variant}-{tp}", replicate, shard, "", keys, tp=tp)
        expect_equal(row, bits(row, tmp_path), one)


@pytest.mark.parametrize("mesh", [(2, 2, 1), (1, 4, 1), (1, 2, 2)])
def test_muon_on_a_padded_vocabulary_has_the_bits_of_one_rank(mesh, tmp_path):
    """33 rows are stored as 40; Newton-Schulz and the hash see 33."""
    write_tokens(tmp_path / "train.bin", 33, 1200)
    config = tmp_path / "padded.yaml"
    config.write_text(MODEL.format(vocab=33, tied="false", bias="false", data=tmp_path / "train.bin"))
    keys = ("optimizer.muon.match=['*.embed_tokens.weight', 'lm_head.weight', '*_proj.weight']",)
    one = bits(Run("one", keys=keys, config=str(config)), tmp_path)
    row = Run("cut", mesh[0], mesh[1], "", keys, config=str(config), tp=mesh[2])
    expect_equal(row, bits(row, tmp_path), one)


def test_a_unit_with_fewer_blocks_than_ranks_leaves_some_empty():
    """The layers' two gains are two blocks: the rows on eight ranks have six that hold nothing of them."""
    plan = plan_of("mesh.replicate=1", "mesh.shard=8")
    gains = [p["shape"] for p in plan["parameters"] if p["name"].startswith("model.layers.0.") and not p["owner"]]
    assert gains == [[64], [64]]
