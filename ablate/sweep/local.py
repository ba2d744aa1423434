"""local: a bounded pool of processes on this machine. It shares out threads and GPUs, and its runs end when it does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from ablate.claim import owner_of, read_status
from ablate.files import read_object
from ablate.sweep.launchers import Local
from ablate.sweep.plan import Cell, state_of
from ablate.sweep.worker import COME_BACK, PARENT

POLL_SECONDS = 0.2
CANCEL = "cancel"
"""A claim in the folder of a study: while a process holds it no run is started, and those that run are asked to stop."""


@dataclass(frozen=True)
class Slot:
    """What one worker has of the machine."""

    threads: int
    gpu: str | None  # an entry of CUDA_VISIBLE_DEVICES


def slots(options: Local, cores: int, gpus: Sequence[str]) -> list[Slot]:
    """A slot for each worker: beside GPUs so many on each, else one thread each on so many cores."""
    if gpus:
        places = [gpu for _ in range(options.runs_per_gpu) for gpu in gpus]
        count = min(options.workers or len(places), len(places))
        return [Slot(options.threads or max(1, cores // count), gpu) for gpu in places[:count]]
    threads = options.threads or 1
    return [Slot(threads, None)] * (options.workers or max(1, cores // threads))


def here() -> tuple[int, list[str]]:
    """The cores that this process may use, and its GPUs."""
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    return cores, visible.split(",")[:count] if visible else [str(index) for index in range(count)]


class Interrupted(Exception):
    """A signal, or `ablate cancel`, ended the pool; the runs have saved and stopped."""


class Pool:
    """Runs cells, each in a process of its own, so many at a time."""

    def __init__(self, study_dir: Path, code: Path, places: Sequence[Slot], say: Callable[[str], None]) -> None:
        self._study_dir, self._code, self._say = study_dir, code, say
        self._free = list(places)
        self._busy: dict[subprocess.Popen[bytes], tuple[Cell, Slot, float]] = {}
        self._asked: str | None = None

    def run(self, cells: Sequence[Cell], log_dir: Path, fail_fast: bool) -> None:
        """Returns when all have ended, however they did; raises Interrupted after a signal or a cancel, once the runs have saved."""
        waiting, total, ended = list(cells), len(cells), 0
        log_dir.mkdir(parents=True, exist_ok=True)
        with self._signals():
            while self._busy or (waiting and not self._asked):
                if not self._asked and owner_of(self._study_dir / CANCEL) is not None:
                    self._ask(CANCEL, signal.SIGTERM)
                while waiting and self._free and not self._asked:
                    self._start(waiting.pop(0), log_dir)
                for process in [process for process in self._busy if process.poll() is not None]:
                    ended += 1
                    cell = self._end(process, f"[{ended}/{total}]")
                    if fail_fast and state_of(cell.directory) not in ("done", "failed"):
                        waiting.clear()
                time.sleep(POLL_SECONDS)
        if self._asked:
            raise Interrupted(self._asked)

    def _start(self, cell: Cell, log_dir: Path) -> None:
        slot = self._free.pop(0)
        environment = {
            **os.environ,
            PARENT: str(os.getpid()),
            "OMP_NUM_THREADS": str(slot.threads),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(self._code), os.environ.get("PYTHONPATH")])),
            **({"CUDA_VISIBLE_DEVICES": slot.gpu} if slot.gpu is not None else {}),
        }
        command = [sys.executable, "-m", "ablate.sweep.worker", str(self._study_dir), cell.digest]
        with open(log_dir / f"{cell.digest}.log", "ab") as log:
            process = subprocess.Popen(  # in a session of its own: Ctrl-C reaches it through us alone
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd=self._code, start_new_session=True
            )
        self._busy[process] = (cell, slot, time.monotonic())

    def _end(self, process: subprocess.Popen[bytes], count: str) -> Cell:
        cell, slot, started = self._busy.pop(process)
        self._free.append(slot)
        state = state_of(cell.directory)
        if process.returncode == COME_BACK and state == "running":
            state = "owned by another process"
        elif state == "new":
            state = "not started"
        self._say(f"{count} {state:<9} {cell.directory.name}  {outcome(cell)}{time.monotonic() - started:.0f} s")
        return cell

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGINT and SIGTERM go on to the runs, which save and stop."""
        before: dict[int, Any] = {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        again = self._asked not in (None, CANCEL)
        self._ask(signal.Signals(number).name, signal.SIGKILL if again else signal.SIGTERM)

    def _ask(self, who: str, number: signal.Signals) -> None:
        """Nothing more is started, and what runs gets the signal."""
        if not self._asked:
            self._say(f"{who}: {len(self._busy)} runs save and stop; the same command goes on")
        self._asked = who
        for process in self._busy:
            process.send_signal(number)


def outcome(cell: Cell) -> str:
    """The loss of a finished run, or why there is none."""

    status = read_status(cell.directory)
    if status.get("state") == "done":
        loss = read_object(cell.directory / "summary.json").get("eval_loss")
        return f"loss {loss:.4f}  " if isinstance(loss, int | float) else ""
    return f"{status['reason']}: {status.get('detail')}  " if status.get("reason") else ""
