"""Programs under mpirun. They are built before (make); DM_BUILD names the build directory."""
import os
import signal
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("DM_BUILD", "build/release")
LAUNCH = ["mpirun", "-q", "--oversubscribe", "--bind-to", "none"]


def environment(extra=None):
    """The caller's environment, with what Open MPI asks for where tests run as root or in a container."""
    env = dict(os.environ)
    env.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    # Containers often forbid process_vm_readv; without it every large message prints a complaint.
    env.setdefault("OMPI_MCA_btl_vader_single_copy_mechanism", "none")
    env.update(extra or {})
    return env


def run_group(command, env=None, timeout=60, cwd=ROOT):
    """Runs a command in a process group of its own, so that a time-out ends all of it."""
    process = subprocess.Popen(command, env=env, cwd=cwd, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, start_new_session=True)
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)  # mpirun passes it on to its ranks
        try:
            out, err = process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
        pytest.fail(f"{' '.join(map(str, command))}: not done after {timeout} s\n{out}\n{err}")
    return subprocess.CompletedProcess(command, process.returncode, out, err)


@pytest.fixture
def mpirun():
    """mpirun(n, program, *args, env=None, timeout=60, cwd=ROOT) -> CompletedProcess with text output.

    `program` is a name in $BUILD/dist, or a path when it has a slash (relative to the repository).
    """

    def run(n, program, *args, env=None, timeout=60, cwd=ROOT):
        path = ROOT / program if "/" in str(program) else BUILD / "dist" / program
        command = [*LAUNCH, "-np", str(n), str(path), *map(str, args)]
        return run_group(command, env=environment(env), timeout=timeout, cwd=cwd)

    return run
