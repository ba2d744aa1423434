"""A real Slurm on one machine, for tests that lose nodes and controllers: a controller and a few nodes with GPUs that do not exist.

Everything listens on loopback where it can (`_host`) and lies in one short folder under the system's temporary one. There is no
accounting database, so `sacct` answers nothing. Needs root and Debian's slurmctld, slurmd, slurm-client and munge; 22.05.8 is what it was
written against.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo")
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
PORTS = range(10_000, 30_000)
"""Below what Linux hands out to connections on its own."""


@dataclass(frozen=True)
class Options:
    """What a test may want another way. Times are in seconds, memory in MB."""

    nodes: int = 2
    gpus: int = 4
    cpus: int = 64
    memory: int = 256_000
    """CPUs and memory of a node, which the machine need not have."""
    default_memory: int = 4_000
    """What a job gets that asks for no memory."""
    default_minutes: int = 10
    """The time limit of a job that asks for none; Slurm looks for overdue jobs every 30 s."""
    max_array_size: int = 1001
    """The first array index that is refused, as in Slurm."""
    preemption: bool = True
    """Jobs of the partition "high" requeue those of "low", which is the default partition."""
    grace_time: int = 10
    send_user_signal: bool = True
    """A preempted job gets the signal it asked for with --signal, and not SIGTERM alone."""
    enforce_memory: bool = True
    """A job that uses more than it asked for is killed; Slurm looks once a second."""
    kill_wait: int = 2
    slurmd_timeout: int = 5
    """How long a node may be silent. A crash is noticed by the second call in vain, which takes some 10 s in all."""
    min_job_age: int = 3600
    """How long a job that ended is remembered."""


@dataclass(frozen=True)
class Job:
    """A line of squeue. An array has one for each element; `id` is then `3_0` and `job` the number that the element runs under."""

    id: str
    job: str
    name: str
    partition: str
    state: str
    reason: str
    nodes: str
    restarts: int
    exit_code: int


JOB_FIELDS = ("JobArrayID", "JobID", "Name", "Partition", "State", "Reason", "NodeList", "RestartCnt", "exit_code")
UNIT = "\x1f"


def missing() -> str | None:
    """Why no cluster can be started here, or None where one can."""
    if not sys.platform.startswith("linux"):
        return "a test cluster needs Linux"
    if os.geteuid() != 0:
        return "a test cluster needs root: its daemons act for any user, and its GPUs are device nodes"
    absent = [program for program in PROGRAMS if shutil.which(program, path=PATH) is None]
    return f"no {', '.join(absent)} here; Debian has them in slurmctld, slurmd, slurm-client, munge" if absent else None


def wait_for(condition: Callable[[], T | None], timeout: float, what: str) -> T:
    """The first true value of `condition`, which is asked ten times a second."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"gave up after {timeout} s on: {what}")
        time.sleep(0.1)
    return value


class Cluster:
    """`with Cluster(max_array_size=20) as cluster:` runs one, once; several may run at the same time.

    `environment` is for every program that shall talk to it: this process's own, with SLURM_CONF and without what an outer Slurm set.
    Whatever was started with it ends with the cluster, and all of it ends with this process, even if that is killed.
    """

    def __init__(self, **options: Any) -> None:
        self.options = Options(**options)
        self.nodes = [f"n{number}" for number in range(1, self.options.nodes + 1)]
        self.directory = Path(tempfile.mkdtemp(prefix="slurm-", dir=_short_folder()))
        self.directory.chmod(0o711)  # munge's clients must reach its socket
        self.environment = _outside_of_slurm(os.environ) | {"SLURM_CONF": str(self.directory / "slurm.conf"), "PATH": PATH}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._ports: list[socket.socket] = []
        self._guard: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Cluster:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Returns once every node is idle."""
        try:
            self._start_guard()
            self._write_files()
            files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
            munge = [f"--{option}={self.directory}/munge.{kind}" for option, kind in files.items()]
            self._launch("munged", "munged", "--foreground", *munge)
            wait_for((self.directory / "munge.socket").exists, 10, "munged's socket")
            self.start_controller()
            for node in self.nodes:
                self._launch(node, "slurmd", "-D", "-N", node)
            self._wait_until_up(self.nodes, 20)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends the daemons, every step, what the steps started and what still talks to them, and deletes the folder."""
        for node in self.nodes:
            self._kill(node)
        self._kill_processes(*self.nodes)
        for name in list(self._daemons):
            self._kill(name)
        for port in self._ports:
            port.close()
        if self._guard:
            self._guard.communicate()  # its signal to look once more, and to delete the folder
            assert self._guard.returncode == 0, f"something of {self.directory} is left"

    def run(
        self, *command: str | Path, timeout: float = 30, check: bool = False, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """A program that talks to this cluster, in the cluster's own folder unless `cwd` names another."""
        words = [str(word) for word in command]
        where = cwd or self.directory
        done = subprocess.run(
            words, env=self.environment, cwd=where, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL
        )
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(words)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def submit(self, script: str, *options: str) -> str:
        """The id of a new job that runs a few lines of shell; its output is `<id>.out` in the cluster's folder."""
        words = ["sbatch", "--parsable", f"--output={self.directory}/%j.out", *options, f"--wrap={script}"]
        return self.run(*words, check=True).stdout.strip()

    def output(self, id: str) -> str:
        """What a job of `submit` wrote so far."""
        path = self.directory / f"{id}.out"
        return path.read_text() if path.exists() else ""

    def jobs(self) -> list[Job]:
        """All jobs, ended ones too."""
        fields = ",".join(f"{field}:{UNIT}" for field in JOB_FIELDS)
        lines = self.run("squeue", "--noheader", "--array", "--states=all", f"--Format={fields}", check=True).stdout.splitlines()
        return [_job(line) for line in lines if line.strip()]

    def job(self, id: str) -> Job:
        """The job or element of an array with that id; a LookupError where the cluster knows of none."""
        for job in self.jobs():
            if job.id == id:
                return job
        raise LookupError(f"job {id} is unknown\n{self.describe()}")

    def wait(self, condition: Callable[[], T | None], timeout: float, what: str) -> T:
        """As `wait_for`, with a word about the cluster where it gives up."""
        try:
            return wait_for(condition, timeout, what)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self.describe()}") from None

    def wait_until_idle(self, timeout: float = 60) -> None:
        """Until no job is pending, runs or is being cleared away."""
        self.wait(lambda: not self.run("squeue", "--noheader", check=True).stdout.strip(), timeout, "an empty queue")

    def wait_for_state(self, id: str, state: str, timeout: float = 30) -> Job:
        """The job, once it is in that state."""
        return self.wait(lambda: next((job for job in [self.job(id)] if job.state == state), None), timeout, f"job {id} {state}")

    def clear(self) -> None:
        """As if it were new, but for the numbers of the jobs: every daemon runs, every node is idle, nothing is queued and nothing runs."""
        if not self._runs("slurmctld"):
            self.start_controller()
        for node in self.nodes:
            if not self._runs(node):
                self.crash_node(node)
                self.start_node(node)
        self.run("scancel", "--user=root", check=True)
        self.wait_until_idle()
        self._kill_processes(*self.nodes)
        self.run("scontrol", "update", f"NodeName={','.join(self.nodes)}", "State=RESUME")  # fails where none is down or drained
        self._wait_until_up(self.nodes, 20)

    def crash_node(self, node: str) -> None:
        """The machine dies: slurmd, the steps and all that they started. Slurm notices after a while (`slurmd_timeout`)."""
        self._kill(node)
        self._kill_processes(node)

    def hang_node(self, node: str) -> None:
        """slurmd dies alone: Slurm believes the node lost while its steps go on."""
        self._kill(node)

    def start_node(self, node: str) -> None:
        """Returns once the node takes jobs again."""
        self._launch(node, "slurmd", "-D", "-N", node)
        self._wait_until_up([node], 30)

    def crash_controller(self) -> None:
        """The controller dies at once; what was submitted less than some 8 s before may be lost with it."""
        self._kill("slurmctld")

    def start_controller(self) -> None:
        """Returns once it answers; nodes and jobs are heard of soon after."""
        self._launch("slurmctld", "slurmctld", "-D")
        self.wait(lambda: self.run("scontrol", "ping").returncode == 0, 20, "an answer of the controller")

    def processes(self, *nodes: str) -> list[int]:
        """The processes of these nodes: Slurm's steps, then what has a node's name in its environment, then what any of them started."""
        names = {f"SLURMD_NODENAME={node}".encode() for node in nodes}
        conf, logs = _mark(self.directory), {str(self.directory / f"{node}.log") for node in nodes}
        parents = _living_processes()
        managers = [process for process in parents if _is_step_manager(process, logs)]
        tasks = [process for process in parents if conf in (known := _environment(process)) and names & known]
        return _with_descendants(managers + tasks, parents)

    def describe(self) -> str:
        """What a failed test should show: the queue, the nodes and the ends of the logs."""
        told = [self.run(*words).stdout for words in (["squeue", "--states=all"], ["sinfo", "-N"])]
        logs = [
            f"{log.name}:\n" + "\n".join(log.read_text(errors="replace").splitlines()[-15:]) for log in sorted(self.directory.glob("*.log"))
        ]
        return "\n".join([*told, *logs])

    def _write_files(self) -> None:
        for number in range(self.options.gpus):
            os.mknod(self.directory / f"gpu{number}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))  # a second /dev/null
        key = self.directory / "munge.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(128))
        self._ports = [_reserved_port() for _ in range(1 + len(self.nodes))]
        files = f"NodeName={','.join(self.nodes)} Name=gpu Type=fake File={self.directory}/gpu[0-{self.options.gpus - 1}]\n"
        (self.directory / "gres.conf").write_text("AutoDetect=off\n" + files)
        settings = {**self._settings(), **_SAME_FOR_ALL}
        lines = [*(f"{key}={value}" for key, value in settings.items()), *self._nodes_and_partitions()]
        (self.directory / "slurm.conf").write_text("\n".join(lines) + "\n")

    def _settings(self) -> dict[str, object]:
        """Where things are, and what the options say."""
        here, options = self.directory, self.options
        host, loopback = _host()
        settings: dict[str, object] = {
            "ClusterName": here.name,
            "SlurmctldHost": f"{host}(127.0.0.1)",
            "SlurmctldPort": _number(self._ports[0]),
            "SlurmUser": "root",
            # A requeued job waits cred_expire seconds; less than its old copy needs to die, and Slurm holds it for good.
            "AuthInfo": f"socket={here}/munge.socket,cred_expire={options.kill_wait + 8}",
            "StateSaveLocation": here / "state",
            "SlurmdSpoolDir": here / "%n",
            "SlurmctldPidFile": here / "slurmctld.pid",
            "SlurmdPidFile": here / "%n.pid",
            "SlurmctldLogFile": here / "slurmctld.log",
            "SlurmdLogFile": here / "%n.log",
            "MaxArraySize": options.max_array_size,
            "KillWait": options.kill_wait,
            "SlurmdTimeout": options.slurmd_timeout,
            "MinJobAge": options.min_job_age,
        }
        if loopback:
            settings["CommunicationParameters"] = "NoCtldInAddrAny,NoInAddrAny"
        if options.preemption:
            settings |= {"PreemptType": "preempt/partition_prio", "PreemptMode": "REQUEUE"}
        if options.send_user_signal:
            settings["SlurmctldParameters"] = "preempt_send_user_signal"
        if options.enforce_memory:
            settings["JobAcctGatherParams"] = "OverMemoryKill"
        return settings

    def _nodes_and_partitions(self) -> list[str]:
        options = self.options
        size = f"CPUs={options.cpus} Boards=1 SocketsPerBoard=1 CoresPerSocket={options.cpus} ThreadsPerCore=1 RealMemory={options.memory}"
        where = f"NodeHostname={_host()[0]} NodeAddr=127.0.0.1"
        ports = zip(self.nodes, self._ports[1:], strict=True)
        nodes = [f"NodeName={node} {where} Port={_number(port)} {size} Gres=gpu:fake:{options.gpus}" for node, port in ports]
        limits = f"Nodes=ALL State=UP MaxTime=INFINITE DefaultTime={options.default_minutes} DefMemPerNode={options.default_memory}"
        low, high = (f"PreemptMode=REQUEUE GraceTime={options.grace_time}", "PreemptMode=OFF") if options.preemption else ("", "")
        return [
            *nodes,
            f"PartitionName=low Default=YES PriorityTier=1 {limits} {low}",
            f"PartitionName=high PriorityTier=10 {limits} {high}",
        ]

    def _launch(self, name: str, *command: str) -> None:
        assert not self._runs(name), f"{name} runs already"
        with (self.directory / f"{name}.out").open("ab") as out:
            self._daemons[name] = subprocess.Popen(
                command, env=self.environment, cwd=self.directory, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )

    def _start_guard(self) -> None:
        """A process of its own that sees this one die, however that happens, and then ends the cluster."""
        words = [sys.executable, "-I", __file__, str(self.directory)]
        self._guard = subprocess.Popen(words, env=_outside_of_slurm(os.environ), stdin=subprocess.PIPE, start_new_session=True)

    def _runs(self, name: str) -> bool:
        return name in self._daemons and self._daemons[name].poll() is None

    def _kill(self, name: str) -> None:
        """Of a daemon that is our child, so its number is nobody else's until we have waited for it."""
        if daemon := self._daemons.pop(name, None):
            daemon.kill()
            daemon.wait()

    def _kill_processes(self, *nodes: str) -> None:
        """Until none is found, since one that dies last may have started another."""
        wait_for(lambda: _none_left(self.processes(*nodes)), 20, f"the end of what runs on {', '.join(nodes)}")

    def _wait_until_up(self, nodes: list[str], timeout: float) -> None:
        good = {"idle", "mixed", "allocated", "completing"}

        def up() -> bool:
            told = self.run("sinfo", "--noheader", "--Node", "--format=%N %T", f"--nodes={','.join(nodes)}").stdout
            states = dict(line.split() for line in told.splitlines())
            return set(states) == set(nodes) and set(states.values()) <= good

        self.wait(up, timeout, f"nodes {', '.join(nodes)}")


_SAME_FOR_ALL = {
    # Whoever could start is started within a second.
    "SchedulerType": "sched/backfill",
    "SchedulerParameters": "bf_interval=1,sched_interval=1,sched_min_interval=0,batch_sched_delay=0",
    "SelectType": "select/cons_tres",
    "SelectTypeParameters": "CR_CPU_Memory",
    "PriorityType": "priority/basic",
    # Control groups are not asked for, since they differ from machine to machine: a process that leaves its job's session outlives the job.
    "ProctrackType": "proctrack/linuxproc",
    "TaskPlugin": "task/none",
    "JobAcctGatherType": "jobacct_gather/linux",
    "JobAcctGatherFrequency": "task=1",
    "GresTypes": "gpu",
    "SlurmdParameters": "config_overrides",
    "MpiDefault": "none",
    "SwitchType": "switch/none",
    "MailProg": "/bin/true",
    # 1: a node that fell silent comes back by itself, one that was set down does not.
    "ReturnToService": 1,
    "JobRequeue": 1,
    # How long a dead node is waited for at each call, so most of the time until it is called down.
    "MessageTimeout": 3,
    "CompleteWait": 0,
    "InactiveLimit": 0,
    # A step tells of its end for 60 s while the controller is away; a node that lost patience sooner would be drained.
    "UnkillableStepTimeout": 180,
    "SlurmctldDebug": "verbose",
    "SlurmdDebug": "verbose",
}


def _short_folder() -> str:
    """The system's temporary folder, unless its name would make the paths of sockets too long."""
    return tempfile.gettempdir() if len(tempfile.gettempdir()) < 40 else "/tmp"


def _outside_of_slurm(environment: Mapping[str, str]) -> dict[str, str]:
    prefixes = ("SLURM", "SBATCH_", "SALLOC_", "SRUN_", "SQUEUE_", "SINFO_", "SCANCEL_")
    return {key: value for key, value in environment.items() if not key.startswith(prefixes)}


def _reserved_port() -> socket.socket:
    """A port that nobody listens on, promised to no other cluster on this machine for as long as the socket is open.

    The promise is a name without a file, so that it ends with its process; the port itself is left free for the daemon.
    """
    for number in random.SystemRandom().sample(PORTS, 100):
        promise = socket.socket(socket.AF_UNIX)
        try:
            promise.bind(f"\0slurm-test-port-{number}")
            with socket.socket() as listener:
                listener.bind(("", number))
        except OSError:
            promise.close()
        else:
            return promise
    raise RuntimeError(f"no free port found between {PORTS.start} and {PORTS.stop}")


def _number(port: socket.socket) -> int:
    return int(port.getsockname().decode().rsplit("-", 1)[1])


def _host() -> tuple[str, bool]:
    """This machine's name, and whether Slurm can be told to listen on loopback only.

    Told so, it listens where the host's name leads. That must be 127.0.0.1: where it is 127.0.1.1, srun listens there, but a step answers
    to where srun called from, 127.0.0.1. Otherwise Slurm listens on every address, behind munge's key.
    """
    name = socket.gethostname()
    with contextlib.suppress(OSError):
        return name.split(".")[0], socket.gethostbyname(name) == "127.0.0.1"
    return name.split(".")[0], False


def _job(line: str) -> Job:
    id, job, name, partition, state, reason, nodes, restarts, code = line.split(UNIT)[: len(JOB_FIELDS)]
    return Job(id, job, name, partition, state, reason, nodes, int(restarts), int(code))


def _living_processes() -> dict[int, int]:
    """Every process and its parent. A zombie is dead: whoever adopted it may take seconds to notice."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, parent = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
            if state not in "ZX":
                parents[int(folder.name)] = int(parent)
    return parents


def _with_descendants(processes: list[int], parents: Mapping[int, int]) -> list[int]:
    found = dict.fromkeys(processes)
    while children := [process for process, parent in parents.items() if parent in found and process not in found]:
        found |= dict.fromkeys(children)
    return list(found)


def _mark(directory: Path) -> bytes:
    """What the environment of all that belongs to a cluster has: the daemons, the jobs, and the programs that talk to it."""
    return f"SLURM_CONF={directory / 'slurm.conf'}".encode()


def _environment(process: int) -> set[bytes]:
    """What it was started with."""
    try:
        return set(Path(f"/proc/{process}/environ").read_bytes().split(b"\0"))
    except OSError:
        return set()


def _is_step_manager(process: int, logs: set[str]) -> bool:
    """One of Slurm's slurmstepd that writes to one of these logs; neither its command line nor its environment names its node."""
    try:
        if Path(f"/proc/{process}/comm").read_text().strip() != "slurmstepd":
            return False
        return any(os.readlink(file) in logs for file in Path(f"/proc/{process}/fd").iterdir())
    except OSError:
        return False


def _none_left(processes: list[int]) -> bool:
    """Kills them; true where there were none."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    return not processes


def _guard(directory: Path) -> None:
    """Waits until the other end of its input is closed, by `stop` or by a death, and leaves nothing of the cluster."""

    def ended() -> bool:
        parents = _living_processes()
        return _none_left(_with_descendants([process for process in parents if _mark(directory) in _environment(process)], parents))

    sys.stdin.read()
    wait_for(ended, 20, f"the end of what belongs to {directory}")
    shutil.rmtree(directory)


if __name__ == "__main__":
    _guard(Path(sys.argv[1]))
