"""A Slurm of one node for the tests alone: munged, slurmctld and slurmd as children of the test, in a directory of their own,
without accounting and cgroups."""
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
PROGRAMS = ["munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel", "squeue", "sinfo"]
ONLY_LOOPBACK = {"OMPI_MCA_btl_tcp_if_include": "lo", "OMPI_MCA_oob_tcp_if_include": "lo"}
SPARE_ADDRESS = "10.77.0.1/32"
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"}
CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
SlurmctldPort={port[0]}
AuthInfo=socket={top}/munge/socket
StateSaveLocation={top}/state
SlurmdSpoolDir={top}/spool
SlurmctldPidFile={top}/slurmctld.pid
SlurmdPidFile={top}/slurmd.pid
SlurmctldLogFile={top}/slurmctld.log
SlurmdLogFile={top}/slurmd.log
TmpFS={top}/tmp
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 Port={port[1]} CPUs=8
PartitionName=main Nodes=ALL Default=YES
"""


def why_not():
    """What keeps Slurm from running here, or None."""
    if os.geteuid() != 0:
        return "Slurm's daemons are started as root only"
    missing = [p for p in PROGRAMS if not shutil.which(p, path=PATH)]
    return f"not installed: {', '.join(missing)} (make deps-slurm)" if missing else None


def free_ports(n):
    sockets = [socket.socket() for _ in range(n)]
    for s in sockets:
        s.bind(("", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def die_with_parent():
    """The daemons end when the test is killed."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)


def tail(path, lines=25):
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.exists() else ""


class Unavailable(Exception):
    """Slurm cannot run on this machine."""


class Cluster:
    """`with Cluster(env) as slurm`: jobs get the environment `env`."""

    def __init__(self, env):
        self.top = Path(tempfile.mkdtemp(prefix="dmslurm-", dir="/tmp"))  # sockets want a short path
        self.conf = self.top / "slurm.conf"
        self.env = {**env, "SLURM_CONF": str(self.conf), "PATH": PATH}
        self.daemons = []
        self.spare_address = False
        self.mpi_env = {}  # what Open MPI needs here, in jobs or not

    def __enter__(self):
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    # ---- daemons ----

    def _need_address(self):
        """Slurm resolves names with AI_ADDRCONFIG, which wants one address that is not 127.0.0.1."""
        if subprocess.run(["ip", "-o", "addr", "show", "up", "scope", "global"], env=self.env, capture_output=True,
                          check=True).stdout:
            return
        done = subprocess.run(["ip", "addr", "add", SPARE_ADDRESS, "dev", "lo"], env=self.env, capture_output=True, text=True)
        if done.returncode != 0:
            raise Unavailable(f"no network but 127.0.0.1, and no right to add an address: {done.stderr.strip()}")
        self.spare_address = True
        self.mpi_env = ONLY_LOOPBACK
        self.env.update(self.mpi_env)

    def _daemon(self, name, *arguments):
        with open(self.top / f"{name}.out", "wb") as out:
            self.daemons.append(subprocess.Popen([name, *map(str, arguments)], env=self.env, cwd=self.top, stdout=out, stderr=out,
                                                 stdin=subprocess.DEVNULL, preexec_fn=die_with_parent))

    def _start(self):
        self.top.chmod(0o755)
        for name in ["munge", "state", "spool", "tmp"]:
            (self.top / name).mkdir(mode=0o755)
        key = self.top / "munge" / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        host = socket.gethostname().split(".")[0]
        self.conf.write_text(CONFIG.format(host=host, port=free_ports(2), top=self.top))
        self._need_address()
        self._daemon("munged", "--foreground", "--force", f"--key-file={key}", f"--socket={self.top}/munge/socket",
                     f"--pid-file={self.top}/munge/pid", f"--log-file={self.top}/munge/log", f"--seed-file={self.top}/munge/seed")
        self._until("munged's socket", (self.top / "munge" / "socket").exists)
        self._daemon("slurmctld", "-D")
        self._daemon("slurmd", "-D")
        self._until("an idle node", lambda: self.ask("sinfo", "-h", "-N", "-t", "idle").stdout.strip())

    def _until(self, what, ready, limit_s=60):
        deadline = time.monotonic() + limit_s
        while not ready():
            dead = [d.args[0] for d in self.daemons if d.poll() is not None]
            if dead or time.monotonic() > deadline:
                raise AssertionError(f"no {what}; ended: {dead}\n{self.logs()}")
            time.sleep(0.1)

    def _of_this_cluster(self):
        """Processes that carry our SLURM_CONF: slurmstepd and what it started outlive slurmd."""
        mark = f"SLURM_CONF={self.conf}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue  # it ended meanwhile
        return found

    def stop(self):
        """Jobs, then daemons, then whatever is left of either."""
        alive = bool(self.daemons) and all(d.poll() is None for d in self.daemons)
        if alive:
            self.ask("scancel", "--user=root")
            deadline = time.monotonic() + 45
            while time.monotonic() < deadline and self.ask("squeue", "-h").stdout.strip():
                time.sleep(0.2)
        for daemon in reversed(self.daemons):
            daemon.terminate()
            try:
                daemon.wait(15)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for pid in self._of_this_cluster():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if self.spare_address:
            subprocess.run(["ip", "addr", "del", SPARE_ADDRESS, "dev", "lo"], env=self.env, check=False)
        shutil.rmtree(self.top, ignore_errors=True)

    def logs(self):
        names = ["munged.out", "slurmctld.out", "slurmctld.log", "slurmd.out", "slurmd.log"]
        return "\n".join(f"-- {name}\n{tail(self.top / name)}" for name in names)

    # ---- jobs ----

    def ask(self, *command, **variables):
        """A client's answer, whatever it is; without a controller it would wait for minutes."""
        try:
            return subprocess.run(list(map(str, command)), env={**self.env, **variables}, cwd=Path(__file__).resolve().parents[2],
                                  capture_output=True, text=True, timeout=30)
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(command, 124, "", "no answer in 30 s")

    def must(self, *command, **variables):
        done = self.ask(*command, **variables)
        assert done.returncode == 0, f"{command}: {done.stderr}\n{self.logs()}"
        return done.stdout

    def job(self, number):
        """What scontrol knows about a job: {"JobState": "RUNNING", ...}."""
        words = self.must("scontrol", "-o", "show", "job", number).split()
        return dict(w.split("=", 1) for w in words if "=" in w)

    def restart(self, number, limit_s=60):
        """Starts a requeued job, which by itself waits two minutes: for good reason, since slurmd refuses it within the second
        of its stop, and srun its step while the old slurmstepd still has the socket of that name."""
        deadline = time.monotonic() + limit_s
        while any(self._is_step(pid) for pid in self._of_this_cluster()):
            assert time.monotonic() < deadline, f"job {number} does not leave\n{self.logs()}"
            time.sleep(0.1)
        self.must("scontrol", "update", f"jobid={number}", "StartTime=now+2")

    @staticmethod
    def _is_step(pid):
        try:
            return Path(f"/proc/{pid}/comm").read_text().strip() == "slurmstepd"
        except OSError:
            return False

    def wait_state(self, number, *states, limit_s=60, **members):
        """The job once it is in one of the states and has the members; one that has ended otherwise fails at once."""
        deadline = time.monotonic() + limit_s
        while True:
            job = self.job(number)
            if job["JobState"] in states and all(job.get(k) == v for k, v in members.items()):
                return job
            if job["JobState"] in ENDED or time.monotonic() > deadline:
                raise AssertionError(f"job {number} is {job['JobState']}, exit {job['ExitCode']}, restarts {job['Restarts']}; "
                                     f"not {states} {members}\n{tail(Path(job['StdOut']))}\n{self.logs()}")
            time.sleep(0.1)
