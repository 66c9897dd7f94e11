"""Whole runs of dmuon-train for the tests: the table of scripts/reproduce.py, and small jobs of their own."""
import importlib.util
import random
import struct
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def load_table():
    spec = importlib.util.spec_from_file_location("reproduce", ROOT / "scripts" / "reproduce.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["reproduce"] = module
    spec.loader.exec_module(module)
    return module


reproduce = load_table()
Run = reproduce.Run
Failed = reproduce.Failed


def bits(run, scratch, **options):
    """The Step of each step: all that is compared."""
    return reproduce.steps_of(reproduce.execute(run, Path(scratch), **options))


def expect_equal(run, steps, reference):
    difference = reproduce.first_difference(reference, steps)
    assert difference is None, f"{run.name} ({run.mesh}, {run.mode}): {difference}"
    assert reference[-1].number > 1


def write_tokens(path, vocab, count, seed=1):
    """A token shard (format of src/data/shard.h) of ids below vocab, small ones more often; all of them occur."""
    rng = random.Random(seed)
    ids = [min(rng.randrange(vocab), rng.randrange(vocab)) for _ in range(count - vocab)] + list(range(vocab))
    header = struct.pack("<256i", 20240520, 1, count, *[0] * 253)
    path.write_bytes(header + struct.pack(f"<{count}H", *ids))
