"""Jobs of scripts/train.sbatch and scripts/chain.sh under a real Slurm: they stop with a checkpoint, come back and go on."""
import re
import time

import pytest

from helpers import ROOT, TINY, TRAIN, environment, records, run_mesh, set_names, steps
from slurm_cluster import Cluster, Unavailable, why_not

SCRIPT = "scripts/train.sbatch"
ENDLESS = 1_000_000  # steps; the job is always stopped before
MORE = 3             # steps after the last stop
CONSTANT = "optimizer.schedule.kind=constant"  # under which a resume may change train.steps
MESH = (1, 2)


@pytest.fixture(scope="module")
def slurm():
    reason = why_not()
    if reason:
        pytest.skip(reason)
    try:
        with Cluster(environment({"DMUON_TRAIN": str(TRAIN)})) as cluster:
            yield cluster
    except Unavailable as why:
        pytest.skip(str(why))


class Run:
    """A run whose configuration file says after how many steps it ends. A job reads the file anew each time it starts, so the
    test decides when a run finishes, however fast the machine is."""

    def __init__(self, top):
        self.dir = top / "run"
        self.config = top / "tiny.yaml"
        self.out = top / "job.out"
        self.ends_after(ENDLESS)

    def ends_after(self, n):
        text = (ROOT / TINY).read_text()
        assert "steps: 10}" in text
        self.config.write_text(text.replace("steps: 10}", f"steps: {n}}}"))

    def arguments(self):
        return [f"--output={self.out}", "--ntasks=2", SCRIPT, self.config, f"run.dir={self.dir}", "threads=1", CONSTANT,
                "checkpoint.keep=3", *[f"mesh.{k}={v}" for k, v in zip(("replicate", "shard"), MESH)]]

    def wait_steps(self, n, slurm, job, limit_s=60):
        """Until n steps are in the log."""
        log = self.dir / "log.jsonl"
        deadline = time.monotonic() + limit_s
        while not log.exists() or log.read_text().count('"event":"step"') < n:
            if time.monotonic() > deadline:
                slurm.wait_state(job, "no step was logged", limit_s=0)
            time.sleep(0.1)

    def last_step(self):
        return max(steps(self.dir))

    def saved(self):
        """The run stopped in peace: the newest set holds the last step of the log."""
        end = records(self.dir, "end")[-1]
        last = self.last_step()
        return end["exit_code"] == 75 and end["step"] == last and set_names(self.dir)[-1] == f"step-{last:08d}"

    def equals_straight_run(self, straight, env):
        found = steps(self.dir)
        run_mesh((1, 1), straight, f"train.steps={len(found)}", CONSTANT, env=env, timeout=240)
        assert found == steps(straight)


def submit(slurm, run, *options, **variables):
    return slurm.must("sbatch", "--parsable", *options, *run.arguments(), **variables).strip()


@pytest.mark.parametrize("launcher", ["mpirun", "srun"])
def test_a_signalled_job_comes_back_and_ends_with_the_bits_of_a_straight_run(slurm, tmp_path, launcher):
    run = Run(tmp_path)
    job = submit(slurm, run, "--time=10", DMUON_LAUNCH=launcher)
    run.wait_steps(3, slurm, job)
    slurm.must("scancel", "--signal=USR1", "--batch", job)  # where --signal=B:USR1@120 sends its own
    slurm.wait_state(job, "PENDING", Restarts="1")
    assert run.saved()
    stopped = run.last_step()
    run.ends_after(stopped + MORE)
    slurm.restart(job)
    slurm.wait_state(job, "COMPLETED", ExitCode="0:0", Restarts="1")
    assert [r["step"] for r in records(run.dir, "resume")] == [stopped]
    assert run.last_step() == stopped + MORE
    run.equals_straight_run(tmp_path / "straight", slurm.mpi_env)


def test_the_budget_is_the_time_limit_of_the_job(slurm, tmp_path):
    run = Run(tmp_path)
    # A minute is less than what the first save is taken to need: the run stops after one step, without any signal.
    job = submit(slurm, run, "--time=1", "--signal=B:USR1@1")
    slurm.wait_state(job, "PENDING", Restarts="1")
    slurm.must("scancel", job)
    assert run.saved()
    assert run.last_step() == 1
    seconds = int(re.search(r"max_wall_time: *\W?0:00:(\d\d)", (run.dir / "config.yaml").read_text())[1])
    assert 15 <= seconds <= 30


@pytest.mark.parametrize("launcher", ["mpirun", "srun"])
def test_a_cancelled_job_does_not_come_back(slurm, tmp_path, launcher):
    run = Run(tmp_path)
    job = submit(slurm, run, "--time=10", DMUON_LAUNCH=launcher)
    run.wait_steps(3, slurm, job)
    slurm.must("scancel", job)
    slurm.wait_state(job, "CANCELLED", Restarts="0")
    deadline = time.monotonic() + 40
    while slurm.must("squeue", "-h").strip() and time.monotonic() < deadline:  # it is CANCELLED while it still leaves
        time.sleep(0.1)
    assert slurm.job(job)["JobState"] == "CANCELLED"
    assert run.saved() or launcher == "mpirun"  # which gives its ranks two seconds


def test_a_chain_goes_on_after_a_stop_and_ends_when_the_run_is_finished(slurm, tmp_path):
    run = Run(tmp_path)
    said = slurm.must("scripts/chain.sh", 4, "--time=10", *run.arguments())
    first, second, third, fourth = said.split()[1:]
    slurm.must("scontrol", "hold", second)
    run.wait_steps(3, slurm, first)
    slurm.must("scancel", "--signal=USR1", "--batch", first)
    slurm.wait_state(first, "FAILED", ExitCode="75:0", Restarts="0")
    assert run.saved()
    stopped = run.last_step()
    run.ends_after(stopped + MORE)
    slurm.must("scontrol", "release", second)
    slurm.wait_state(second, "COMPLETED", ExitCode="0:0")
    assert run.last_step() == stopped + MORE
    for job in (third, fourth):
        slurm.wait_state(job, "CANCELLED")
    assert "finished" not in run.out.read_text()  # neither of the two ran


def test_a_chain_ends_when_the_run_is_refused(slurm, tmp_path):
    run = Run(tmp_path)
    said = slurm.must("scripts/chain.sh", 2, "--time=10", *run.arguments(), "train.stepz=3")
    first, second = said.split()[1:]
    slurm.wait_state(first, "FAILED", ExitCode="2:0")
    slurm.wait_state(second, "CANCELLED")
    assert "train.stepz" in run.out.read_text()
