"""The stand-ins themselves: right programs pass under every schedule, each planted bug is caught, each failing call ends
the program cleanly. The programs are built as the engine is, by nvcc and the C compiler: make CUDA=1 standin-selftest."""
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from helpers import SLOW

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("DM_CUDA_BUILD", "build/release-cuda")
STANDIN = BUILD / "standin"
PROGRAMS = STANDIN / "selftest"
ENGINE = BUILD / "bin" / "dmuon-train"
SEEDS = range(1, 17)
FAULT_EXIT, ERROR_EXIT, WRONG_EXIT = 86, 3, 1
RANKS = {"api": 1, "threads": 1, "graphs": 1, "pipeline": 2, "collectives": 2}

if not (PROGRAMS / "pipeline").exists():
    pytest.skip("the CUDA stand-ins need a build with CUDA=1 (nvcc), which is not there", allow_module_level=True)


def run(program, *arguments, seed=0, ranks=None, leaks=True, **settings):
    """One run; `settings` become DM_STANDIN_*. Gives the exit code and all output."""
    ranks = ranks or RANKS[program]
    env = {k: v for k, v in os.environ.items() if not k.startswith("DM_STANDIN_")}
    env.update(LD_LIBRARY_PATH=str(STANDIN), DM_STANDIN_KERNELS=str(PROGRAMS / "libkernels_emu.so"),
               DM_STANDIN_SEED=str(seed), DM_STANDIN_HANG_S="30", DM_STANDIN_LEAKS=str(int(leaks)),
               OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
               OMPI_MCA_btl_vader_single_copy_mechanism="none", OMPI_MCA_odls_base_sigkill_timeout="0")
    env.update({f"DM_STANDIN_{k.upper()}": str(v) for k, v in settings.items()})
    launch = ["mpirun", "-q", "--oversubscribe", "--bind-to", "none", "-np", str(ranks)] if ranks > 1 else []
    done = subprocess.run([*launch, str(PROGRAMS / program), *arguments], env=env, text=True, errors="replace",
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120)
    return done.returncode, done.stdout


def first_caught(program, bug, seeds, **settings):
    """(exit code, output) of the first seed under which the planted bug is seen."""
    for seed in seeds:
        code, text = run(program, bug, seed=seed, **settings)
        if code != 0:
            return code, text
    raise AssertionError(f"{program} with {bug}: not caught by seeds {seeds}")


# ---- right programs


@pytest.mark.parametrize("program", RANKS)
def test_right_program_passes_under_every_schedule(program):
    for seed in (0, *SEEDS):
        code, text = run(program, seed=seed)
        assert code == 0, f"seed {seed}: exit {code}\n{text}"


@pytest.mark.parametrize("program", ("pipeline", "collectives"))
@pytest.mark.parametrize("ranks", (3, 8))
def test_right_program_passes_on_more_ranks(program, ranks):
    for seed in (2, 3):
        code, text = run(program, seed=seed, ranks=ranks)
        assert code == 0, f"seed {seed}: exit {code}\n{text}"


def test_silent_host_needs_the_pump():
    """Rank 0 sits in MPI with a send queued. Without the pump its peer waits for ever, and says so."""
    code, text = run("collectives", seed=4, pump_ms=0, hang_s=3)
    assert code == FAULT_EXIT and "without its partner" in text, text


# ---- bugs that only some schedules show: wrong results


@pytest.mark.parametrize("program, bug", [
    ("pipeline", "input_wait"), ("pipeline", "input_overwrites"), ("pipeline", "host_reuse"),
    ("pipeline", "send_wait"), ("pipeline", "receive_wait"), ("pipeline", "output_wait"),
    ("pipeline", "output_overwrites"), ("pipeline", "host_early"), ("threads", "full_wait"), ("threads", "empty_wait"),
    ("api", "kernel_race")])
def test_missing_order_gives_wrong_results(program, bug):
    code, text = first_caught(program, bug, SEEDS)
    assert code == WRONG_EXIT and "WRONG" in text, f"exit {code}\n{text}"


def test_order_in_time_hides_what_the_seeds_show():
    """Under seed 0, the reference, a race in a kernel and a missing wait give the right result."""
    for program, bug in (("api", "kernel_race"), ("threads", "full_wait")):
        code, text = run(program, bug, seed=0)
        assert code == 0, text


# ---- misuse: a fault that names it

FAULTS = [
    ("api", "host_read", r"host code touched device memory .* \(allocation #2\)"),
    ("api", "host_write", r"host code touched device memory"),
    ("api", "free_twice", r"allocation #\d+ is freed twice"),
    ("api", "use_after_free", r"kernel add_scaled: argument 0 .* freed"),
    ("api", "out_of_bounds", r"kernel add_scaled touched .*, \d+ bytes past allocation #2 of 4000 bytes; block \(3,0,0\)"),
    ("api", "slack", r"something wrote 0 bytes past allocation #2 of 4000 bytes"),
    ("api", "host_pointer", r"kernel add_scaled: argument 1 = .* is a host pointer"),
    ("api", "pinned_pointer", r"kernel add_scaled: argument 1 = .* is a host pointer"),
    ("api", "host_window", r"kernel fill_window: argument 0 = .* is a host pointer"),
    ("api", "copy_range", r"destination needs 4000 bytes from offset 4 of allocation #2 of 4000"),
    ("api", "copy_kind", r"destination = .* is not device memory"),
    ("api", "free_in_use", r"cudaFree of memory that queued work names: kernel add_scaled"),
    ("api", "divergent_barrier", r"kernel divergent_barrier: .* 24 of 64 threads ended, 40 wait at __syncthreads"),
    ("api", "absent_lanes", r"kernel absent_lanes: .* others for lanes that never come"),
    ("api", "misaligned", r"kernel misaligned: misaligned address"),
    ("api", "shared_overrun", r"kernel shared_overrun: .* index beyond its array"),
    ("api", "unchecked", r"cudaLaunchKernel failed and the program still exits 0"),
    ("api", "never_recorded", r"event 1 was never recorded"),
    ("api", "event_in_use", r"cudaEventDestroy: event 1 is not reached yet"),
    ("api", "destroyed", r"cudaEventRecord: the event was destroyed"),
    ("api", "stream_in_use", r"stream 1 still has work: memset of 4 bytes"),
    ("api", "exit", r"exit with work still queued"),
    ("api", "other_gpu", r"by a thread whose GPU is 1"),
    ("api", "leak", r"exit with 1 device allocations not given back"),
    ("graphs", "query", r"cudaStreamQuery while stream 1 records"),
    ("graphs", "synchronize", r"cudaStreamSynchronize while stream 1 records"),
    ("graphs", "device", r"cudaDeviceSynchronize while stream 1 records"),
    ("graphs", "ask_event", r"cudaEventQuery while stream 1 records"),
    ("graphs", "await_event", r"cudaEventSynchronize while stream 1 records"),
    ("graphs", "record_event", r"record of event 1 on stream 1, which records: a graph may not hold it"),
    ("graphs", "wait_event", r"wait for event 1 on stream 1, which records: a graph may not hold it"),
    ("graphs", "allocate", r"cudaMalloc while stream 1 records"),
    ("graphs", "free", r"cudaFree while stream 1 records"),
    ("graphs", "host_copy", r"copy H2D of 4 bytes on stream 1, which records: a graph may not hold it"),
    ("graphs", "twice", r"stream 1 records already"),
    ("graphs", "destroy_stream", r"cudaStreamDestroy: stream 1 records"),
    ("graphs", "exit", r"exit while stream 1 records"),
    ("graphs", "end_twice", r"cudaStreamEndCapture: stream 1 does not record"),
    ("graphs", "other_thread", r"another thread records stream 1"),
    ("graphs", "foreign_work", r"memset of 4 bytes on stream 1, which another thread records"),
    ("graphs", "global", r"cudaMalloc while stream 1 records"),
    ("graphs", "default_stream", r"cudaStreamBeginCapture of the default stream"),
    ("graphs", "into_recording", r"cudaGraphLaunch on stream 1, which records"),
    ("graphs", "freed_memory", r"memset of 1200 bytes of graph 1 names allocation #2, which was freed"),
    ("graphs", "in_use", r"cudaGraphExecDestroy: graph 1 still has work queued"),
    ("graphs", "destroyed", r"cudaGraphLaunch: the executable graph was destroyed"),
    ("graphs", "destroyed_graph", r"cudaGraphInstantiate: the graph was destroyed"),
    ("graphs", "leak_graph", r"exit with 1 graphs not given back"),
    ("graphs", "leak_exec", r"exit with 1 executable graphs not given back"),
    ("threads", "thread_gpu", r"on GPU 0 names allocation #\d+, which is on GPU 1"),
    ("pipeline", "unpinned", r"is not pinned host memory"),
    ("pipeline", "free", r"cudaFree of memory that queued work names"),
    ("pipeline", "exit", r"exit with work still queued"),
    ("pipeline", "size", r"expects a send/receive of 16384 bytes .* sends a send/receive of 8192 bytes"),
    ("pipeline", "type", r"expects .*\(type 7.* sends .*\(type 2"),
    ("pipeline", "kind", r"expects a send/receive .* sends a broadcast"),
    ("pipeline", "two_streams", r"was used on another stream before"),
    ("pipeline", "ungrouped", r"(?s)\| ncclSend to 1 of 16384 bytes \| ncclRecv from 1 of 16384 bytes.*without its partner"),
    ("pipeline", "group_open", r"of the communicator's operations have not ended"),
]


@pytest.mark.parametrize("program, bug, message", FAULTS, ids=[f"{f[0]}-{f[1]}" for f in FAULTS])
def test_misuse_is_named(program, bug, message):
    code, text = first_caught(program, bug, SEEDS[:2], hang_s=3 if bug == "ungrouped" else 30)
    assert code == FAULT_EXIT, f"exit {code}\n{text}"
    assert re.search(r"FAULT: ", text) and re.search(message, text), text


@pytest.mark.parametrize("program, bug, call", [
    ("api", "shared_limit", "reverse_launch"), ("pipeline", "one_gpu", "ncclCommInitRank")])
def test_refused_call_gives_an_error(program, bug, call):
    code, text = run(program, bug, seed=1)
    assert code == ERROR_EXIT and call in text and "FAULT" not in text, f"exit {code}\n{text}"


# ---- failing calls


def counted(path):
    return json.loads(Path(path).read_text())


@pytest.mark.parametrize("program", ("api", "threads", "graphs"))
def test_every_call_can_fail(program, tmp_path):
    code, text = run(program, seed=3, counts=tmp_path / "counts")
    assert code == 0, text
    counts = counted(tmp_path / "counts")
    polls = sum(counts["calls"].get(api, 0) - 1 for api in ("cudaEventQuery", "cudaStreamQuery") if api in counts["calls"])
    assert counts["counted"] == sum(counts["calls"].values()) - polls  # one place asks, and it counts once
    for number in range(1, counts["counted"] + 1):
        code, text = run(program, seed=3, fail=number)
        assert code == ERROR_EXIT and ": error " in text and "FAULT" not in text, f"call {number}: exit {code}\n{text}"


@pytest.mark.parametrize("rank", (0, 1))
def test_every_call_site_of_a_rank_can_fail(rank, tmp_path):
    """Once for each place in the program that makes a call; the ranks share the places, unless there is time."""
    code, text = run("pipeline", seed=3, counts=tmp_path / "counts")
    assert code == 0, text
    sites = counted(f"{tmp_path / 'counts'}{'.1' if rank else ''}")["sites"]
    assert len(sites) > 20
    for site in sites if SLOW else sites[rank::2]:
        code, text = run("pipeline", seed=3, fail=site["call"], fail_rank=rank)
        assert code == ERROR_EXIT and ": error " in text and "FAULT" not in text, f"{site}: exit {code}\n{text}"


def test_unnoticed_failure_is_a_fault(tmp_path):
    """The last call of `unchecked` is one whose result the program drops."""
    code, text = run("api", "unchecked", seed=0)
    assert code == FAULT_EXIT and "an error went unchecked" in text, text


# ---- counts, memory, completeness


def test_counts_of_calls_kernels_and_bytes(tmp_path):
    code, text = run("pipeline", seed=1, counts=tmp_path / "counts")
    assert code == 0, text
    for name in ("counts", "counts.1"):
        counts = counted(tmp_path / name)
        assert counts["kernels"] == {"add_scaled": 16, "row_sum<true>": 8}
        assert counts["calls"]["cudaLaunchKernel"] == 24
        assert counts["calls"]["ncclSend"] == 8
        assert counts["bytes"] == {"H2D": 8 * 16384, "D2H": 8 * 32, "ncclSend": 8 * 16384, "ncclRecv": 8 * 16384}
        assert counts["counted"] == sum(counts["calls"].values())


def test_a_graph_is_counted_as_one_launch_and_its_bytes_as_often_as_it_runs(tmp_path):
    code, text = run("graphs", seed=1, counts=tmp_path / "counts")
    assert code == 0, text
    counts = counted(tmp_path / "counts")
    assert counts["kernels"] == {"graph": 6} and counts["calls"]["cudaLaunchKernel"] == 1
    assert counts["bytes"]["D2D"] == 6 * 1200


def test_kernels_that_do_nothing_are_counted(tmp_path):
    code, text = run("threads", seed=1, counts=tmp_path / "counts", leaks=False, skip_kernels=1)
    assert code == WRONG_EXIT and "WRONG" in text, text
    assert counted(tmp_path / "counts")["kernels"] == {"add_scaled": 40}


def test_memory_ends():
    code, text = run("api", seed=1, memory=6000)
    assert code == ERROR_EXIT and "cudaMalloc" in text, f"exit {code}\n{text}"


def test_no_device_is_an_error():
    code, text = run("api", seed=1, devices=0)
    assert code == ERROR_EXIT and "cudaGetDeviceCount" in text, f"exit {code}\n{text}"


def test_missing_emulation_is_named():
    code, text = run("api", seed=1, kernels="")
    assert code == FAULT_EXIT and "has no emulation of kernel" in text, f"exit {code}\n{text}"


def symbols(path, *options):
    text = subprocess.run(["nm", "-D", *options, str(path)], text=True, stdout=subprocess.PIPE, check=True).stdout
    return {line.split()[-1].split("@")[0] for line in text.splitlines()}


@pytest.mark.parametrize("program", [PROGRAMS / "pipeline", PROGRAMS / "collectives", ENGINE], ids=lambda p: p.name)
def test_stand_ins_have_all_that_a_program_calls(program):
    if not program.exists():
        pytest.skip(f"{program} is not built")
    missing = {name for name in symbols(program, "--undefined-only") if re.match(r"(__cuda|cuda|cublas|nccl)", name)}
    for library in STANDIN.glob("lib*.so.*"):
        missing -= symbols(library, "--defined-only")
    assert not missing
