"""A wait, a synchronisation or a group bracket that is left out is detected within sixteen seeds: other bits, or a fault of the stand-ins."""
import functools
import os
import shlex
import subprocess
from typing import NamedTuple

import pytest

from standin import BUILD, ROOT, first_seed, needs_build, run, start, steps_of

pytestmark = needs_build
SLOW = os.environ.get("DM_SLOW", "") not in ("", "0")
SEEDS = 16
STEPS = 3
JOB = ("device=cuda", "threads=1", f"train.steps={STEPS}", "batch.global=4", "batch.seq_len=8", f"log.every={STEPS}",
       f"log.params_hash_every={STEPS}", "comm.timeout_s=20")
SHARD = ("mesh.replicate=1", "mesh.shard=2")
HSDP = ("mesh.replicate=2", "mesh.shard=1")
TP = ("mesh.replicate=1", "mesh.shard=1", "mesh.tp=2")
MPI = ("comm.transport=mpi",)


class Mutant(NamedTuple):
    name: str
    file: str
    old: str  # stands once in the file
    keys: tuple[str, ...]
    new: str = ""


EVENT, MEMORY, CUDA = (f"src/device/cuda{part}.c" for part in ("_event", "_memory", ""))
NCCL, PARALLEL, UPDATE, PREFETCH, OWNER = "src/comm/nccl.c", *(f"src/parallel/{f}.c" for f in ("parallel", "update", "prefetch", "owner"))

MUTANTS = [
    Mutant("streams-never-wait", EVENT, "CUDA_OK(cudaStreamWaitEvent(stream->handle, mark->handle, 0));", SHARD),
    Mutant("host-reads-before-the-copy", MEMORY, "cuda_wait_event(cuda_device(head->device), staging->passed[slot]);", SHARD),
    Mutant("gradients-before-they-are-written", PARALLEL, "event_wait(p->reduce, state->grads_ready);", HSDP),
    Mutant("parts-without-a-group", NCCL, "send_to(run, peer, at(run, c->src, theirs.at), theirs.n);", SHARD,
           "group_end(run);\n        send_to(run, peer, at(run, c->src, theirs.at), theirs.n);\n        group_begin(run);"),
    # from here on in check-full
    Mutant("pinned-memory-refilled", MEMORY, "cuda_wait_event(cuda_device(stream->head.device), staging->passed[slot]);", SHARD),
    Mutant("staging-sent-before-it-arrived", MEMORY, "    cuda_wait_stream(stream);\n}\n\n/* The buffer", SHARD + MPI, "}\n\n/* The buffer"),
    Mutant("host-call-before-its-turn", CUDA, "    cuda_wait_stream(self);\n    item->fn", SHARD + MPI, "    item->fn"),
    Mutant("worker-records-late", EVENT, "const double us = wait_recorded(mark);", SHARD + MPI, "const double us = 0;"),
    Mutant("weights-before-they-are-gathered", PREFETCH, "event_wait(p->compute, slot[kind]->ready);", SHARD, ";"),
    Mutant("slot-refilled-while-it-is-read", PREFETCH, "event_wait(p->gather, slot->released);", SHARD),
    Mutant("shards-before-adamw", PREFETCH, "event_wait(p->gather, p->adamw_done);", SHARD, ";"),
    Mutant("update-before-the-reduction", UPDATE, "event_wait(p->compute, p->unit[u].final);", SHARD, ";"),
    Mutant("replicas-before-the-shards", PARALLEL, "event_wait(p->publish, state->shard_done);", HSDP),
    Mutant("published-before-the-update", OWNER, "event_wait(p->publish, state->updated);", HSDP),
    Mutant("gradient-slot-reused", PARALLEL, "event_wait(p->compute, slot->consumed);", SHARD),
    Mutant("slices-before-the-reduction", "src/parallel/tp.c", "event_wait(p->reduce, p->unit[unit].final);", TP),
    Mutant("owner-before-its-slices", UPDATE, "event_wait(p->compute, p->unit[u].gathered);\n            const", TP, "const"),
    Mutant("sums-returned-without-a-group", NCCL, "            send_to(run, peer, sum, mine.n);", SHARD + ("parallel.data=ddp",),
           "            (group_end(run), send_to(run, peer, sum, mine.n), group_begin(run));"),
]


@functools.cache
def commands():
    """(words that compile each source, words that link dmuon-train)."""
    make = ["make", "-n", "-B", "V=1", "CUDA=1", f"BUILD={BUILD}", f"BINDIR={BUILD}/bin", "all"]
    env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    lines = subprocess.run(make, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    words = [shlex.split(line) for line in lines if line.startswith("gcc ")]
    compiles = {w[w.index("-c") + 1]: w for w in words if "-c" in w}
    (link,) = [w for w in words if w[-1].endswith("/dmuon-train")]
    return compiles, link


def build(mutant, scratch):
    text = (ROOT / mutant.file).read_text(encoding="utf-8")
    assert text.count(mutant.old) == 1, f"{mutant.name}: the text stands {text.count(mutant.old)} times in {mutant.file}"
    source, binary = scratch / "mutant.c", scratch / "dmuon-train"
    source.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    compiles, link = commands()
    words = [w for w in compiles[mutant.file] if w not in ("-Werror", "-MMD", "-MP")]
    words[words.index("-c") + 1], words[words.index("-o") + 1] = str(source), str(scratch / "mutant.o")
    subprocess.run([*words, "-w"], cwd=ROOT, check=True)
    words = list(link)
    words[words.index("-o") + 1] = str(binary)
    at = next(i for i, w in enumerate(words) if w.endswith("libdmuon.a"))
    subprocess.run([*words[:at], str(scratch / "mutant.o"), *words[at:]], cwd=ROOT, check=True)
    return binary


@functools.cache
def reference(scratch):
    return run(1, scratch / "reference", *JOB[1:], "device=cpu", "mesh.replicate=1", "mesh.shard=1")


def detected(mutant, binary, seed, scratch, want):
    """What gave it away, or None."""
    code, err = start(2, scratch / f"run-{seed}", *JOB, *mutant.keys, seed=seed, binary=binary, DM_STANDIN_HANG_S=10)
    if code != 0:
        return f"exit {code}: {err.splitlines()[-1] if err else ''}"
    return None if steps_of(scratch / f"run-{seed}") == want else "other bits"


@pytest.mark.parametrize("mutant", MUTANTS if SLOW else MUTANTS[:4], ids=lambda m: m.name)
def test_mutant_is_detected(mutant, tmp_path, tmp_path_factory):
    want = reference(tmp_path_factory.getbasetemp())
    binary = build(mutant, tmp_path)
    for seed in range(first_seed(), first_seed() + SEEDS):
        if detected(mutant, binary, seed, tmp_path, want):
            return
    pytest.fail(f"{mutant.name}: not detected with seeds {first_seed()} to {first_seed() + SEEDS - 1}")
