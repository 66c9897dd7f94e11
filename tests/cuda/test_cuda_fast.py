"""Fast mode on the stand-ins: rounded products are within their bounds and pinned, and runs keep the bits that fast mode promises."""
import hashlib
import json
import subprocess

import pytest

from helpers import records
from mutation import build_changed
from standin import BUILD, GRAPH_CALLS, environment, first_seed, needs_build, run, start, steps_of

pytestmark = needs_build

PRODUCTS, ATTENTION = BUILD / "cuda" / "products_fast", BUILD / "cuda" / "attention_fast"
FAST = ("numerics.mode=fast", "threads=1", "train.steps=3", "batch.global=8", "batch.seq_len=16", "log.params_hash_every=1")
BF16 = (*FAST, "precision.compute=bf16", "precision.wire=bf16")
TF32 = (*FAST, "precision.compute=tf32")


def mesh(replicate, shard, tp):
    return tuple(f"mesh.{axis}={n}" for axis, n in (("replicate", replicate), ("shard", shard), ("tp", tp)))


# ---- products ----


@pytest.mark.parametrize("what,seeds", [("bf16", 3), ("tf32", 2), ("large", 1), ("foreign", 1), ("exact", 1)])
def test_products(what, seeds):
    for seed in range(first_seed(), first_seed() + seeds):
        done = subprocess.run([PRODUCTS, what], env=environment(seed), capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"DM_CUDA_SEED={seed}: {done.stderr}"


def test_a_product_that_was_not_pinned_is_fatal():
    done = subprocess.run([PRODUCTS, "unpinned"], env=environment(1), capture_output=True, text=True, timeout=60)
    assert done.returncode == 6 and "pinned at start-up for the product [64, 32] x [32, 48] in bf16" in done.stderr, done.stderr


# ---- attention ----


@pytest.mark.parametrize("what,seeds", [("bf16", 3), ("tf32", 2), ("large", 1)])
def test_attention(what, seeds):
    for seed in range(first_seed(), first_seed() + seeds):
        done = subprocess.run([ATTENTION, what], env=environment(seed), capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"DM_CUDA_SEED={seed}: {done.stderr}"


def test_attention_of_a_layer_takes_few_launches(tmp_path):
    done = subprocess.run([ATTENTION, "once"], env=environment(0, DM_STANDIN_COUNTS=tmp_path / "counts"), capture_output=True, text=True,
                          timeout=60)
    assert done.returncode == 0, done.stderr
    kernels = {name.split("<")[0]: n for name, n in json.loads((tmp_path / "counts").read_text())["kernels"].items()}
    forward, backward = {"head_pack_kernel": 1, "score_softmax_kernel": 1}, {"head_pack_kernel": 1, "score_gradient_kernel": 1}
    assert kernels == {**forward, **backward, "head_pack_kernel": 2, "cublasLtMatmul": 2 + 5}


def test_newton_schulz_in_a_batch_has_the_bits_of_each_matrix_alone(tmp_path):
    for seed in range(first_seed(), first_seed() + 2):
        done = subprocess.run([BUILD / "cuda" / "newton_schulz_fast"], env=environment(seed, DM_STANDIN_COUNTS=tmp_path / "counts"),
                              capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"DM_CUDA_SEED={seed}: {done.stderr}"
    assert json.loads((tmp_path / "counts").read_text())["kernels"]["graph"] == 3 * 15


# ---- runs ----

SYNC = "optimizer.muon.replicate_async=false"
Z2 = "parallel.reshard_after_forward=false"
GRAM = "optimizer.muon.tp_distributed_gram=always"
WAYS = {
    "again": (1, 1, 1), "shard-recompute": (1, 2, 1, "parallel.recompute=layer"), "hsdp": (2, 2, 1), "hsdp-sync-z2": (2, 2, 1, SYNC, Z2),
    "mpi": (2, 1, 1, "comm.transport=mpi"), "tp-again": (1, 1, 2), "tp-hsdp": (2, 2, 2, SYNC),
}


def go(tmp_path, way, precision, *keys, seed):
    replicate, shard, tp, *more = way
    return run(replicate * shard * tp, tmp_path, "device=cuda", *precision, *mesh(replicate, shard, tp), *more, *keys, seed=seed)


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """One data-parallel rank's bits, by precision and tp."""
    known = {}

    def get(precision, tp):
        if (precision, tp) not in known:
            known[precision, tp] = go(tmp_path_factory.mktemp("one") / "run", (1, 1, tp), precision, seed=0)
        return known[precision, tp]

    return get


@pytest.mark.parametrize("number,way", enumerate(WAYS.values()), ids=WAYS.keys())
def test_bf16_runs_have_the_same_bits(number, way, reference, tmp_path):
    steps = go(tmp_path / "run", way, BF16, seed=first_seed() + number)
    assert steps == reference(BF16, way[2]), f"DM_CUDA_SEED={first_seed()}"


@pytest.mark.parametrize("way", ["shard-recompute", "tp-hsdp"])
def test_operands_that_each_product_packs_for_itself_give_the_same_bits(way, reference, tmp_path):
    """What lies beside weights and activations as 16 bits is never stale."""
    change = ("src/device/cuda_product.c", "p->type == OPERAND_BF16 ? bf16 : NULL", "NULL")
    program = build_changed("packed", [change], tmp_path, "CUDA=1", f"BUILD={BUILD}", f"BINDIR={BUILD}/bin")
    replicate, shard, tp, *keys = WAYS[way]
    code, err = start(replicate * shard * tp, tmp_path / "run", "device=cuda", *BF16, *mesh(replicate, shard, tp), *keys,
                      seed=first_seed(), binary=program)
    assert code == 0, err
    assert steps_of(tmp_path / "run") == reference(BF16, tp)


def test_tf32_runs_have_the_same_bits(reference, tmp_path):
    assert go(tmp_path / "run", (2, 2, 1), TF32, seed=first_seed()) == reference(TF32, 1)
    assert reference(TF32, 1) != reference(BF16, 1)


def test_matrices_that_stay_in_slices(tmp_path):
    one = go(tmp_path / "one", (1, 1, 2, GRAM), BF16, seed=first_seed())
    assert go(tmp_path / "two", (2, 1, 2, GRAM), BF16, seed=first_seed() + 1) == one


def trailer(run_dir, step):
    return run_dir / "checkpoints" / f"step-{step:08}" / "trainer.json"


def test_a_restart_continues_the_bits_and_names_its_products(reference, tmp_path):
    place = tmp_path / "run"
    go(place, (1, 2, 1), BF16, "train.steps=2", "checkpoint.every=1", "optimizer.schedule.kind=constant", seed=first_seed())
    whole = go(tmp_path / "whole", (1, 1, 1), BF16, "optimizer.schedule.kind=constant", seed=first_seed())
    steps = go(place, (2, 1, 1), BF16, "checkpoint.every=1", "optimizer.schedule.kind=constant", seed=first_seed() + 1)
    assert steps == whole
    names = {r["numerics"]["products"] for r in records(place, "start")}
    assert len(names) == 1 and "cuBLASLt" in names.pop()
    assert json.loads(trailer(place, 3).read_text())["numerics"]["products"] == records(place, "start")[0]["numerics"]["products"]
    assert not [r for r in records(place, "warning") if "algorithms" in r["text"]]


def test_other_algorithms_are_a_warning(tmp_path):
    place = tmp_path / "run"
    keys = ("checkpoint.every=1", "optimizer.schedule.kind=constant")
    go(place, (1, 1, 1), BF16, "train.steps=1", *keys, seed=first_seed())
    path = trailer(place, 1)
    text = path.read_bytes()
    name = json.loads(text)["numerics"]["products"].encode()
    body = text[: text.rindex(b',"self"')].replace(name, b"another library")
    path.write_bytes(body + b',"self":"%s"}\n' % hashlib.sha256(body).hexdigest().encode())
    code, err = start(1, place, "device=cuda", *BF16, *mesh(1, 1, 1), "train.steps=2", *keys, seed=first_seed())
    assert code == 0 and "other algorithms for matrix products (another library; now" in err, err


def test_a_prompt_is_answered(tmp_path):
    """Of every length up to a sequence's with the products of one."""
    keys = ("train.sample_every=2", "train.sample_prompt=In the", "train.sample_tokens=12")
    code, err = start(1, tmp_path / "run", "device=cuda", *BF16, *mesh(1, 1, 1), *keys, seed=first_seed())
    assert code == 0, err
    assert records(tmp_path / "run", "sample")


def test_exact_runs_name_no_products(tmp_path):
    run(1, tmp_path / "run", "device=cuda", *FAST, "train.steps=1", *mesh(1, 1, 1), seed=first_seed())
    assert records(tmp_path / "run", "start")[0]["numerics"]["products"] is None


def test_a_call_for_products_or_graphs_that_fails_ends_the_job(tmp_path):
    """The first one from each place in the program, products in graphs among them."""
    job = ("device=cuda", *BF16, *mesh(1, 1, 1))
    code, err = start(1, tmp_path / "whole", *job, seed=first_seed(), DM_STANDIN_COUNTS=tmp_path / "counts", DM_STANDIN_LEAKS=1)
    assert code == 0, err
    sites = [s for s in json.loads((tmp_path / "counts").read_text())["sites"] if s["api"].startswith("cublasLt") or s["api"] in GRAPH_CALLS]
    assert len(sites) >= 12 + len(GRAPH_CALLS) and GRAPH_CALLS <= {s["api"] for s in sites}
    for site in sites:
        code, err = start(1, tmp_path / f"run-{site['call']}", *job, seed=first_seed(), timeout=60, DM_STANDIN_FAIL=site["call"])
        lines = [line for line in err.splitlines() if line.startswith("dmuon-train: ")]
        assert code == 2 and len(lines) == 1 and " failed: " in lines[0], f"{site}: exit {code}\n{err}"
