"""Tensor parallelism, and ddp, give the bits of one rank: loss, binary64 gradient norm and all state after each step, on every legal mesh
of up to eight ranks, for three models, in modes that meet in pairs."""
import itertools
import json
import subprocess

import pytest

from runs import ROOT, Run, bits, expect_equal, reproduce, write_tokens

# What differs: `plain` has square q, k, v and o, of which only o is cut along the contracted dimension, and rows of the vocabulary in several
# blocks; `grouped` matrices of all proportions; `biased` a last short segment of the vocabulary and heads of four elements.
MODELS = {
    "plain": {"d_model": 64, "n_kv_heads": 8, "head_dim": 8, "d_ff": 352, "vocab_size": 300},
    "grouped": {"d_model": 48, "n_kv_heads": 2, "head_dim": 8, "d_ff": 256, "vocab_size": 64, "tie_embeddings": True, "qk_norm": True},
    "biased": {"d_model": 32, "n_kv_heads": 8, "head_dim": 4, "d_ff": 168, "vocab_size": 61, "qkv_bias": True},
}
JOB = """
model: {model}
mesh: {{replicate: 1}}
threads: 1
parallel: {{owner: {{small_param_threshold: 1000}}}}
optimizer:
  muon: {{lr: 0.02, weight_decay: 0.1}}
  adamw: {{lr: 0.003, weight_decay: 0.1, decay_1d: true}}
  clip: {{max_norm: 1.5}}
batch: {{global: 16, micro: 1, seq_len: 16}}
data: {{train: {data}}}
train: {{steps: 5}}
log: {{params_hash_every: 1}}
"""

# One run a row; "-": without effect there. Every legal mesh stands below every model, and every two values of two columns meet
# wherever both have an effect.
COLUMNS = ("model", "replicate", "shard", "tp", "data", "publish", "reshard", "accumulate", "prefetch", "algorithm", "gram", "buffers")
TABLE = """
plain   1 1 1  fsdp  sync   -   local   -  gram    -          -
plain   1 2 1  fsdp  sync   z3  reduce  1  gram    -          -
plain   2 1 1  ddp   sync   -   -       -  gram    -          -
plain   1 1 2  ddp   async  -   -       -  gram    beneficial gather
plain   1 4 1  fsdp  async  z2  reduce  1  gram    -          -
plain   2 2 1  fsdp  async  z2  reduce  3  gram    -          -
plain   4 1 1  fsdp  async  -   local   -  direct  -          -
plain   1 2 2  fsdp  sync   z3  local   3  direct  off        off
plain   2 1 2  fsdp  async  -   local   -  direct  off        scatter
plain   1 1 4  fsdp  sync   -   reduce  -  gram    beneficial scatter
plain   1 8 1  ddp   async  -   -       -  direct  -          -
plain   2 4 1  fsdp  sync   z3  reduce  0  direct  -          -
plain   4 2 1  fsdp  async  z3  reduce  1  direct  -          -
plain   8 1 1  fsdp  sync   -   local   -  gram    -          -
plain   1 4 2  fsdp  sync   z3  local   1  direct  off        all
plain   2 2 2  fsdp  sync   z3  local   1  direct  off        gather
plain   4 1 2  ddp   async  -   -       -  direct  always     gather
plain   1 2 4  fsdp  async  z2  local   0  gram    beneficial gather
plain   2 1 4  ddp   sync   -   -       -  gram    always     all
plain   1 1 8  fsdp  sync   -   reduce  -  gram    off        gather
plain   1 1 8  fsdp  async  -   local   -  direct  always     all
grouped 1 1 1  fsdp  async  -   reduce  -  direct  -          -
grouped 1 2 1  fsdp  sync   z3  local   1  gram    -          -
grouped 2 1 1  fsdp  sync   -   local   -  gram    -          -
grouped 1 1 2  fsdp  async  -   local   -  direct  off        gather
grouped 1 4 1  ddp   async  -   -       -  direct  -          -
grouped 2 2 1  ddp   async  -   -       -  direct  -          -
grouped 4 1 1  fsdp  sync   -   reduce  -  direct  -          -
grouped 1 2 2  fsdp  sync   z3  local   3  direct  always     scatter
grouped 2 1 2  fsdp  sync   -   reduce  -  gram    beneficial all
grouped 1 8 1  fsdp  async  z3  local   1  direct  -          -
grouped 1 8 1  fsdp  async  z3  reduce  0  gram    -          -
grouped 2 4 1  ddp   sync   -   -       -  gram    -          -
grouped 4 2 1  fsdp  async  z3  reduce  0  direct  -          -
grouped 8 1 1  fsdp  sync   -   reduce  -  gram    -          -
grouped 1 4 2  fsdp  sync   z2  reduce  1  direct  always     off
grouped 2 2 2  fsdp  async  z2  reduce  0  gram    always     all
grouped 4 1 2  fsdp  sync   -   local   -  direct  off        scatter
grouped 4 1 2  ddp   async  -   -       -  gram    beneficial all
biased  1 1 1  ddp   async  -   -       -  direct  -          -
biased  1 2 1  fsdp  sync   z2  local   3  direct  -          -
biased  2 1 1  fsdp  async  -   reduce  -  gram    -          -
biased  1 1 2  ddp   async  -   -       -  direct  always     all
biased  1 4 1  fsdp  sync   z2  reduce  3  direct  -          -
biased  2 2 1  fsdp  async  z3  local   0  direct  -          -
biased  4 1 1  ddp   sync   -   -       -  gram    -          -
biased  1 2 2  fsdp  sync   z3  reduce  0  gram    always     off
biased  2 1 2  ddp   async  -   -       -  direct  always     off
biased  1 1 4  ddp   sync   -   -       -  direct  off        all
biased  1 8 1  fsdp  sync   z2  reduce  3  gram    -          -
biased  2 4 1  fsdp  sync   z3  reduce  3  direct  -          -
biased  4 2 1  fsdp  sync   z2  reduce  3  gram    -          -
biased  8 1 1  ddp   async  -   -       -  direct  -          -
biased  1 4 2  fsdp  async  z3  reduce  3  direct  beneficial gather
biased  1 4 2  fsdp  async  z3  local   1  direct  off        scatter
biased  2 2 2  fsdp  async  z2  reduce  0  direct  off        scatter
biased  4 1 2  ddp   sync   -   -       -  gram    beneficial off
biased  1 2 4  fsdp  async  z3  reduce  1  gram    beneficial scatter
biased  1 2 4  fsdp  sync   z3  local   3  gram    beneficial all
biased  2 1 4  ddp   sync   -   -       -  gram    beneficial off
biased  1 1 8  ddp   async  -   -       -  direct  beneficial scatter
biased  1 1 8  ddp   async  -   -       -  direct  beneficial off
"""
ROWS = [dict(zip(COLUMNS, line.split())) for line in TABLE.strip().splitlines()]

KEYS = {
    "data": "parallel.data={}",
    "publish": "optimizer.muon.replicate_async={}",
    "reshard": "parallel.reshard_after_forward={}",
    "accumulate": "parallel.accumulate={}",
    "prefetch": "parallel.prefetch={}",
    "algorithm": "optimizer.muon.ns.algorithm={}",
    "gram": "optimizer.muon.tp_distributed_gram={}",
    "buffers": "parallel.tp_buffer_reuse={}",
}
VALUES = {
    "data": ["fsdp", "ddp"], "publish": ["async", "sync"], "reshard": ["z3", "z2"], "accumulate": ["reduce", "local"],
    "prefetch": ["0", "1", "3"], "algorithm": ["gram", "direct"], "gram": ["off", "beneficial", "always"],
    "buffers": ["off", "gather", "scatter", "all"],
}
WORDS = {"async": "true", "sync": "false", "z3": "true", "z2": "false"}
MESHES = [m for m in itertools.product((1, 2, 4, 8), repeat=3) if m[0] * m[1] * m[2] <= 8]


def legal(model):
    """T divides the kv heads."""
    return [m for m in MESHES if MODELS[model]["n_kv_heads"] % m[2] == 0]


def idle(shard, tp, data):
    return {*(("gram", "buffers") if tp == 1 else ()), *(("accumulate",) if data == "ddp" else ()),
            *(("reshard", "prefetch") if data == "ddp" or shard == 1 else ())}


def mode_keys(row):
    return tuple(KEYS[name].format(WORDS.get(row[name], row[name])) for name in KEYS if row[name] != "-")


def run_of(row, config):
    name = "-".join(row.values())
    mesh = [int(row[axis]) for axis in ("replicate", "shard", "tp")]
    return Run(name, mesh[0], mesh[1], name, mode_keys(row), config=config, tp=mesh[2])


@pytest.fixture(scope="module")
def configs(tmp_path_factory):
    """Configuration file of each model."""
    scratch = tmp_path_factory.mktemp("models")
    paths = {}
    for name, differs in MODELS.items():
        model = {"family": "llama", "n_layers": 2, "n_heads": 8, "max_seq_len": 64, "init_std": 0.05, **differs}
        write_tokens(scratch / f"{name}.bin", model["vocab_size"], 1600)
        paths[name] = scratch / f"{name}.yaml"
        paths[name].write_text(JOB.format(model=json.dumps(model), data=scratch / f"{name}.bin"))
    return {name: str(path) for name, path in paths.items()}


@pytest.fixture(scope="module")
def reference(configs, tmp_path_factory):
    """reference(model, keys): the bits of one rank."""
    known = {}

    def get(model, *keys):
        if (model, keys) not in known:
            run = Run("one", keys=keys, config=configs[model])
            known[model, keys] = bits(run, tmp_path_factory.mktemp("one"))
        return known[model, keys]

    return get


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(row.values()))
def test_row_has_the_bits_of_one_rank(row, configs, reference, tmp_path):
    run = run_of(row, configs[row["model"]])
    expect_equal(run, bits(run, tmp_path), reference(row["model"], KEYS["algorithm"].format(row["algorithm"])))


# ---- the table itself ----


def pairs(values):
    """All pairs of (column, value) in a row; idle columns are left out."""
    return set(itertools.combinations([(name, v) for name, v in values.items() if v != "-"], 2))


def required_pairs():
    required = set()
    for model in MODELS:
        for mesh, data in itertools.product(legal(model), VALUES["data"]):
            fixed = {"model": model, **dict(zip(COLUMNS[1:4], map(str, mesh))), "data": data}
            choices = {name: [fixed[name]] if name in fixed else VALUES[name] for name in COLUMNS if name not in idle(*mesh[1:], data)}
            for a, b in itertools.combinations(choices, 2):
                required |= {((a, x), (b, y)) for x in choices[a] for y in choices[b]}
    return required


def test_every_two_values_of_two_columns_meet():
    met = set().union(*map(pairs, ROWS))
    missing = required_pairs() - met
    assert not missing, sorted(missing)
    assert len(met) > 400


def test_every_legal_mesh_stands_below_every_model():
    for model in MODELS:
        meshes = {tuple(int(row[a]) for a in COLUMNS[1:4]) for row in ROWS if row["model"] == model}
        assert meshes == set(legal(model)), model


def test_idle_columns_are_empty():
    for row in ROWS:
        assert {name for name, value in row.items() if value == "-"} == idle(int(row["shard"]), int(row["tp"]), row["data"]), row


# ---- what the modes really do ----


def plan_of(config, *keys):
    done = subprocess.run([reproduce.program(), config, "--plan=json", *keys], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          check=True)
    return json.loads(done.stdout)


# Columns: what each value of `gram` keeps in slices. S_f*m*m < m*n, with S_f = 2 (gram, one restart) and 5 (direct), holds for the MLP only.
MLP = {"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}
LONG = {"plain": {"self_attn.o_proj"} | MLP, "grouped": {"self_attn.q_proj", "self_attn.o_proj"} | MLP, "biased": {"self_attn.o_proj"} | MLP}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("algorithm", VALUES["algorithm"])
@pytest.mark.parametrize("gram", VALUES["gram"])
def test_each_value_of_gram_keeps_the_matrices_it_should_in_slices(model, algorithm, gram, configs):
    expected = {"off": set(), "beneficial": MLP, "always": LONG[model]}[gram]
    plan = plan_of(configs[model], "mesh.tp=2", f"optimizer.muon.ns.algorithm={algorithm}", f"optimizer.muon.tp_distributed_gram={gram}")
    gathered = squares = 0
    rounds = 2 if algorithm == "gram" else 5
    for p in plan["parameters"]:
        rows, cols = (p["shape"] * 2)[:2]
        if p["role"] == "MUON" and ".".join(p["name"].split(".")[3:5]) in expected:
            squares += 4 * min(rows, cols) ** 2
        elif p["role"] == "MUON":
            gathered += 4 * rows * cols
    tp = plan["comm_bytes"]["tp"]
    assert tp["gather"]["payload_bytes"] == tp["scatter"]["payload_bytes"] == gathered
    assert [tp.get(op, {}).get("payload_bytes", 0) for op in ("reduce", "broadcast")] == [rounds * squares] * 2


# ---- other matrices, other updates ----

GLOBS = "optimizer.muon.match"
VARIANTS = {
    "columns-by-adamw": [f"{GLOBS}=['*.k_proj.weight', '*.up_proj.weight']"],
    "muon-vocabulary": [f"{GLOBS}=['*.embed_tokens.weight', 'lm_head.weight', '*.o_proj.weight']"],
    "two-restarts": ["optimizer.muon.ns.algorithm=gram", "optimizer.muon.ns.restarts=[1, 3]"],
    "one-iteration": ["optimizer.muon.ns.steps=1", "optimizer.muon.ns.restarts=[]"],
    "spectral-no-nesterov": ["optimizer.muon.scale=spectral", "optimizer.muon.nesterov=false"],
    "clip-muon": ["optimizer.clip.max_norm=0", "optimizer.clip.muon_max_norm=0.3"],
    "bundles-rank0": ["parallel.owner.small_param_threshold=10000", "parallel.owner.strategy=rank0"],
    "four-segments": ["numerics.segments=4"],
}


@pytest.mark.parametrize("gram", ["off", "always"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_variant_of_the_update_has_the_bits_of_one_rank(variant, gram, configs, reference, tmp_path):
    keys = ("train.steps=3", *VARIANTS[variant])
    row = Run(variant, *{"off": (2, 1), "always": (1, 2)}[gram], variant, (*keys, f"optimizer.muon.tp_distributed_gram={gram}"),
              config=configs["biased"], tp={"off": 4, "always": 2}[gram])
    expect_equal(row, bits(row, tmp_path), reference("biased", *keys))


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_empty_slices_of_the_vocabulary_change_nothing(tp, configs, reference, tmp_path):
    """33 rows are stored as 40: the last of eight ranks has none of them. Ids beyond 32 are cut off by the data."""
    write_tokens(tmp_path / "few.bin", 33, 1600)
    keys = ("train.steps=3", "model.vocab_size=33", f"data.train={tmp_path / 'few.bin'}")
    row = Run("few", 1, 1, "vocabulary of 33", keys, config=configs["biased"], tp=tp)
    expect_equal(row, bits(row, tmp_path), reference("biased", *keys))


def test_evaluation_has_the_same_bits_on_every_mesh(configs, tmp_path):
    write_tokens(tmp_path / "val.bin", 61, 1600)
    keys = ("train.steps=4", "train.eval_every=2", "train.eval_batches=2", f"data.val={tmp_path / 'val.bin'}")
    seen = []
    for mesh in [(1, 1, 1), (1, 2, 2), (1, 1, 8)]:
        run = Run("eval", *mesh[:2], keys=keys, config=configs["biased"], tp=mesh[2])
        events = reproduce.execute(run, tmp_path / str(mesh[2]))
        seen.append([(e["step"], e["loss_bits"], e["tokens"]) for e in events if e["event"] == "eval"])
    assert seen[0] == seen[1] == seen[2] and [e[0] for e in seen[0]] == [2, 4]


# ---- what else reads and gathers ----

TEXT = ("train.steps=4", "batch.global=8", "train.eval_every=2", "train.eval_batches=1", "train.sample_every=2", "train.sample_tokens=12",
        "train.sample_prompt=In the beginning")


def test_samples_are_the_same_text_on_every_mesh(tmp_path):
    seen = []
    for mesh in [(1, 1, 1), (1, 1, 4), (2, 2, 2)]:
        events = reproduce.execute(Run("sample", *mesh[:2], keys=TEXT, tp=mesh[2]), tmp_path / str(mesh[2]))
        seen.append([(e["step"], e["text"]) for e in events if e["event"] == "sample"])
    assert seen[0] == seen[1] == seen[2] and [step for step, _ in seen[0]] == [2, 4]


@pytest.mark.parametrize("mesh", [(1, 1, 4), (1, 2, 2), (2, 2, 2)], ids=lambda m: reproduce.mesh_name(*m))
def test_skipped_steps_change_nothing_on_any_mesh(mesh, configs, reference, tmp_path):
    """Rates that blow up: steps that are not finite are skipped, by all ranks alike."""
    keys = ("train.steps=6", "train.nonfinite=skip", "optimizer.adamw.lr=1e6", "optimizer.adamw.weight_decay=1e6",
            "optimizer.schedule.kind=constant")
    gram = "optimizer.muon.tp_distributed_gram=" + ("off" if mesh[2] == 4 else "always")
    row = Run("skip", *mesh[:2], "", (*keys, gram), config=configs["biased"], tp=mesh[2])
    events = reproduce.execute(row, tmp_path)
    skipped = [e["nonfinite"] for e in events if e["event"] == "step"]
    assert skipped[0] == 0 < skipped[-1]
    steps = reproduce.steps_of(events)
    assert [s.params for s in steps] == [s.params for s in reference("biased", *keys)]
