"""Studies on a real Slurm that preempts, loses nodes and jobs, and dies: no run is lost, none is run twice, and no number changes."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ablate.claim import owner_of, read_status
from ablate.files import read_json, read_metrics, read_object, read_yaml
from ablate.runs import find_run, run_hash
from ablate.sweep.errors import logs_of
from ablate.sweep.slurm import batches
from tests.cluster import Cluster, wait_for
from tests.command import Command
from tests.conftest import SHORT

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("slurm")]

STEPS = 64
TINY = [*SHORT[1:], f"train.tokens={STEPS * 256}", "checkpoint.every_seconds=0.3", "imports=[told_norm]"]

MODULE = '''
import time
from pathlib import Path

import torch

from ablate.model.norm import NORM, Gain, RMSNorm
from ablate.registry import Positive


@NORM.register("told")
class Told(RMSNorm):
    """RMSNorm that does what files in the working directory say: `slow` is a second a step, and its own mark is code to execute."""

    def __init__(self, dim: int, *, eps: Positive, weight: Gain, mark: str):
        super().__init__(dim, eps=eps, weight=weight)
        self.mark = mark

    def forward(self, x_D):
        if torch.is_grad_enabled() and x_D.device.type != "meta":
            if Path("slow").exists():
                time.sleep(0.2)
            if Path(self.mark).exists():
                exec(Path(self.mark).read_text())
        return super().forward(x_D)
'''
"""A norm of the user's own, in the folder where a sweep is asked for."""

RAISE = "raise ArithmeticError('the cause')"
HOARD = "hoard = bytearray(b'1') * 1_500_000_000; time.sleep(30)"
SAVED_SECONDS = 8
"""Until the controller has what was submitted on disk."""
VOLATILE = ("seconds", "tokens_per_second", "flop_utilisation")


def write_norm(folder: Path) -> None:
    """Our norm, with `--config-dir mine`."""
    own = folder / "mine" / "norm"
    own.mkdir(parents=True)
    (folder / "told_norm.py").write_text(MODULE)
    (own / "told.yaml").write_text("kind: told\neps: 1e-5\nweight: plain\nmark: whole\n")


class Study:
    """A folder with a module of its own, a study that is asked for there, and the cluster where it runs."""

    def __init__(self, folder: Path, cluster: Cluster, cache_dir: Path) -> None:
        self.folder, self.cluster = folder, cluster
        self.results = folder / "results"
        self.place = self.results / "study"
        self._common = [f"cache_dir={cache_dir}", f"results_dir={self.results}"]
        self.commands: list[Command] = []
        write_norm(folder)

    # --- what a person does

    def start(self, *words: str, **environment: str) -> Command:
        """A command, which may take its time."""
        out = self.folder / f"command{len(self.commands)}.txt"
        self.commands.append(Command(words, self.folder, {**self.cluster.environment, **environment}, out))
        return self.commands[-1]

    def ablate(self, *words: str) -> str:
        return self.start(*words).end()

    def words(self, *overrides: str, **launcher: Any) -> list[str]:
        """A sweep of our norm on Slurm, called `study`."""
        options = {"timeout_min": 30, "gpus_per_node": 1, **launcher}
        told = ["hydra/launcher=slurm", *(f"hydra.launcher.{key}={value}" for key, value in options.items()), "study=study"]
        return ["--config-dir", "mine", "-m", "norm=told", *overrides, *TINY, *self._common, *told]

    def write(self, name: str, content: str = "") -> None:
        """A file that says something to the norm, whole at once."""
        (self.folder / f".{name}").write_text(content)
        (self.folder / f".{name}").rename(self.folder / name)

    def remove(self, name: str) -> None:
        (self.folder / name).unlink()

    # --- what there is

    def cells(self) -> dict[str, dict[str, Any]]:
        """The runs of the plan by what tells them apart: the mark, or the seed where all have one mark."""
        cells = read_object(self.place / "plan.json").get("cells", [])
        return {next((w[10:] for w in cell["overrides"] if w.startswith("norm.mark=")), str(cell["seed"])): cell for cell in cells}

    def run(self, name: str) -> Path:
        digest = self.cells()[name]["hash"]
        return find_run(self.results, digest) or self.results / "runs" / digest

    def state(self, name: str) -> str:
        return str(read_status(self.run(name)).get("state", "new"))

    def starts(self, name: str) -> int:
        return len(read_json(self.run(name) / "environment.json") or [])

    def step(self, name: str) -> int:
        return max((row["step"] for row in read_metrics(self.run(name) / "metrics.jsonl")), default=0)

    def job(self, name: str) -> str:
        """The last job of a run, as scancel takes it."""
        digest = self.cells()[name]["hash"]
        batch = [batch for batch in batches(self.place) if digest in batch["cells"]][-1]
        return f"{batch['job']}_{batch['cells'].index(digest)}" if len(batch["cells"]) > 1 else str(batch["job"])

    def jobs(self) -> list[str]:
        """The runs of this study that are in the queue or run, a word for each job."""
        names = {batch["name"] for batch in batches(self.place)}
        return [job.id for job in self.cluster.jobs() if job.name in names and job.state in ("PENDING", "RUNNING")]

    def screen(self, name: str) -> str:
        """What all jobs of a run have said."""
        return "\n".join(path.read_text() for path in logs_of(self.place, self.cells()[name]["hash"]))

    def process(self, name: str) -> int:
        """Of the run, which must be running."""
        owner = owner_of(self.run(name) / "claim")
        assert owner is not None, self.describe()
        return int(owner["pid"])

    # --- waiting

    def wait(self, condition: Callable[[], Any], what: str, timeout: float = 180) -> Any:
        try:
            return wait_for(condition, timeout, what)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self.describe()}") from None

    def wait_for_step(self, step: int, *names: str) -> None:
        self.wait(lambda: all(self.step(name) >= step for name in names), f"step {step} of {', '.join(names)}")

    def wait_for_state(self, state: str, *names: str) -> None:
        self.wait(lambda: all(self.state(name) == state for name in names), f"{', '.join(names)} {state}")

    def describe(self) -> str:
        """What a failed test should show."""
        commands = [command.output for command in self.commands]
        states = [f"{name} {self.state(name)} step {self.step(name)} starts {self.starts(name)}" for name in self.cells()]
        logs = [f"{path.name}:\n{path.read_text()[-1500:]}" for path in sorted(self.place.glob("batches/*/*_log.*"))]
        return "\n".join([*commands, *states, *logs, self.cluster.describe()])


@pytest.fixture
def study_on(cache_dir: Path, tmp_path: Path) -> Iterator[Callable[[Cluster], Study]]:
    """A study on a cluster, in this test's folder; nothing that it started outlives the test."""
    made: list[Study] = []

    def make(cluster: Cluster) -> Study:
        made.append(Study(tmp_path, cluster, cache_dir))
        return made[-1]

    yield make
    for study in made:
        for command in study.commands:
            command.kill()


@pytest.fixture
def study(study_on: Callable[[Cluster], Study], cluster: Cluster) -> Study:
    return study_on(cluster)


@pytest.fixture
def small_disk() -> Iterator[Callable[[Path], None]]:
    """Puts a file system of a few MB at a folder; where that is not allowed a test is skipped, but not in CI."""
    places: list[Path] = []

    def put(place: Path) -> None:
        place.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", place], capture_output=True).returncode:
            pytest.skip("no file system can be mounted here")
        places.append(place)

    yield put
    for place in places:
        subprocess.run(["umount", "--lazy", place], check=True)


def fill(path: Path) -> None:
    """Until there is no byte left."""

    def write() -> None:
        with path.open("ab", buffering=0) as file:
            while file.write(bytes(4096)):
                pass

    with pytest.raises(OSError, match="No space left"):
        write()


def content(directory: Path) -> dict[str, tuple[bytes, int]]:
    """Every file and when it was written."""
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in directory.iterdir()}


def rows(directory: Path) -> list[dict[str, Any]]:
    """The metrics, less what depends on time."""
    return [{key: value for key, value in row.items() if key not in VOLATILE} for row in read_metrics(directory / "metrics.jsonl")]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Callable[[int], Path]:
    """The run of a seed that nothing happened to. Marks move no number."""
    root = tmp_path_factory.getbasetemp()
    cache = (root if worker_id == "master" else root.parent) / "cache"
    known: dict[int, Path] = {}

    def run(seed: int) -> Path:
        if seed not in known:
            folder = tmp_path_factory.mktemp("unbroken")
            write_norm(folder)
            words = ["--config-dir", "mine", "norm=told", f"seed={seed}", *TINY, f"cache_dir={cache}", f"results_dir={folder}/results"]
            Command(words, folder, os.environ, folder / "out.txt").end()
            [known[seed]] = (folder / "results" / "runs").iterdir()
        return known[seed]

    return run


def check_whole(study: Study, unbroken: Callable[[int], Path], *names: str) -> None:
    """These runs, or all, are done, each step was taken once, the label is that of the plan, and the numbers are those of unbroken runs."""
    cells = study.cells()
    assert len({cell["hash"] for cell in cells.values()}) == len(cells)
    for name in names or cells:
        directory, cell = study.run(name), cells[name]
        assert study.state(name) == "done", study.describe()
        identity = read_object(directory / "identity.json")
        assert run_hash(identity) == cell["hash"] == directory.name.rpartition("-")[2]
        assert name in (identity["norm"]["mark"], str(identity["init_seed"]))
        assert [row["step"] for row in rows(directory) if "loss" in row] == list(range(1, STEPS + 1))
        reference = unbroken(cell["seed"])
        assert rows(directory) == rows(reference)
        assert (directory / "model.safetensors").read_bytes() == (reference / "model.safetensors").read_bytes()


def test_a_preempted_run_saves_gives_way_and_goes_on(study: Study, unbroken: Callable[[int], Path]) -> None:
    study.write("slow")
    study.ablate(*study.words("seed=0", follow="false"))
    study.wait_for_step(3, "0")
    node = study.cluster.job(study.job("0")).nodes
    study.cluster.submit("true", "--partition=high", "--gres=gpu:4", f"--nodelist={node}")
    study.wait_for_state("stopped", "0")
    assert read_status(study.run("0"))["reason"] == "SIGUSR2"
    study.remove("slow")
    study.wait_for_state("done", "0")
    check_whole(study, unbroken)
    assert study.starts("0") == 2


def test_runs_that_were_killed_cancelled_or_broken(
    study_on: Callable[[Cluster], Study], cluster_with: Callable[..., Cluster], unbroken: Callable[[int], Path]
) -> None:
    """In arrays of at most three."""
    study = study_on(cluster_with(max_array_size=3))
    study.write("slow")
    study.ablate(*study.words("norm.mark=whole,killed,cancelled,raising,hoarding", mem_gb=1))
    assert [len(batch["cells"]) for batch in batches(study.place)] == [3, 2, 0]
    study.wait_for_step(3, "whole", "killed", "cancelled", "raising", "hoarding")
    jobs = {name: study.job(name) for name in study.cells()}
    os.kill(study.process("killed"), signal.SIGKILL)
    study.cluster.run("scancel", jobs["cancelled"], check=True)
    study.write("raising", RAISE)
    study.write("hoarding", HOARD)
    study.wait_for_state("crashed", "raising")
    study.remove("slow")
    for name, state in {
        "killed": "FAILED",
        "raising": "FAILED",
        "cancelled": "CANCELLED",
        "hoarding": "FAILED",
        "whole": "COMPLETED",
    }.items():
        study.cluster.wait_for_state(jobs[name], state, timeout=60)
    study.wait_for_state("done", "killed", "cancelled")
    check_whole(study, unbroken, "whole", "killed", "cancelled")
    study.cluster.wait_until_idle()  # after the second of the jobs that go on with the study
    assert (study.run("raising") / "error.txt").read_text().splitlines()[-1] == "ArithmeticError: the cause"
    assert {name: study.starts(name) for name in jobs} == {"whole": 1, "killed": 2, "cancelled": 2, "raising": 1, "hoarding": 1}
    [line] = [line for line in study.ablate("status", "study").splitlines() if line.startswith("hoarding")]
    assert line.split()[-1] == "oom"
    study.remove("raising")
    assert "submitted 1 runs" in study.ablate("retry", "study", "--failed", "crash")
    study.wait_for_state("done", "raising")
    check_whole(study, unbroken, "raising")


def test_a_cancelled_study_goes_on_what_the_controller_forgot_is_submitted_again_and_what_it_remembers_is_not(
    study_on: Callable[[Cluster], Study], cluster_with: Callable[..., Cluster], unbroken: Callable[[int], Path]
) -> None:
    cluster = cluster_with(nodes=1)
    study = study_on(cluster)
    words = study.words("seed=0,1", gpus_per_node=4)  # one runs, one waits
    study.write("slow")
    state, before = cluster.directory / "state", study.folder / "state"
    shutil.copytree(state, before)
    study.ablate(*words)
    study.wait_for_step(3, "0")
    assert "3 jobs cancelled" in study.ablate("cancel", "study")  # with the one that would go on
    cluster.wait_until_idle()
    assert (study.starts("0"), study.starts("1")) == (1, 0)
    words.append("hydra.launcher.follow=false")
    study.ablate(*words)
    cluster.crash_controller()
    shutil.rmtree(state)
    shutil.copytree(before, state)  # as if it had died before it saved, which it does every few seconds
    cluster.start_controller()
    lost = study.job("0").partition("_")[0]
    assert not cluster.jobs()
    cluster.wait(lambda: int(cluster.submit("true")) >= int(lost), 30, "another job of that number")
    study.wait(lambda: not cluster.processes("n1"), "the end of what nobody knows")
    study.ablate(*words)
    submitted = time.monotonic()
    study.wait_for_state("running", "0")
    cluster.wait(lambda: time.monotonic() - submitted > SAVED_SECONDS, 30, "the controller's next save")
    cluster.crash_controller()
    assert "the queue is not known" in study.ablate("status", "study")
    study.remove("slow")
    study.wait_for_state("done", "0")
    cluster.start_controller()
    assert "2 of 2 runs are done" in study.ablate(*words, "wait=true")
    check_whole(study, unbroken)
    assert study.starts("1") == 1


def test_the_run_of_a_lost_node_goes_on_elsewhere_and_that_of_a_silent_one_is_left_to_it(
    study_on: Callable[[Cluster], Study], cluster_with: Callable[..., Cluster], unbroken: Callable[[int], Path]
) -> None:
    cluster = cluster_with(nodes=4)
    study = study_on(cluster)
    study.write("slow")
    study.ablate(*study.words("seed=0,1", exclusive="true", follow="false"))
    study.wait_for_step(3, "0", "1")
    crashed, hung = (cluster.job(study.job(name)).nodes for name in "01")
    process = study.process("1")
    cluster.crash_node(crashed)
    cluster.hang_node(hung)
    study.wait(lambda: study.starts("0") == 2, "a second start of the run of the lost node")
    study.wait(lambda: f"is being run by process {process}" in study.screen("1"), "a second job that leaves the run to the first")
    study.remove("slow")
    study.wait_for_state("done", "0", "1")
    check_whole(study, unbroken)
    assert (study.starts("0"), study.starts("1")) == (2, 1)
    cluster.wait_for_state(study.job("1"), "COMPLETED", timeout=60)


def test_a_run_that_is_preempted_by_sigterm_alone_goes_on(
    study_on: Callable[[Cluster], Study], cluster_with: Callable[..., Cluster], unbroken: Callable[[int], Path]
) -> None:
    study = study_on(cluster_with(send_user_signal=False, nodes=1))
    study.write("slow")
    study.ablate(*study.words("seed=0", follow="false"))
    study.wait_for_step(3, "0")
    study.cluster.submit("true", "--partition=high", "--gres=gpu:4")
    study.wait_for_state("stopped", "0")
    assert read_status(study.run("0"))["reason"] == "SIGTERM"
    study.remove("slow")
    study.wait_for_state("done", "0")
    check_whole(study, unbroken)
    assert study.starts("0") == 2


def test_a_run_that_is_longer_than_its_job_saves_ahead_of_the_limit_and_goes_on(study: Study, unbroken: Callable[[int], Path]) -> None:
    """Slurm sends the signal 15 s before the limit or up to half a minute sooner: a slow machine may need more than two jobs."""
    study.write("slow")
    study.ablate(*study.words("seed=0", follow="false", timeout_min=1, signal_delay_s=15))
    stops: dict[float, int] = {}

    def ended() -> bool:
        status = read_status(study.run("0"))
        if status.get("state") == "stopped":
            assert status["reason"] == "SIGUSR2"
            stops[status["time"]] = status["step"]
        return status.get("state") == "done"

    study.wait(lambda: ended() or stops, "the first signal")
    study.remove("slow")
    study.wait(ended, "the end", timeout=300)
    check_whole(study, unbroken)
    assert stops
    assert study.starts("0") == len(stops) + 1
    assert re.findall(r"resumed at step (\d+)", (study.run("0") / "log.txt").read_text()) == [str(step) for step in stops.values()]


def test_two_controllers_after_one_that_died_submit_each_run_once_and_queued_runs_keep_their_code(
    study: Study, unbroken: Callable[[int], Path]
) -> None:
    words = study.words("seed=0,1", follow="false", additional_parameters="{hold:true}")
    slow = study.folder / "bin"
    slow.mkdir()
    (slow / "sbatch").write_text("#!/bin/sh\necho $$ > asked\nexec sleep 1000\n")
    (slow / "sbatch").chmod(0o755)
    first = study.start(*words, PATH=f"{slow}:{study.cluster.environment['PATH']}")
    process = int(study.wait(lambda: (study.folder / "asked").exists() and (study.folder / "asked").read_text(), "sbatch"))
    first.kill()
    os.kill(process, signal.SIGKILL)
    assert set(study.cells()) == {"0", "1"}
    assert not study.jobs()
    assert "invalid partition" in study.start(*words, "hydra.launcher.partition=nowhere").end(2)
    commands = [study.start(*words) for _ in range(2)]
    assert sorted("submitted 2 runs" in command.end() for command in commands) == [False, True]
    assert len(study.jobs()) == 2
    module = study.folder / "told_norm.py"
    module.write_text(module.read_text().replace("return super().forward(x_D)", "return 2 * super().forward(x_D)"))
    assert study.ablate("status", "study").count(" held ") == 2
    jobs = [study.job(name) for name in "01"]
    study.cluster.run("scontrol", "release", *jobs, check=True)
    assert "nothing to submit" in study.ablate(*words, "wait=true")
    check_whole(study, unbroken)
    before = content(study.run("0"))
    study.cluster.run("scontrol", "requeue", jobs[0], check=True)
    study.wait(lambda: (job := study.cluster.job(jobs[0])).restarts == 1 and job.state == "COMPLETED", "a second end")
    assert content(study.run("0")) == before


def test_a_run_on_a_full_disk_says_so_and_goes_on_when_there_is_room(
    study: Study, unbroken: Callable[[int], Path], small_disk: Callable[[Path], None]
) -> None:
    small_disk(study.results)
    study.write("slow")
    words = study.words("seed=0", follow="false")
    study.ablate(*words)
    study.wait_for_step(3, "0")
    fill(study.results / "filler")
    study.cluster.wait_for_state(study.job("0"), "FAILED", timeout=60)
    assert study.state("0") == "crashed", study.describe()
    (study.results / "filler").unlink()
    assert "crash: OSError: [Errno 28] No space left on device" in study.start("wait", "study").end(1)
    study.remove("slow")
    study.ablate(*words)
    study.wait_for_state("done", "0")
    check_whole(study, unbroken)


def test_the_second_stage_of_a_study_follows_by_itself(study: Study) -> None:
    told = {"design": "grid", "axes": {}, "set": ["norm=told"], "blocks": [1]}
    told |= {"question": "Does it go on?", "tuning": {"lr": [5e-3, 1e-2, 2e-2], "seeds": [0], "extend": 0}}
    study.write("study.yaml", yaml.safe_dump(told))
    words = study.words("sweep=study.yaml")
    study.ablate(*(word for word in words if word not in ("-m", "norm=told", "study=study") and not word.startswith("optim.lr")))
    study.wait(lambda: list(study.results.glob("runs/*-s1-*")), "a run of the second stage")
    study.wait(lambda: [read_status(run).get("state") for run in study.results.glob("runs/*")] == ["done"] * 4, "the end")
    losses = {
        read_yaml(run / "config.yaml")["optim"]["lr"]: read_json(run / "summary.json")["eval_loss"]
        for run in study.results.glob("runs/*-s0-*")
    }
    [second] = study.results.glob("runs/*-s1-*")
    assert read_yaml(second / "config.yaml")["optim"]["lr"] == min(losses, key=lambda rate: losses[rate])


def test_a_job_of_two_tasks_is_one_run(study: Study, unbroken: Callable[[int], Path]) -> None:
    prolog = study.folder / "prolog"
    prolog.write_text("#!/bin/sh\necho export SLURM_JOB_NODELIST=127.0.0.1\necho export GLOO_SOCKET_IFNAME=lo\n")  # no name leads to n1
    prolog.chmod(0o755)
    study.ablate(*study.words("seed=0", tasks_per_node=2, srun_args=f"['--task-prolog={prolog}']", follow="false"))
    study.wait_for_state("done", "0")
    [start] = read_json(study.run("0") / "environment.json")
    assert start["processes"] == 2
    one, two = ([row["loss"] for row in rows(directory) if "loss" in row] for directory in (unbroken(0), study.run("0")))
    assert two == pytest.approx(one, rel=1e-5)
