"""worker: one run of a study in a process of its own, from the snapshot of the code and the config in the study's folder.

    python -m ablate.sweep.worker STUDY_DIR HASH

A run looks for its own result first, so that to be started twice, as Slurm does with jobs that it preempted, costs nothing.
"""

from __future__ import annotations

import ctypes
import os
import random
import re
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ablate.claim import STALE_SECONDS, Owned, owner_of, read_status
from ablate.errors import ConfigError
from ablate.files import read_object, read_yaml, write_text
from ablate.runs import Run
from ablate.trackers.variants import DELAY

COME_BACK = 75
PARENT = "ABLATE_CONTROLLER_PID"
REQUEUE_SIGNAL = "SIGUSR2"
"""Slurm sends it ahead of a time limit, and of a preemption where it is set up so: the job asks to be queued again. After SIGTERM Slurm
is asked: a job that it preempts is queued again, and one that somebody cancelled is not."""

BUSY_POLL_SECONDS = 5.0
MOST_STARTS_A_SECOND = 4.0
LONGEST_DELAY_SECONDS = 30.0


class RunEnded(Exception):
    """A run that did not end with a result, so that the scheduler does not call its job a success."""


class Job:
    """What a Slurm task is given: the study and the hash of its run. Importable, so that a pickle of it holds no code."""

    def __init__(self, study_dir: str, digest: str) -> None:
        self.study_dir, self.digest = study_dir, digest

    def __call__(self) -> None:
        code = carry_out(Path(self.study_dir), self.digest)
        signal_name = _stopped_by(Path(self.study_dir), self.digest) if code == COME_BACK else None
        if signal_name == REQUEUE_SIGNAL or (signal_name == "SIGTERM" and is_preempted()):
            requeue()
        if code:
            raise RunEnded(f"the run ended with code {code}: see {run_directory_of(Path(self.study_dir), self.digest)}")

    def checkpoint(self) -> Any:
        """A signal before training has begun: the same again. (submitit calls this, and queues the job again.)"""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def requeue() -> None:
    """Puts this Slurm job back into the queue, as itself."""
    if int(os.environ.get("SLURM_PROCID", "0")) == 0:
        subprocess.run(["scontrol", "requeue", _this_job()], timeout=60, check=True)
    time.sleep(30)  # Slurm ends this process


def is_preempted() -> bool:
    """Whether another job is to have this one's place. It has some time for that, and one that ends within it is not queued again."""
    told = subprocess.run(["scontrol", "show", "job", "--oneliner", _this_job()], timeout=60, capture_output=True, text=True).stdout
    return "JobState=RUNNING" in told and re.search(r"PreemptTime=\d", told) is not None


def _this_job() -> str:
    task = os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{os.environ['SLURM_ARRAY_JOB_ID']}_{task}" if task else os.environ["SLURM_JOB_ID"]


def run_directory_of(study_dir: Path, digest: str) -> Path:
    values = read_yaml(study_dir / "cells" / f"{digest}.yaml")
    if values is None:
        raise ConfigError.at(str(study_dir), f"has no run {digest}")
    return Path(values["directory"])


def _stopped_by(study_dir: Path, digest: str) -> str | None:
    status = read_status(run_directory_of(study_dir, digest))
    return status.get("reason") if status.get("state") == "stopped" else None


def carry_out(study_dir: Path, digest: str) -> int:
    """Trains one run of the study unless it is done; gives the exit code of `ablate`."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    _spread_starts(study_dir)
    from ablate.config import parse
    from ablate.train.distributed import export_slurm_tasks
    from ablate.train.launch import launch

    export_slurm_tasks()
    cell = read_yaml(study_dir / "cells" / f"{digest}.yaml")
    if cell is None:
        raise ConfigError.at(str(study_dir), f"has no run {digest}")
    _go_to(cell["cwd"])
    directory = Path(cell["directory"])
    with _noted(directory):
        cfg = parse(cell["config"])
        while True:
            code = launch(cfg, cell["overrides"], directory=directory)
            # Of several processes each would decide for itself: they leave, and the study goes on with the run later.
            if code != COME_BACK or _num_processes() > 1 or not (_is_owned(directory) and _becomes_free(directory)):
                return code


def _num_processes() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


@contextmanager
def _noted(directory: Path) -> Iterator[None]:
    """An error before training has begun is written down as one in training is: a run that never comes to be is not a mystery."""
    try:
        yield
    except Exception as error:
        if os.environ.get("RANK", "0") == "0" and read_status(directory).get("state") not in ("done", "failed", "crashed"):
            with suppress(Owned, OSError):
                run = Run.open(directory)
                run.set_state("crashed", reason=type(error).__name__, detail=str(error).partition("\n")[0])
                write_text(directory / "error.txt", traceback.format_exc())
                run.close()
        raise


def _go_to(folder: str) -> None:
    """The folder where the study was asked for, if this machine has it: relative paths in a user's own modules mean that."""
    if Path(folder).is_dir():
        os.chdir(folder)


def _spread_starts(study_dir: Path) -> None:
    """Hundreds of runs that begin together do not all knock on the W&B server in one second; training does not wait for it."""
    runs = int(read_object(study_dir / "plan.json").get("to_run", 1))
    os.environ.setdefault(DELAY, f"{random.uniform(0, min(runs / MOST_STARTS_A_SECOND, LONGEST_DELAY_SECONDS)):.1f}")


def _is_owned(directory: Path) -> bool:
    return read_status(directory).get("state") == "running" and owner_of(directory / "claim") is not None


def _becomes_free(directory: Path) -> bool:
    """Whether the run that another process has comes free: on a lost node its claim is seen to be stale within a minute. One that lives
    is left to it."""
    deadline = time.monotonic() + 2 * STALE_SECONDS
    while _is_owned(directory):
        if time.monotonic() > deadline:
            return False
        time.sleep(BUSY_POLL_SECONDS)
    return True


def end_with_parent() -> None:
    """SIGTERM when the controller dies, however it dies, so that the run saves and stops (prctl(2), PR_SET_PDEATHSIG; Linux alone)."""
    parent = os.environ.get(PARENT)
    if parent is None or not sys.platform.startswith("linux"):
        return
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)
    if os.getppid() != int(parent):  # it died before
        sys.exit(COME_BACK)


def main() -> int:
    end_with_parent()
    try:
        return carry_out(Path(sys.argv[1]), sys.argv[2])
    except ConfigError as error:
        print(f"ablate: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
