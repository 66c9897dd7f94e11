"""What scripts/run_tests.py counts as passed, failed and skipped."""
import subprocess
import sys

import pytest

from helpers import ROOT

FILES = {
    "good": "def test_a(): pass\ndef test_b(): pass\n",
    "bad": "def test_a(): assert 0\n",
    "skipped": "import pytest\npytest.skip('not here', allow_module_level=True)\n",
    "none": "",
    "broken": "import nothing_of_this_name\n",
    "killed": "import os\ndef test_a(): os._exit(3)\n",
}
PROGRAM = """#!/bin/sh
echo '[  PASSED  ] 3 test(s).'
exit {code}
"""


def counts(top, programs=(), beside=(), alone=()):
    """The last line and the exit code."""
    for name in (*beside, *alone):
        (top / f"test_{name}.py").write_text(FILES[name])
    for name, code in programs:
        (top / name).write_text(PROGRAM.format(code=code))
        (top / name).chmod(0o755)
    done = subprocess.run([sys.executable, ROOT / "scripts" / "run_tests.py", *[top / name for name, _ in programs],
                           "--", *[top / f"test_{name}.py" for name in beside], "--", *[top / f"test_{name}.py" for name in alone]],
                          cwd=top, capture_output=True, text=True, check=False)
    return done.stdout.splitlines()[-1], done.returncode


@pytest.mark.parametrize("where", ["beside", "alone"])
def test_a_file_that_is_skipped_as_a_whole_is_no_failure(where, tmp_path):
    assert counts(tmp_path, beside=["good"], alone=[]) == ("2 passed, 0 failed, 0 skipped", 0)
    assert counts(tmp_path, programs=[("unit", 0)], **{where: ["skipped"]}) == ("3 passed, 0 failed, 1 skipped", 0)


@pytest.mark.parametrize("name", ["bad", "none", "broken", "killed"])
def test_a_file_that_fails_or_has_no_tests_or_no_end_is_a_failure(name, tmp_path):
    assert counts(tmp_path, beside=["good", name]) == ("2 passed, 1 failed, 0 skipped", 1)


def test_a_program_that_ends_with_a_code_is_a_failure(tmp_path):
    assert counts(tmp_path, programs=[("unit", 0), ("crash", 1)]) == ("6 passed, 1 failed, 0 skipped", 1)


def test_nothing_passed_is_a_failure(tmp_path):
    assert counts(tmp_path, beside=["skipped"]) == ("0 passed, 0 failed, 1 skipped", 1)
