"""The kept corpus of every fuzz target runs without a finding (long runs: make fuzz)."""
import os
import subprocess
from pathlib import Path

import pytest

BUILD = os.environ.get("DM_BUILD", "build/release")
TARGETS = sorted(path.stem for path in Path("tests/fuzz").glob("fuzz_*.c"))


@pytest.mark.parametrize("target", TARGETS)
def test_the_kept_corpus_runs_without_a_finding(target):
    corpus = sorted(Path("tests/fuzz/corpus", target).iterdir())
    assert len(corpus) >= 5, f"{target} has hardly any corpus"
    done = subprocess.run([f"{BUILD}/fuzz/{target}", *map(str, corpus)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{len(corpus)} inputs\n"
