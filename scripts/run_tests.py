#!/usr/bin/env python3
"""Runs every test and ends in one line `N passed, N failed, N skipped`.

usage: run_tests.py PROGRAM... [-- BESIDE... [-- ALONE...]]
Each PROGRAM is a cmocka test; BESIDE and ALONE are files for pytest. The programs, one after the other, and each file of BESIDE run
three at a time, started in their order: tests that start processes mostly wait for them. Then the files of ALONE have the machine for
themselves: their tests watch times. Exit 0 only when nothing failed.
"""
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

LANES = 3


def run_unit(program, limit_s=900):
    """(passed, failed, skipped) of one cmocka program; a crash or a time-out is a failure."""
    name = Path(program).name
    try:
        done = subprocess.run([program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=limit_s)
    except subprocess.TimeoutExpired:
        print(f"FAIL {name}: no end within {limit_s} s")
        return 0, 1, 0
    text = done.stdout.decode(errors="replace")
    passed = sum(int(n) for n in re.findall(r"\[  PASSED  \] (\d+) test", text))
    failed = sum(int(n) for n in re.findall(r"\[  FAILED  \] (\d+) test", text))
    skipped = sum(int(n) for n in re.findall(r"\[  SKIPPED \] (\d+) test", text))
    if done.returncode != 0 and failed == 0:
        failed = 1
    if failed or passed + skipped == 0:
        print(text)
        print(f"FAIL {name} (exit {done.returncode})")
        failed = max(failed, 1)
    else:
        print(f"ok   {name}: {passed} passed" + (f", {skipped} skipped" if skipped else ""))
    sys.stdout.flush()
    return passed, failed, skipped


def run_pytest(arguments, quietly=False):
    """(passed, failed, skipped) of the tests that start processes; `quietly`: what it says comes at its end."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as tmp:
        report = Path(tmp) / "report.xml"
        done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rs", "--durations=3", f"--junitxml={report}",
                               *arguments], stdout=subprocess.PIPE if quietly else None, stderr=subprocess.STDOUT if quietly else None)
        if quietly:
            print(f"---- {' '.join(arguments)}: {time.monotonic() - begin:.0f} s\n{done.stdout.decode(errors='replace')}", flush=True)
        if not report.exists():
            return 0, 1, 0
        suites = ElementTree.parse(report).getroot().iter("testsuite")
        total = failed = skipped = 0
        for suite in suites:
            total += int(suite.get("tests"))
            failed += int(suite.get("failures")) + int(suite.get("errors"))
            skipped += int(suite.get("skipped"))
    passed = total - failed - skipped
    nothing_to_run = done.returncode == 5 and skipped > 0  # a file that is skipped as a whole
    if done.returncode not in (0, 1) and not nothing_to_run:
        failed = max(failed, 1)
    return passed, failed, skipped


def run_units(programs):
    results = [run_unit(program) for program in programs]
    return tuple(sum(r[i] for r in results) for i in range(3))


def split(words):
    """The runs of words between `--`."""
    runs = [[]]
    for word in words:
        if word == "--":
            runs.append([])
        else:
            runs[-1].append(word)
    return runs


def main():
    programs, beside, alone = (split(sys.argv[1:]) + [[], []])[:3]
    with ThreadPoolExecutor(max_workers=LANES) as pool:
        jobs = [pool.submit(run_units, programs), *[pool.submit(run_pytest, [file], True) for file in beside]]
        results = [job.result() for job in jobs]
    if alone:
        results.append(run_pytest(alone))
    passed, failed, skipped = (sum(r[i] for r in results) for i in range(3))
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
