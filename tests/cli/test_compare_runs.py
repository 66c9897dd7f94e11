"""scripts/compare_runs.py: the first step that differs, by how many ulp, and exit codes that say the same."""
import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "compare_runs.py"


def bits_of(loss: float) -> str:
    return f"{struct.unpack('<I', struct.pack('<f', loss))[0]:08x}"


def step(number: int, bits: str, params_hash: str | None = None, event: str = "step") -> dict:
    record = {"event": event, "step": number, "loss": 1.0, "loss_bits": bits, "step_ms": 12.5}
    return record | ({"params_hash": params_hash} if params_hash else {})


def run_of(*losses: float) -> list[dict]:
    return [{"event": "start", "schema": 1}] + [step(i, bits_of(loss)) for i, loss in enumerate(losses, 1)]


def compare(tmp_path: Path, a: list[dict] | str, b: list[dict] | str) -> subprocess.CompletedProcess:
    for name, records in (("a", a), ("b", b)):
        text = records if isinstance(records, str) else "".join(json.dumps(record) + "\n" for record in records)
        (tmp_path / name).write_text(text)
    command = [sys.executable, str(SCRIPT), str(tmp_path / "a"), str(tmp_path / "b")]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_equal_runs_are_equal_whatever_their_times(tmp_path):
    a = run_of(3.5, 3.25, 3.0) + [step(3, bits_of(3.1), event="eval")]
    b = [{**record, "step_ms": 99.0} for record in a] + [{"event": "end", "step": 3}]
    result = compare(tmp_path, a, b)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "equal: 3 steps, 1 evaluations, 0 hashes of all parameters\n"


def test_a_run_is_named_by_its_directory_too(tmp_path):
    for name, losses in (("one", (3.5, 3.25)), ("two", (3.5, 3.25)), ("other", (3.5, 3.0))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in run_of(*losses)))
    run = lambda b: subprocess.run([sys.executable, str(SCRIPT), str(tmp_path / "one"), str(tmp_path / b)], capture_output=True, check=False)
    assert run("two").returncode == 0 and run("other").returncode == 1


def test_the_first_difference_is_named_with_its_ulps(tmp_path):
    result = compare(tmp_path, run_of(3.5, 3.0, 2.5), run_of(3.5, 3.0000005, 2.0))
    assert result.returncode == 1
    lines = result.stdout.splitlines()
    assert lines[0] == "first difference at step 2: loss 3 (40400000) against 3.00000048 (40400002): 2 ulp"
    assert lines[1] == "2 of 3 common records differ"


@pytest.mark.parametrize("a, b, words", [
    ("00000001", "80000001", "2 ulp"),  # the smallest numbers of either sign are two steps apart
    ("00000000", "80000000", "0 ulp, zeros of either sign"),
    ("3f7fffff", "3f800000", "1 ulp"),  # across a power of two
    ("bf800000", "bf800003", "3 ulp"),
    ("7fc00000", "3f800000", "not a number"),
    ("7fc00000", "7fc00001", "not a number"),
    ("7f7fffff", "7f800000", "1 ulp"),  # the largest number and infinity
])
def test_ulps_are_steps_between_neighbours(tmp_path, a, b, words):
    result = compare(tmp_path, [step(1, a)], [step(1, b)])
    assert result.returncode == 1
    assert result.stdout.splitlines()[0].endswith(words)


def test_a_hash_differs_where_the_loss_does_not(tmp_path):
    a = [step(1, "3f800000", "0123456789abcdef"), step(2, "3f800000")]
    b = [step(1, "3f800000", "0123456789abcdee"), step(2, "3f800000")]
    result = compare(tmp_path, a, b)
    assert result.returncode == 1
    assert "first difference at step 1: params_hash 0123456789abcdef against 0123456789abcdee" in result.stdout


def test_a_hash_that_only_one_run_logged_is_not_compared(tmp_path):
    result = compare(tmp_path, [step(1, "3f800000", "0123456789abcdef")], [step(1, "3f800000")])
    assert result.returncode == 0
    assert "0 hashes" in result.stdout


def test_steps_of_one_run_only_are_reported(tmp_path):
    result = compare(tmp_path, run_of(3.5, 3.0), run_of(3.5, 3.0, 2.5, 2.0))
    assert result.returncode == 1
    assert result.stdout == f"only in {tmp_path / 'b'}: step 3 and 1 more\n"


def test_an_evaluation_is_compared_apart_from_its_step(tmp_path):
    a = [step(1, "3f800000"), step(1, "40000000", event="eval")]
    b = [step(1, "3f800000"), step(1, "40000001", event="eval")]
    result = compare(tmp_path, a, b)
    assert result.returncode == 1
    assert result.stdout.startswith("first difference at eval 1: ")


def test_a_record_that_stands_twice_alike_is_one_record(tmp_path):
    twice = [step(1, "3f800000"), step(1, "3f800000")]
    assert compare(tmp_path, twice, [step(1, "3f800000")]).returncode == 0


@pytest.mark.parametrize("text, words", [
    ("", "no steps to compare"),
    ('{"event": "start"}\n', "no steps to compare"),
    ('{"event": "step", "st', ":1: "),
    ('{"event": "step", "step": 1}\n', ":1: loss_bits is missing"),
    ('{"event": "step", "loss_bits": "3f800000"}\n', ":1: a step number is missing"),
    ('{"event": "step", "step": 1, "loss_bits": "3F800000"}\n', "not 8 lower-case hex digits"),
    ('{"event": "step", "step": 1, "loss_bits": "3f800000", "params_hash": 5}\n', "not 16 lower-case hex digits"),
    ('{"event": "step", "step": 1, "loss_bits": "3f800000", "loss": NaN}\n', "NaN is not JSON"),
    ("[1]\n", "not an object with an event"),
    ('{"event": "step", "step": 1, "loss_bits": "3f800000"}\n{"event": "step", "step": 1, "loss_bits": "3f800001"}\n',
     ":2: step 1 stands twice"),
])
def test_an_unreadable_log_is_named_and_exits_with_2(tmp_path, text, words):
    result = compare(tmp_path, run_of(1.0), text)
    assert result.returncode == 2
    assert str(tmp_path / "b") in result.stderr and words in result.stderr
    assert result.stdout == ""


def test_a_missing_file_and_a_missing_argument_exit_with_2(tmp_path):
    (tmp_path / "a").write_text(json.dumps(step(1, "3f800000")))
    command = [sys.executable, str(SCRIPT), str(tmp_path / "a")]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 2
    assert subprocess.run([*command, str(tmp_path / "no")], capture_output=True, check=False).returncode == 2
