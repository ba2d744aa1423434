"""The mirror process: follows a run directory until the run has ended, or its parent is gone, and sends its rows to a tracker."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from filelock import FileLock

from ablate.files import flat, metric_rows, read_object
from ablate.trackers.mirror import EXIT_CODES, NOT_SENT, RESULT, SENT, SENT_ELSEWHERE, WARNING, Job, cure
from ablate.trackers.variants import TRACKER, Context, Row, TrackerError

POLL_SECONDS = 0.5
NICE = 10
SCHEDULER_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
"""What a scheduler sends to all processes of a job before it stops it. It is the run's end that ends its mirror."""

NO_END = 255
"""The exit code for a run that left no end state: killed, or running still when it was replayed."""


def main(argv: list[str]) -> NoReturn:
    """Takes RUN_DIR and a Job as JSON. Leaves at once when all is sent: what libraries want to do at exit may hang."""
    directory, job = Path(argv[0]), Job(**json.loads(argv[1]))
    os.nice(NICE)
    for number in SCHEDULER_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    parent = Parent(job)
    warnings: list[str] = []

    def warn(text: str) -> None:
        warnings.append(text)
        print(f"{WARNING}{' '.join(text.split())}; {cure(directory)}", flush=True)

    try:
        with FileLock(directory / ".tracker.lock"):  # an earlier mirror of this run may still be finishing
            result = mirror(directory, job, parent, warn)
        print(f"{RESULT}{result}", flush=True)
        code = SENT_ELSEWHERE if warnings else SENT
    except TrackerError as error:
        warn(str(error))
        code = NOT_SENT
    except Exception as error:  # of whatever kind: it becomes a warning there, and the run goes on
        warn(f"the {job.tracker['kind']} mirror stopped: {type(error).__name__}: {error}")
        code = NOT_SENT
    os._exit(code)


def mirror(directory: Path, job: Job, parent: Parent, warn: Any) -> str:
    """Sends what is there and what comes; returns how many rows went where."""
    options = TRACKER.options(job.tracker["kind"]).model_validate(job.tracker)
    tracker = TRACKER.build(options, Context(directory, job.fresh, warn))
    target = tracker.open()
    print(f"to {target}, after step {tracker.last_step}", flush=True)
    rows, sent, ended = Rows(directory / "metrics.jsonl", after=tracker.last_step), 0, False
    while not ended:
        ended = not job.follow or parent.gone.is_set() or has_ended(directory, job)  # looked at before the last rows are read
        for row in rows.read(ended):
            if row["step"] % job.tracker["every_steps"] == 0 or any(key.startswith("eval/") for key in row):
                tracker.log(row)
                sent += 1
        if not ended:
            parent.gone.wait(POLL_SECONDS)
    status = read_object(directory / "status.json")
    result = flat({**read_object(directory / "summary.json"), "state": status.get("state"), "reason": status.get("reason")})
    tracker.finish({key: value for key, value in result.items() if value is not None}, EXIT_CODES.get(str(status.get("state")), NO_END))
    return f"{sent} rows to {target}"


def has_ended(directory: Path, job: Job) -> bool:
    status = read_object(directory / "status.json")
    return status.get("state") in EXIT_CODES and (job.old_end is None or status.get("time") != job.old_end)


class Parent:
    """Watches the process that started this one. Once it is gone, this one has finish_timeout_seconds to end, then it is killed."""

    def __init__(self, job: Job) -> None:
        self.gone = threading.Event()
        self._pid, self._seconds = job.parent, float(job.tracker["finish_timeout_seconds"])
        threading.Thread(target=self._watch, daemon=True, name="parent-watch").start()

    def _watch(self) -> None:
        while os.getppid() == self._pid:
            time.sleep(POLL_SECONDS)
        self.gone.set()
        time.sleep(self._seconds)
        os.killpg(os.getpgrp(), signal.SIGKILL)


class Rows:
    """The steps of a metrics file, each once and in rising order, merged from its rows (training, evaluation).

    A step is complete when a later one has begun or the run has ended. The file may be cut in its last line, and be rewritten.
    """

    def __init__(self, path: Path, after: int = -1) -> None:
        self._path, self._last = path, after
        self._inode, self._offset = 0, 0
        self._step: dict[str, Any] = {}

    def read(self, ended: bool) -> Iterator[Row]:
        for row in self._new_rows(ended):
            current = self._step.get("step", self._last)
            if row["step"] > current:
                yield from self._complete()
                self._step = row
            elif self._step and row["step"] == current:
                self._step.update(row)
        if ended:
            yield from self._complete()

    def _complete(self) -> Iterator[Row]:
        if self._step:
            self._last = self._step["step"]
            yield self._step
            self._step = {}

    def _new_rows(self, ended: bool) -> Iterator[dict[str, Any]]:
        try:
            with open(self._path, "rb") as file:
                facts = os.fstat(file.fileno())
                if facts.st_ino != self._inode or facts.st_size < self._offset:  # rewritten by a resume
                    self._inode, self._offset, self._step = facts.st_ino, 0, {}
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return
        whole = len(data) if ended else data.rfind(b"\n") + 1
        self._offset += whole
        yield from metric_rows(data[:whole].splitlines())
