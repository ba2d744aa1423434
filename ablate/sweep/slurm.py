"""slurm: arrays of runs through submitit, and one question to squeue.

Job ids are no identity: Slurm gives one again after its controller died. A submission is a batch with a name of its own, written down
before it is submitted; squeue is asked by that name, and the index in the array says which run it is.
"""

from __future__ import annotations

import getpass
import re
import shlex
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ablate.errors import ConfigError, NotNow
from ablate.files import read_json, write_json
from ablate.sweep.launchers import Slurm
from ablate.sweep.worker import Job

NOT_SLURMS = frozenset(
    {"kind", "timeout_min", "nodes", "mem_gb", "max_queued", "attempts", "follow", "follow_parameters", "tasks_per_node"}
)
"""Options that submitit knows under the same name for every cluster, and ours."""

COMMAND_SECONDS = 60
LOOK_AGAIN_SECONDS = 600
NOT_NOW = re.compile(r"unable to contact|timed out|connection|temporarily|try again|violates", re.I)
"""Of sbatch: its controller is away, or more jobs were submitted than the account may have at once."""
NEXT = "next"
"""In the name of the job that goes on with a study."""


class SlurmError(NotNow):
    """A command of Slurm that failed, as when its controller is away: nothing is known, and nothing is lost."""


class Queued(NamedTuple):
    """A run in the queue."""

    state: str  # PENDING, RUNNING, ...
    reason: str
    job: str  # as scancel takes it

    @property
    def held(self) -> bool:
        return self.state == "PENDING" and "held" in self.reason.lower()


def call(*command: str) -> str:
    """The output of a Slurm command; raises SlurmError."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS)
    except FileNotFoundError:
        raise ConfigError.at("hydra/launcher", f"slurm needs {command[0]}, which is not on this machine; hydra/launcher=local") from None
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{command[0]} did not answer within {COMMAND_SECONDS} s") from None
    if done.returncode:
        raise SlurmError(f"{command[0]}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def batches(study_dir: Path) -> list[dict[str, Any]]:
    """All submissions of a study, oldest first."""
    found = [read_json(path) for path in (study_dir / "batches").glob("*.json")]
    return sorted((batch for batch in found if isinstance(batch, dict)), key=lambda batch: batch["time"])


def queue(study_dir: Path) -> dict[str, Queued]:
    """hash -> its place in the queue, for the runs of a study; `next` for the job that goes on with it. One call of squeue."""
    known = {batch["name"]: batch for batch in batches(study_dir) if batch["launcher"] == "slurm"}
    if not known:
        return {}
    text = call("squeue", "--noheader", "--array", f"--user={getpass.getuser()}", "--format=%F|%K|%T|%j|%r")
    found: dict[str, Queued] = {}
    for line in text.splitlines():
        job, index, state, name, reason = line.split("|", 4)
        batch = known.get(name)
        if batch is None:
            continue
        single = not index.isdigit()
        place = Queued(state, reason, job if single else f"{job}_{index}")
        if batch["cells"] and int(0 if single else index) < len(batch["cells"]):
            found[batch["cells"][0 if single else int(index)]] = place
        elif not batch["cells"]:
            found[NEXT] = place
    return found


def will_follow(queued: Mapping[str, Queued]) -> bool:
    """Whether a job waits to go on with the study. One that runs has looked already, or is the one that asks."""
    return NEXT in queued and queued[NEXT].state == "PENDING"


def limits(options: Slurm) -> tuple[int, int]:
    """The longest array, and how many jobs may still be queued."""
    config = call("scontrol", "show", "config")

    def number(key: str, default: int) -> int:
        found = re.search(rf"^{key}\s*=\s*(\d+)", config, re.MULTILINE)
        return int(found[1]) if found else default

    ours = len(call("squeue", "--noheader", "--array", f"--user={getpass.getuser()}", "--format=%i").split())
    all_jobs = len(call("squeue", "--noheader", "--array", "--format=%i").split())
    room = number("MaxJobCount", 10_000) - all_jobs - 1  # one for the job that follows
    if options.max_queued is not None:
        room = min(room, options.max_queued - ours)
    return number("MaxArraySize", 1001), max(room, 0)


def submit(study_dir: Path, code: Path, digests: Sequence[str], options: Slurm) -> list[str]:
    """Submits runs as arrays, as many as there is room for; returns the ids of the jobs."""
    longest, room = limits(options)
    wanted = list(digests[:room])
    jobs = []
    for part in (wanted[start : start + longest] for start in range(0, len(wanted), longest)):
        jobs.append(_submit_batch(study_dir, code, part, options))
    return jobs


def _submit_batch(study_dir: Path, code: Path, digests: Sequence[str], options: Slurm) -> str:
    batch, path = _new_batch(study_dir, list(digests))
    executor = _executor(path.with_suffix(""), batch["name"], code, options, {})
    with _submitting(), executor.batch():
        jobs = [executor.submit(Job(str(study_dir), digest)) for digest in digests]
    job = str(jobs[0].job_id).partition("_")[0]
    write_json(path, {**batch, "job": job})
    return job


@contextmanager
def _submitting() -> Iterator[None]:
    """What sbatch says when it refuses: of what was asked, or that Slurm does not take it now."""
    from submitit.core.utils import FailedJobError

    try:
        yield
    except FailedJobError as error:
        said = " ".join(str(error).split())
        if NOT_NOW.search(said):
            raise SlurmError(f"sbatch: {said}") from None
        raise ConfigError.at("hydra.launcher", f"sbatch refuses it: {said}") from None


def _new_batch(study_dir: Path, digests: list[str]) -> tuple[dict[str, Any], Path]:
    """Written down before it is submitted: whoever dies in between, squeue still knows it by its name."""
    identity = uuid.uuid4().hex[:8]
    suffix = "" if digests else f"-{NEXT}"
    batch = {
        "id": identity,
        "time": time.time(),
        "launcher": "slurm",
        "cells": digests,
        "job": None,
        "name": f"ablate-{study_dir.name}{suffix}-{identity}",
    }
    path = study_dir / "batches" / f"{identity}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, batch)
    return batch, path


def follow(study_dir: Path, code: Path, jobs: Sequence[str], options: Slurm, job: Any) -> None:
    """Submits the job that goes on with the study once the others have ended; without others, after a while."""
    batch, path = _new_batch(study_dir, [])
    later = {} if jobs else {"begin": f"now+{LOOK_AGAIN_SECONDS}"}
    changed = {"additional_parameters": {**options.additional_parameters, **later}, **options.follow_parameters}
    executor = _executor(path.with_suffix(""), batch["name"], code, options, changed)
    if jobs:
        executor.update_parameters(slurm_dependency=f"afterany:{':'.join(jobs)}")
    with _submitting():
        submitted = executor.submit(job)
    write_json(path, {**batch, "job": str(submitted.job_id)})


def _executor(folder: Path, name: str, code: Path, options: Slurm, changed: dict[str, Any]) -> Any:
    """submitit's executor with the options of the launcher; a job starts in the snapshot of the code."""
    import submitit

    values = {**options.model_dump(), **changed}
    given = {key: value for key, value in values.items() if value is not None and value != [] and value != {} and key not in NOT_SLURMS}
    setup = [*values["setup"], f"cd '{code}'", f"export PYTHONPATH='{code}'${{PYTHONPATH:+:$PYTHONPATH}}"]
    if teardown := given.pop("teardown", None):
        setup.append(f"trap {shlex.quote(chr(10).join(teardown))} EXIT")  # behind the run, its end would be that of the job
    given["additional_parameters"] = {"requeue": True, **values["additional_parameters"]}  # where it is not the cluster's own habit
    executor = submitit.AutoExecutor(folder=folder, cluster="slurm", slurm_max_num_timeout=10_000)
    general = {key: values[key] for key in ("timeout_min", "nodes", "tasks_per_node", "mem_gb") if values[key] is not None}
    try:
        executor.update_parameters(name=name, **general, **{f"slurm_{key}": value for key, value in {**given, "setup": setup}.items()})
    except (ValueError, NameError, TypeError) as error:
        raise ConfigError.at("hydra.launcher", str(error).partition("\n")[0]) from None
    return executor


def cancel(places: Sequence[Queued]) -> None:
    """Takes jobs out of the queue and ends those that run: they save first."""
    for part in _parts([place.job for place in places], 200):
        call("scancel", *part)


def _parts(values: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    for start in range(0, len(values), size):
        yield values[start : start + size]
