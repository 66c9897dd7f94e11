"""Faults of order that the runs on the stand-ins must see: each leaves out one wait, or one bracket around sends and receives, of
the CUDA backend, or a wait above it that the CPU backend does not need because its compute stream is the calling thread."""
import dataclasses

from mutation import build_changed
from standin import BUILD

SEEDS = range(1, 17)  # of the schedule, until one shows the fault
STEPS = 3
SHORT_HANG_S = 5


@dataclasses.dataclass(frozen=True)
class Job:
    """A run of dmuon-train on a mesh, or of a program of tests/cuda, whose arguments `keys` then are."""

    mesh: tuple[int, int, int]
    keys: tuple[str, ...] = ()
    program: str = "dmuon-train"

    @property
    def ranks(self):
        return self.mesh[0] * self.mesh[1] * self.mesh[2]

    @property
    def arguments(self):
        mesh = [f"mesh.{axis}={n}" for axis, n in zip(("replicate", "shard", "tp"), self.mesh)]
        return ["device=cuda", *COMMON, f"log.every={STEPS}", f"log.params_hash_every={STEPS}", *mesh, *self.keys]


PROGRAMS = ("order", "collectives")  # of tests/cuda
COMMON = ("threads=1", f"train.steps={STEPS}", "batch.global=8", "batch.seq_len=16")
MPI, NCCL = "comm.transport=mpi", "comm.transport=nccl"
JOBS = {
    "pair": Job((1, 2, 1), (NCCL,)),
    "replicas": Job((2, 1, 1), (NCCL,)),
    "replicas-sync": Job((2, 1, 1), (NCCL, "optimizer.muon.replicate_async=false")),
    "ddp": Job((2, 2, 1), (NCCL, "parallel.data=ddp")),
    "order": Job((1, 1, 1), program="order"),
    "order-calls": Job((1, 1, 1), ("calls",), program="order"),
    "flood": Job((1, 2, 1), ("nccl", "100"), program="collectives"),
    "pair-mpi": Job((1, 2, 1), (MPI,)),
    "replicas-mpi": Job((2, 1, 1), (MPI,)),
    "tp": Job((1, 1, 2), (NCCL, "parallel.tp_buffer_reuse=off")),
    "tp-4": Job((1, 1, 4), (NCCL,)),
    "tp-mpi": Job((1, 1, 2), (MPI, "optimizer.muon.tp_distributed_gram=always")),
}


@dataclasses.dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    old: str
    new: str
    job: str
    hangs: bool = False  # seen as ranks that wait for each other
    operations: bool = False  # the bits are right, in more operations of the device
    quick: bool = False  # among those of every `make check`


CUDA, EVENT, MEMORY, REPEAT, NCCL_C, QUEUED = ("src/device/cuda.c", "src/device/cuda_event.c", "src/device/cuda_memory.c",
                                               "src/device/cuda_repeat.c", "src/comm/nccl.c", "src/comm/queued.c")


def without(name, file, text, job, after="", **options):
    """`text` is left out where `after` follows it."""
    return Mutant(name, file, text + after, after, job, **options)


def ungrouped(name, text, job, **options):
    """A block of sends and receives without the bracket around it."""
    begin, end = "    group_begin(run);\n", "    group_end(run);\n"
    return Mutant(name, NCCL_C, begin + text + end, text, job, **options)


WAITS = [
    without("stream-waits-for-no-event", EVENT, "    CUDA_OK(cudaStreamWaitEvent(stream->handle, mark->handle, 0));\n", "pair", quick=True),
    Mutant("wait-before-the-record", EVENT, "const double us = wait_recorded(mark);", "const double us = 0.0;", "pair-mpi"),
    without("passed-before-the-record", EVENT, "    if (mark->stream->queue != NULL && queue_done(mark->stream->queue) < mark->ticket)\n"
            "        return false;\n", "replicas-mpi"),
    without("sync-before-the-record", EVENT, "    (void)wait_recorded(event->mark);\n", "replicas-mpi"),
    without("host-waits-for-no-event", EVENT, "    cuda_wait_event(event->device, event->mark->handle);\n", "replicas-sync"),
    without("host-waits-for-no-stream", CUDA, "    cuda_wait_stream(stream);\n", "order", after="}\n\nstatic void settle_stream"),
    without("host-waits-for-no-worker", CUDA,
            "    if (stream->queue != NULL)\n        (void)queue_wait(stream->queue, queue_mark(stream->queue));\n", "order-calls",
            after="    cuda_wait_stream(stream);\n}\n"),
    without("call-before-its-turn", CUDA, "    cuda_wait_stream(self);\n", "replicas-mpi", after="    item->fn(item->arg);\n"),
    without("device-destroyed-too-soon", CUDA, "    cuda_settle(device);\n", "flood", after="    cuda_memory_destroy(device);\n"),
    without("call-on-compute-before-its-turn", CUDA, "    cuda_wait_stream(stream);\n", "tp-mpi", after="    fn(copy);\n"),
]
STAGING = [
    without("arena-not-yet-zero", MEMORY, "    cuda_wait_stream(compute);\n", "order",
            after="    return STATUS_OK;\n}\n\nvoid cuda_arena_deinit"),
    without("arena-freed-too-soon", MEMORY, "    cuda_settle(device);\n", "order", after="    if (arena->base != NULL)\n"),
    without("block-given-out-too-soon", MEMORY, "    cuda_event_wait(stream, block->freed);\n", "order", quick=True),
    without("scratch-freed-too-soon", MEMORY,
            "        cuda_wait_stream(stream); /* kernels that were given the smaller block */\n", "pair"),
    without("staging-slot-filled-too-soon", MEMORY,
            " else {\n        cuda_wait_event(cuda_device(stream->head.device), staging->passed[slot]);\n    }", "pair", quick=True),
    without("staging-slot-read-too-soon", MEMORY, "        cuda_wait_event(cuda_device(head->device), staging->passed[slot]);\n", "pair"),
    without("pinned-buffer-read-too-soon", MEMORY, "    cuda_wait_stream(stream);\n", "pair-mpi", after="}\n\n/* The buffer is read until"),
]
REPEATS = [
    without("graph-of-a-former-scratch", REPEAT, " && repeat->scratch_moves == stream->scratch_moves", "order", quick=True),
    without("graph-of-another-key", REPEAT, " && memcmp(repeat->key, key, nbytes) == 0", "order"),
    without("graph-destroyed-too-soon", REPEAT, "    cuda_wait_stream(repeat->stream); /* it may be running */\n", "order"),
    Mutant("graph-not-launched-when-recorded", REPEAT, "    launch(repeat);\n}", "}", "order"),
]
PARTS = """    for (int i = 1; i < c->size; i++) {
        const int peer = (c->rank + i) % c->size;
        const Range theirs = range_of(run, deal, round, peer);
        send_to(run, peer, at(run, c->src, theirs.at), theirs.n);
        receive_from(run, peer, slot(run, peer), mine.n);
    }
"""
SUMS = """    for (int i = 1; i < c->size; i++) {
        const int peer = (c->rank + i) % c->size;
        const Range theirs = range_of(run, deal, round, peer);
        if (c->op == COMM_ALL_REDUCE || peer == c->root)
            send_to(run, peer, sum, mine.n);
        if (c->op == COMM_ALL_REDUCE || c->rank == c->root)
            receive_from(run, peer, at(run, c->dst, theirs.at), theirs.n);
    }
"""
GATHERED = """    if (c->rank != c->root)
        send_to(run, c->root, c->src, c->n);
    for (int peer = 0; c->rank == c->root && peer < c->size; peer++)
        if (peer != c->rank)
            receive_from(run, peer, at(run, c->dst, peer * c->n), c->n);
"""
SCATTERED = """    if (c->rank != c->root)
        receive_from(run, c->root, c->dst, c->n);
    for (int peer = 0; c->rank == c->root && peer < c->size; peer++)
        if (peer != c->rank)
            send_to(run, peer, at(run, c->src, peer * c->n), c->n);
"""
GROUPS = [
    ungrouped("parts-ungrouped", PARTS, "pair", hangs=True, quick=True),
    ungrouped("sums-ungrouped", SUMS, "ddp", hangs=True),
    ungrouped("gather-ungrouped", GATHERED, "tp-4", operations=True),
    ungrouped("scatter-ungrouped", SCATTERED, "tp-4", operations=True),
    without("ring-overwritten", QUEUED, "        (void)event_sync(oldest(ring)->event);\n", "flood"),
]
PARALLEL, PREFETCH, UPDATE, OWNER = (f"src/parallel/{name}.c" for name in ("parallel", "prefetch", "update", "owner"))
ABOVE = [
    without("gradients-sent-before-they-are-ready", PARALLEL, "    event_wait(p->reduce, state->grads_ready);\n", "pair"),
    without("weights-fetched-over-a-reader", PREFETCH, "    event_wait(p->gather, slot->released);\n", "pair"),
    Mutant("shards-fetched-before-their-update", PREFETCH, "event_wait(p->gather, p->adamw_done);", ";", "pair"),
    without("published-before-the-update", OWNER, "    event_wait(p->publish, state->updated);\n", "replicas"),
    Mutant("weights-used-before-they-are-gathered", PREFETCH, "event_wait(p->compute, slot[kind]->ready);", ";", "pair"),
    without("replicas-before-the-shards", PARALLEL, "    event_wait(p->publish, state->shard_done);\n", "replicas"),
    without("gradient-slot-reused", PARALLEL, "    event_wait(p->compute, slot->consumed);\n", "pair"),
    Mutant("update-before-the-reduction", UPDATE, "event_wait(p->compute, p->unit[u].final);", ";", "pair"),
    without("slices-gathered-before-the-reduction", "src/parallel/tp.c", "    event_wait(p->reduce, p->unit[unit].final);\n", "tp"),
    without("update-before-its-slices", UPDATE, "            event_wait(p->compute, p->unit[u].gathered);\n", "tp",
            after="            const int64_t begin"),
]
MUTANTS = WAITS + STAGING + REPEATS + GROUPS + ABOVE


def build(mutant, scratch):
    return build_changed(mutant.name, [(mutant.file, mutant.old, mutant.new)], scratch, "CUDA=1", f"BUILD={BUILD}", f"BINDIR={BUILD}/bin",
                         *(f"{BUILD}/cuda/{name}" for name in PROGRAMS), program=JOBS[mutant.job].program)
