#!/usr/bin/env python3
"""Reads the flight record of a run (format: src/comm/flight.h) after a crash.

flight.py RUN_DIR prints how each rank ended, its last operations, and the first operation at which the members of an axis
differ. Exit code: 0, also when ranks differ; 2 when there is nothing to read.
"""
import argparse
import struct
import sys
import time
from pathlib import Path
from typing import NamedTuple

RINGS = ["compute", "gather", "reduce", "publish", "host"]
HEADER = struct.Struct("<8sIIIIiiqi4x128s80x")
ENTRY = struct.Struct("<QQQqqqqqiii4x16s16s48s")
STATES = {0: "ended without a word: killed (also by the launcher, when another failed) or crashed; or still running", 1: "closed in order", 2: "failed, and said why"}


class Entry(NamedTuple):
    number: int  # over all streams of the rank; 0: empty
    sequence: int
    hash: int
    step: int
    count: int
    nbytes: int
    begin_ns: int
    end_ns: int  # 0: under way
    unit: int
    root: int
    leader: int  # the axis is known by its name and its first rank in the world
    op: str
    axis: str
    what: str
    stream: str

    @property
    def place(self):
        return self.axis, self.leader, self.stream

    def __str__(self):
        when = time.strftime("%H:%M:%S", time.localtime(self.begin_ns // 10**9)) + f".{self.begin_ns // 10**6 % 1000:03d}"
        took = f"{(self.end_ns - self.begin_ns) / 1e6:9.3f} ms" if self.end_ns else "   under way"
        step = f"step {self.step}" if self.step >= 0 else "no step"
        unit = f" unit {self.unit}" if self.unit >= 0 else ""
        return (f"{when} {took}  {step}{unit} stream {self.stream}: {self.op} '{self.what}' on axis {self.axis} (first rank "
                f"{self.leader}), {self.nbytes} bytes, root {self.root}, operation {self.sequence}, hash {self.hash:016x}")


class Rank(NamedTuple):
    rank: int
    size: int
    pid: int
    state: int
    host: str
    entries: list  # in the order in which they began


def text(raw):
    return raw.split(b"\0")[0].decode(errors="replace")


def read_rank(path):
    data = path.read_bytes()
    magic, version, rings, slots, nbytes, rank, size, pid, state, host = HEADER.unpack_from(data)
    if magic != b"DMFLIGHT" or version != 1 or nbytes != ENTRY.size or len(data) < HEADER.size + rings * slots * nbytes:
        raise ValueError("no flight record of version 1")
    entries = []
    for i in range(rings * slots):
        *numbers, op, axis, what = ENTRY.unpack_from(data, HEADER.size + i * nbytes)
        if numbers[0]:
            entries.append(Entry(*numbers, text(op), text(axis), text(what), RINGS[i // slots]))
    return Rank(rank, size, pid, state, text(host), sorted(entries))


def first_difference(ranks):
    """The earliest operation that two members of an axis do not share: (time, place, sequence, {rank: Entry})."""
    found = {}
    for rank in ranks:
        for entry in rank.entries:
            if entry.op not in ("send", "recv"):  # those are not collectives
                found.setdefault((entry.place, entry.sequence), {})[rank.rank] = entry
    different = [(min(e.begin_ns for e in by_rank.values()), place, sequence, by_rank)
                 for (place, sequence), by_rank in found.items() if len({e.hash for e in by_rank.values()}) > 1]
    return min(different, default=None, key=lambda d: d[:3])


def report(ranks, last):
    for rank in ranks:
        print(f"rank {rank.rank} of {rank.size} ({rank.host}, process {rank.pid}): {STATES.get(rank.state, rank.state)}")
        for entry in rank.entries[-last:] if last else []:
            print(f"    {entry}")
        for entry in rank.entries[:-last or None]:
            if not entry.end_ns:
                print(f"    {entry}")
    missing = sorted(set(range(max(r.size for r in ranks))) - {r.rank for r in ranks})
    if missing:
        print(f"no record of rank {', '.join(map(str, missing))}")
    difference = first_difference(ranks)
    if difference is None:
        print("all operations that two ranks of an axis both remember are the same")
        return
    _, (axis, leader, stream), sequence, by_rank = difference
    print(f"first difference: operation {sequence} of stream {stream} on axis {axis} (first rank {leader})")
    for rank, entry in sorted(by_rank.items()):
        print(f"    rank {rank}: {entry}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_dir", type=Path, help="the run directory, or a directory of records (flight, flight.last)")
    parser.add_argument("--last", type=int, default=8, metavar="N", help="operations per rank (8; those under way are always shown)")
    args = parser.parse_args()
    directory = args.run_dir / "flight" if (args.run_dir / "flight").is_dir() else args.run_dir
    ranks = []
    for path in sorted(directory.glob("rank-*.bin")):
        try:
            ranks.append(read_rank(path))
        except (ValueError, struct.error, OSError) as error:
            print(f"flight.py: {path}: {error}", file=sys.stderr)
    if not ranks:
        print(f"flight.py: {directory}: no flight record; runs of one rank have none", file=sys.stderr)
        return 2
    report(ranks, args.last)
    return 0


if __name__ == "__main__":
    sys.exit(main())
