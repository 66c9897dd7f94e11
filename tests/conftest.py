"""Makes tests/helpers.py importable from every folder of tests, and looks at every log that they leave."""
import signal

import pytest

from helpers import strict_json

# A shell's background jobs ignore SIGINT, and so would every program started here.
signal.signal(signal.SIGINT, signal.default_int_handler)


def check_log(path):
    """One strict JSON object per line; a process that was killed may leave a last line without its end."""
    for line in path.read_bytes().split(b"\n")[:-1]:
        try:
            record = strict_json(line.decode())
        except ValueError as error:
            raise AssertionError(f"{path}: {error}: {line!r}") from error
        assert isinstance(record, dict) and "event" in record, f"{path}: {line!r}"


@pytest.fixture(autouse=True)
def logs_are_strict_json(request):
    """After each test, every log and trace below its own directory."""
    top = request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else None
    yield
    if top is None:
        return
    for path in [*top.rglob("log.jsonl"), *top.rglob("log.jsonl.[0-9]*")]:
        if path.is_file():
            check_log(path)
    for path in top.rglob("trace-*.json"):
        strict_json(path.read_text())
