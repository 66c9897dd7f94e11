"""Makes tests/helpers.py importable from every folder of tests, and looks at every log that they leave."""
import json
import signal

import pytest

# A shell's background jobs ignore SIGINT, and so would every program started here.
signal.signal(signal.SIGINT, signal.default_int_handler)


def strict(pairs):
    """The members of an object, none of them twice."""
    assert len({name for name, _ in pairs}) == len(pairs), f"a name stands twice: {pairs}"
    return dict(pairs)


def refuse(text):
    raise ValueError(f"{text} is not JSON")


def check_log(path):
    """One strict JSON object per line; a process that was killed may leave a last line without its end."""
    for line in path.read_bytes().split(b"\n")[:-1]:
        try:
            record = json.loads(line.decode(), parse_constant=refuse, object_pairs_hook=strict)
        except (ValueError, AssertionError) as error:
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
        json.loads(path.read_text(), parse_constant=refuse, object_pairs_hook=strict)
