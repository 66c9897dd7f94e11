#!/usr/bin/env python3
"""Compares two runs, bit for bit, by their directories or log.jsonl: the loss of every step and evaluation, and the hashes of all
parameters where both runs logged them.

Prints the first record that differs and by how many ulp, and what only one run has.
Exit code: 0 equal, 1 different, 2 usage or an unreadable log.
"""
import argparse
import json
import re
import struct
import sys
from pathlib import Path
from typing import NamedTuple

EVENTS = ("step", "eval")
HEX_DIGITS = {"loss_bits": 8, "params_hash": 16}


class Unreadable(Exception):
    """A log that cannot be compared; the text says where and why."""


class Record(NamedTuple):
    """What is compared of one line."""

    loss_bits: str
    params_hash: str | None


Key = tuple[int, str]  # step, event


def refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def read_hex(event: dict, name: str) -> str | None:
    value = event.get(name)
    if value is not None and not (isinstance(value, str) and re.fullmatch(f"[0-9a-f]{{{HEX_DIGITS[name]}}}", value)):
        raise ValueError(f"{name} is {value!r}, not {HEX_DIGITS[name]} lower-case hex digits")
    return value


def read_line(line: str) -> tuple[Key, Record] | None:
    """The key and record of a step or an evaluation, None for other events."""
    event = json.loads(line, parse_constant=refuse_constant)
    if not isinstance(event, dict) or "event" not in event:
        raise ValueError("not an object with an event")
    if event["event"] not in EVENTS:
        return None
    if type(event.get("step")) is not int:
        raise ValueError("a step number is missing")
    loss_bits = read_hex(event, "loss_bits")
    if loss_bits is None:
        raise ValueError("loss_bits is missing")
    return (event["step"], event["event"]), Record(loss_bits, read_hex(event, "params_hash"))


def read_log(path: Path) -> dict[Key, Record]:
    path = path / "log.jsonl" if path.is_dir() else path
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise Unreadable(f"{path}: {error}") from error
    records: dict[Key, Record] = {}
    for number, line in enumerate(lines, 1):
        try:
            found = read_line(line)
            if found is None:
                continue
            key, record = found
            if records.setdefault(key, record) != record:
                raise ValueError(f"{key[1]} {key[0]} stands twice, with other bits")
        except ValueError as error:
            raise Unreadable(f"{path}:{number}: {error}") from error
    if not records:
        raise Unreadable(f"{path}: no steps to compare")
    return records


def ordered(bits: int) -> int:
    """Neighbouring binary32 numbers become neighbouring integers; both zeros become 0."""
    return -(bits & 0x7FFFFFFF) if bits >> 31 else bits


def as_float(bits: int) -> float:
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def describe_loss(a: str, b: str) -> str:
    x, y = int(a, 16), int(b, 16)
    values = f"loss {as_float(x):.9g} ({a}) against {as_float(y):.9g} ({b})"
    if as_float(x) != as_float(x) or as_float(y) != as_float(y):
        return f"{values}: not a number"
    distance = abs(ordered(x) - ordered(y))
    return f"{values}: {distance} ulp" + (", zeros of either sign" if distance == 0 else "")


def differences(a: Record, b: Record) -> list[str]:
    found = []
    if a.loss_bits != b.loss_bits:
        found.append(describe_loss(a.loss_bits, b.loss_bits))
    if a.params_hash is not None and b.params_hash is not None and a.params_hash != b.params_hash:
        found.append(f"params_hash {a.params_hash} against {b.params_hash}")
    return found


def name_of(key: Key) -> str:
    return f"{key[1]} {key[0]}"


def report_missing(only: list[Key], path: Path) -> None:
    if only:
        more = f" and {len(only) - 1} more" if len(only) > 1 else ""
        print(f"only in {path}: {name_of(only[0])}{more}")


def by_time(keys: set[Key]) -> list[Key]:
    """In the order of a run: a step comes before the evaluation that follows it."""
    return sorted(keys, key=lambda key: (key[0], EVENTS.index(key[1])))


def compare(path_a: Path, path_b: Path) -> int:
    a, b = read_log(path_a), read_log(path_b)
    both = by_time(a.keys() & b.keys())
    differing = [key for key in both if differences(a[key], b[key])]
    if differing:
        first = differing[0]
        print(f"first difference at {name_of(first)}: {'; '.join(differences(a[first], b[first]))}")
        print(f"{len(differing)} of {len(both)} common records differ")
    report_missing(by_time(a.keys() - b.keys()), path_a)
    report_missing(by_time(b.keys() - a.keys()), path_b)
    if differing or a.keys() != b.keys():
        return 1
    hashes = sum(a[key].params_hash is not None and b[key].params_hash is not None for key in both)
    evals = sum(key[1] == "eval" for key in both)
    print(f"equal: {len(both) - evals} steps, {evals} evaluations, {hashes} hashes of all parameters")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("a", type=Path, help="directory or log.jsonl of one run")
    parser.add_argument("b", type=Path, help="of the other")
    args = parser.parse_args()
    try:
        return compare(args.a, args.b)
    except Unreadable as error:
        print(f"compare_runs: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
