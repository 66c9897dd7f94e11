#!/usr/bin/env python3
"""The architecture diagram, and the check that the code follows it.

Prints each breach as file:line: what, and exits 1 if there is one. With --list it also prints functions and files
that are long: places to look at, not failures.
"""
import argparse
import re
import sys
from pathlib import Path
from typing import Iterator, NamedTuple

# The rooms of src/, left to right. A room includes itself and the rooms of columns to its left, never a neighbour of
# its own column, never a room to its right.
COLUMNS = [
    {"base": "status with a trail, fatal, log, arenas, strings, atomic files, json, hashes, Philox, clock, trace ring"},
    {"config": "one schema table that drives parsing, overrides, checks, the printed reference and the dump",
     "device": "Device, Stream, Event; allocation, async copies, gemm; backends cpu and cuda"},
    {"tensor": "element types, checked entry points to kernels"},
    {"comm": "named communicators and collectives in canonical order; transports self, mpi, nccl; agreement; watchdog"},
    {"mesh": "named axes replicate, shard, tp; rank <-> coordinate; sub-communicators; split arithmetic"},
    {"model": "shape, ParamTable, init, layers forward and backward, loss; asks a Residency for its weights",
     "optim": "newton_schulz, muon, adamw, partition, clip, schedule: mathematics without strategy",
     "data": "text and token shards, order as a pure function of (seed, epoch, index), loader with prefetch"},
    {"parallel": "Plan; fsdp, owner, ddp, tp, packed buffers, prefetch; fills Residency; runs the step on this rank"},
    {"checkpoint": "safetensors in and out, manifest with hashes, save, load onto any mesh, retention",
     "metrics": "step records, JSON lines, console line, memory, wait histograms, trace export"},
    {"train": "session, step, loop, eval, sample, signals"},
    {"cli": "argument parsing, and a main that fits one screen"},
]
COLUMN_OF = {room: i for i, column in enumerate(COLUMNS) for room in column}

# kernels/ knows pointers and sizes only. Who may call it:
KERNEL_CALLERS = {"device", "tensor", "optim", "model", "train"}

# Each foreign library is met in one place: pattern of the header, where it may stand (path prefixes).
FOREIGN = [
    (re.compile(r"mpi(-ext)?\.h$"), ("src/comm/",)),
    (re.compile(r"yaml\.h$"), ("src/config/parse.c",)),
    (re.compile(r"(cjson/)?cJSON\w*\.h$"), ("src/base/json.c",)),
    (re.compile(r"nccl\w*\.h$"), ("src/comm/nccl.c",)),
    (re.compile(r"cublas\w*\.h$"), ("src/device/gemm_cuda.c",)),
    (re.compile(r"cuda\w*\.h$"), ("src/device/cuda.c", "src/device/cuda.h", "src/device/cuda_event.c", "src/device/cuda_memory.c",
                                       "kernels/cuda/")),
]

ALLOCATORS = re.compile(r"(?<![\w.>])(malloc|calloc|realloc|free|aligned_alloc|posix_memalign|strdup|strndup)\s*\(")
INCLUDE = re.compile(r'\s*#\s*include\s*([<"])([^>"]+)[>"]')
CONDITION = re.compile(r"\s*#\s*(?:if|ifdef|ifndef|elif)\b.*CUDA")
TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)

FUNCTION_LINES = 50
FILE_LINES = 400
HEADER_LINES = 120


class Source(NamedTuple):
    """One file: its path from the root with forward slashes, its lines, and its lines without comments and strings."""

    path: str
    lines: list[str]
    code: list[str]

    @property
    def room(self) -> str:
        parts = self.path.split("/")
        return parts[1] if parts[0] == "src" and len(parts) > 2 else parts[0]


class Breach(NamedTuple):
    path: str
    line: int
    text: str


def blank(match: re.Match) -> str:
    """Comments and literals become spaces; line breaks stay, so that line numbers hold."""
    return re.sub(r"[^\n]", " ", match.group())


def read_sources(root: Path) -> list[Source]:
    sources = []
    for top in ("src", "kernels"):
        for path in sorted((root / top).rglob("*")):
            if path.suffix in {".c", ".h", ".cu", ".cuh"} and path.is_file():
                text = path.read_text(encoding="utf-8")
                code = TOKEN.sub(blank, text)
                sources.append(Source(path.relative_to(root).as_posix(), text.splitlines(), code.splitlines()))
    return sources


def includes_of(source: Source) -> Iterator[tuple[int, str, str]]:
    """Line number, '<' or '"', header. A commented-out include does not count."""
    for number, (line, code) in enumerate(zip(source.lines, source.code), 1):
        match = INCLUDE.match(line)
        if match and code.lstrip().startswith("#"):
            yield number, match.group(1), match.group(2)


def check_room_include(source: Source, header: str) -> str | None:
    """What is wrong with a project header, or None."""
    target = header.split("/")[0] if "/" in header else None
    if source.room == "kernels":
        return None if target == "kernels" else f'kernels/ includes only kernels/, not "{header}"'
    if target == "kernels":
        if source.room in KERNEL_CALLERS:
            return None
        return f'{source.room}/ must not include "{header}": only {", ".join(sorted(KERNEL_CALLERS))} call kernels'
    if target not in COLUMN_OF:
        return f'"{header}" is not a path from src/ into a room of the table'
    if target == source.room or COLUMN_OF[target] < COLUMN_OF[source.room]:
        return None
    where = "a neighbour in its column" if COLUMN_OF[target] == COLUMN_OF[source.room] else "a room to its right"
    return f'{source.room}/ must not include "{header}": {target} is {where}'


def check_includes(source: Source) -> Iterator[Breach]:
    for number, kind, header in includes_of(source):
        foreign = [places for pattern, places in FOREIGN if pattern.match(header)]
        if foreign:
            if not source.path.startswith(foreign[0]):
                yield Breach(source.path, number, f"{header} is met only in {' and '.join(foreign[0])}")
        elif kind == '"':
            wrong = check_room_include(source, header)
            if wrong:
                yield Breach(source.path, number, wrong)


def check_room_exists(source: Source) -> Iterator[Breach]:
    if source.path.startswith("src/") and source.room not in COLUMN_OF:
        yield Breach(source.path, 1, f"{source.room} is not a room of the table")


def check_allocation(source: Source) -> Iterator[Breach]:
    if source.room == "base":
        return
    for number, code in enumerate(source.code, 1):
        match = ALLOCATORS.search(code)
        if match:
            yield Breach(source.path, number, f"{match.group(1)}() is called outside src/base")


def check_conditions(source: Source) -> Iterator[Breach]:
    if not source.path.startswith(("src/", "kernels/cpu/")) or source.room in {"device", "comm"}:
        return
    for number, code in enumerate(source.code, 1):
        if CONDITION.match(code):
            yield Breach(source.path, number, "a condition on CUDA stands outside src/device and src/comm")


def expected_guard(path: str) -> str:
    """src/base/json_check.h -> DMUON_BASE_JSON_CHECK_H; kernels/cpu/isa.h -> DMUON_KERNELS_CPU_ISA_H."""
    stem = re.sub(r"\.\w+$", "", path.removeprefix("src/"))
    return "DMUON_" + re.sub(r"\W", "_", stem).upper() + "_H"


def check_guard(source: Source) -> Iterator[Breach]:
    if not source.path.endswith(".h"):
        return
    guard = expected_guard(source.path)
    directives = [(n, code.split()) for n, code in enumerate(source.code, 1) if code.startswith("#")]
    wanted = [["#ifndef", guard], ["#define", guard]]
    if [words for _, words in directives[:2]] != wanted:
        line = directives[0][0] if directives else 1
        yield Breach(source.path, line, f"the include guard must be {guard}")


CHECKS = [check_room_exists, check_includes, check_allocation, check_conditions, check_guard]


def long_functions(source: Source) -> Iterator[str]:
    """Relies on the format: a definition begins in column 0 and its body ends with a lone brace there."""
    start = None
    for number, code in enumerate(source.code, 1):
        if re.match(r"[A-Za-z_]", code):
            start = number
        elif code.rstrip() == "}" and start is not None:
            if number - start + 1 > FUNCTION_LINES:
                name = re.search(r"(\w+)\s*\(", source.code[start - 1])
                yield f"{source.path}:{start}: {name.group(1) if name else '?'} has {number - start + 1} lines"
            start = None


def long_places(source: Source) -> Iterator[str]:
    limit = HEADER_LINES if source.path.endswith(".h") else FILE_LINES
    if len(source.lines) > limit:
        yield f"{source.path}:1: the file has {len(source.lines)} lines, more than {limit}"
    yield from long_functions(source)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent, help="top of the tree")
    parser.add_argument("--list", action="store_true", help="also print what is long")
    args = parser.parse_args()
    sources = read_sources(args.root)
    if not sources:
        print(f"check_layers: no sources under {args.root}", file=sys.stderr)
        return 2
    if args.list:
        for source in sources:
            for place in long_places(source):
                print(f"note: {place}")
    breaches = [breach for source in sources for check in CHECKS for breach in check(source)]
    for breach in sorted(breaches):
        print(f"{breach.path}:{breach.line}: {breach.text}")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
