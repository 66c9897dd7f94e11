"""Two hosts with a slow link between them and the tp axis across it: the gradients of a unit travel to their tp owners while the backward
goes on. The same engine with all gathers after the backward is slower by most of what they take."""
from statistics import median

import pytest

from helpers import TRAIN
from mutants import PARALLEL, Mutant, build
from test_overlap import fixture_hosts, plan  # noqa: F401  a fixture is found by its import

ROUNDS = 3
ATTEMPTS = 6  # for the reason that test_overlap gives
SHARE = 0.6  # of the backward that the gathers would take alone
HIDDEN = 0.3  # of the gathers, at least; a quiet machine shows 0.6 to 0.8

# Wide matrices, so that a token's products outweigh its activations on the link; one short Newton-Schulz.
CONFIG = """
model: {family: llama, d_model: 768, n_layers: 3, n_heads: 6, n_kv_heads: 6, head_dim: 128, d_ff: 2048, vocab_size: 256,
        max_seq_len: 512, rope_theta: 10000.0, norm_eps: 1.0e-5, tie_embeddings: false, qkv_bias: false, qk_norm: false,
        init_std: 0.02}
mesh: {tp: 2}
threads: 1
optimizer: {muon: {lr: 0.02, ns: {steps: 1, restarts: []}}, adamw: {lr: 0.003}}
batch: {global: 1, micro: 1, seq_len: 512}
data: {train: configs/data/kjv_train.txt}
"""
LATE = Mutant("gathers-after-the-backward", PARALLEL, "if (unit < p->gather_next)", "if (unit < -1)", None)


def gathered_bytes(config):
    """In each direction: the tp owners share the matrices."""
    return plan(config)["comm_bytes"]["tp"]["gather"]["bus_bytes"] / 2


def calibrate(hosts, config, run_dir):
    """Limits the link so that the gathers alone would take a share of the backward; gives their time in ms."""
    found, _ = hosts.run(config, run_dir, per_host=1)
    gather_ms = SHARE * median(r["phase_ms"]["backward"] for r in found[1:])
    hosts.limit(gathered_bytes(config) / (1e-3 * gather_ms))
    return gather_ms


def measure(hosts, config, folder, late):
    """Medians in ms over interleaved pairs: a step whose gathers follow the backward, and one whose gathers run beside it; and the bits."""
    took, bits = {late: [], TRAIN: []}, set()
    for round_ in range(ROUNDS):
        for program in (late, TRAIN) if round_ % 2 else (TRAIN, late):
            found, seconds = hosts.run(config, folder / f"{round_}-{program == late}", program=program, per_host=1)
            took[program] += [1e3 * s for s in seconds]
            bits.add(tuple(r["loss_bits"] for r in found))
    assert len(bits) == 1
    return median(took[late]), median(took[TRAIN])


def test_gathers_over_tp_hide_behind_the_backward(hosts, tmp_path):
    config = tmp_path / "overlap.yaml"
    config.write_text(CONFIG)
    late = build(LATE, tmp_path)
    for attempt in range(ATTEMPTS):
        folder = tmp_path / str(attempt)
        gather = calibrate(hosts, config, folder / "free")
        after, beside = measure(hosts, config, folder, late)
        print(f"gathers {gather:.0f} ms, step {after:.0f} ms with them after the backward, {beside:.0f} ms beside it: ratio {beside / after:.3f}")
        if after - beside >= HIDDEN * gather:
            return
        hosts.limit(1e9)
    pytest.fail(f"gathers of {gather:.0f} ms: a step takes {after:.0f} ms with them after the backward, {beside:.0f} ms beside it")
