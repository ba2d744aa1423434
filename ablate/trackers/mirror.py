"""The training side of a mirror: starts the process, hears its warnings, waits a bounded time at the end. Nothing here raises."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ablate.files import read_object
from ablate.registry import Options

LOG = "tracker.log"
WARNING, RESULT = "warning: ", "mirrored: "
"""How the lines begin in tracker.log that are meant for the handle."""

EXIT_CODES = {"done": 0, "failed": 1, "stopped": 1, "crashed": 1}
"""End state of a run -> exit code of the mirrored run."""

SENT, NOT_SENT, SENT_ELSEWHERE = 0, 1, 3
"""How the process ends; the last: offline, as the server was not to be had."""

NAMES = {"wandb": "W&B", "tensorboard": "TensorBoard"}


@dataclass(frozen=True)
class Job:
    """What the mirror process is told. It goes on until the run ends if `follow`, else it sends what is there."""

    tracker: dict[str, Any]
    parent: int
    follow: bool
    fresh: bool  # no row was there yet
    old_end: float | None  # the time of an end state that an earlier start left: not the end to wait for


def start_mirror(directory: Path, tracker: Options) -> Mirror:
    """Starts the mirror of a run, within milliseconds. config.yaml must be there, and only the rows that a resumed run keeps."""
    mirror = Mirror(directory, tracker)
    mirror.start(follow=True)
    return mirror


class Mirror:
    """The handle of a mirror process. With the tracker `none` there is no process and every call does nothing."""

    def __init__(self, directory: Path, tracker: Options) -> None:
        self.result: str | None = None  # how many rows went where
        self.code: int | None = None  # of the process
        self._directory = directory.resolve()
        self._options = tracker.model_dump()
        self._name = NAMES.get(tracker.kind, tracker.kind)
        self._process: subprocess.Popen[bytes] | None = None
        self._offset = 0
        self._heard = False
        self._problems: list[str] = []

    def start(self, *, follow: bool) -> None:
        if self._options["kind"] == "none":
            return
        status = read_object(self._directory / "status.json")
        old_end = status.get("time") if follow and status.get("state") in EXIT_CODES else None
        job = Job(self._options, os.getpid(), follow, not _size(self._directory / "metrics.jsonl"), old_end)
        root = str(Path(__file__).resolve().parents[2])
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}
        env.pop("WANDB_SERVICE", None)  # the W&B process of the caller, if it has one, is not the mirror's
        command = [sys.executable, "-m", "ablate.trackers", str(self._directory), json.dumps(asdict(job))]
        try:
            with open(self._directory / LOG, "ab") as log:
                self._offset = log.tell()
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=env, start_new_session=True
                )
        except OSError as error:
            self._problems.append(f"the {self._name} mirror did not start ({error}); {cure(self._directory)}")

    @property
    def pid(self) -> int | None:
        """The process and its group; None without one."""
        return None if self._process is None else self._process.pid

    def problem(self) -> str | None:
        """What has gone wrong since the last call, if anything: costs the reading of a few bytes."""
        code = None
        if self._process is not None:
            code = self._process.poll()
            self._read_log()
        if code is not None:
            self.code, self._process = code, None
            if code < 0 or (code > 0 and not self._heard):
                self._problems.append(f"the {self._name} mirror died (see {self._directory / LOG}); {cure(self._directory)}")
        problems, self._problems = self._problems, []
        return "; ".join(dict.fromkeys(problems)) or None

    def finish(self) -> str | None:
        """To be called after the run's end state is written: waits for the mirror, at most finish_timeout_seconds, then kills it."""
        if self._process is None:
            return self.problem()
        return self.wait(float(self._options["finish_timeout_seconds"]))

    def wait(self, seconds: float | None = None) -> str | None:
        """Waits for the process, for ever if `seconds` is None; returns what has gone wrong since `problem`."""
        try:
            if self._process is not None:
                self._process.wait(seconds)
            return self.problem()
        except subprocess.TimeoutExpired:
            heard = self.problem()
            late = f"the {self._name} mirror did not finish within {seconds:g} s; {cure(self._directory)}"
            return f"{heard}; {late}" if heard else late
        finally:
            self._kill()

    def _kill(self) -> None:
        """The process with all that it started; W&B's own service process sees that and ends too."""
        if self._process is not None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                self._process.poll()  # it ended just now
            self.code, self._process = self._process.wait(), None

    def _read_log(self) -> None:
        try:
            with open(self._directory / LOG, "rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.decode(errors="replace").splitlines():
            if line.startswith(WARNING):
                self._heard = True
                self._problems.append(line.removeprefix(WARNING))
            elif line.startswith(RESULT):
                self.result = line.removeprefix(RESULT)


def cure(directory: Path) -> str:
    return f"`python -m ablate sync {shlex.quote(str(directory))}` replays it"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
