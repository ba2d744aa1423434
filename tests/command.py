"""`python -m ablate` in a process of its own that need not load PyTorch, which takes seconds: a fork of one that has."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ablate.cli import main

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["ablate.sweep.command", "ablate.sweep.verbs", "ablate.train.launch", "hydra.main", "submitit", "torch._dynamo", "torch.distributed"]
)


class Command:
    """An `ablate` that was started: what it has said so far lies in `out`, and a signal that ended it is a negative exit code."""

    def __init__(self, words: Sequence[str], folder: Path, environment: Mapping[str, str], out: Path) -> None:
        self._out = out
        self._process = FORKS.Process(target=_ablate, args=(list(words), str(folder), dict(environment), str(out)))
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def output(self) -> str:
        return self._out.read_text() if self._out.exists() else ""

    @property
    def code(self) -> int | None:
        """None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float = 240) -> int:
        """Its exit code, once it has ended."""
        self._process.join(timeout)
        assert self.code is not None, f"it still runs after {timeout} s\n{self.output}"
        return self.code

    def end(self, code: int = 0, timeout: float = 240) -> str:
        """Its output, once it has ended with that code."""
        assert self.wait(timeout) == code, self.output
        return self.output

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()
        self._process.join()


def _ablate(words: list[str], folder: str, environment: Mapping[str, str], out: str) -> None:
    output = os.open(out, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path.insert(0, folder)
    sys.exit(main(words))
