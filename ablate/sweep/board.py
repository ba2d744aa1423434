"""board: a study as its folder tells it. Nothing is composed: what is read is the manifest and the directories of the runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock, Timeout
from pydantic import BaseModel, PositiveInt, TypeAdapter, ValidationError

from ablate.errors import ConfigError
from ablate.files import read_json, read_yaml
from ablate.sweep.control import Told
from ablate.sweep.launchers import Launcher, Local, launcher_of
from ablate.sweep.plan import state_of


class Entry(NamedTuple):
    """A run of the manifest."""

    digest: str
    directory: Path
    arm: str
    stage: str
    rate: float
    seed: int
    steps: int


@dataclass(frozen=True)
class Board:
    """The runs that a study has asked for so far; `later`: how many more follow."""

    study_dir: Path
    launcher: Launcher
    entries: list[Entry]
    num_arms: int
    num_blocks: int
    later: int

    def states(self) -> dict[str, str]:
        return {entry.digest: state_of(entry.directory) for entry in self.entries}


class _Cell(BaseModel):
    """What is read of a run in plan.json."""

    hash: str
    directory: Path
    arm: str
    stage: str
    lr: float
    seed: int
    steps: PositiveInt


class _Manifest(BaseModel):
    """What is read of plan.json."""

    cells: list[_Cell]
    arms: list[Any]
    blocks: list[Any]
    later: int


def read_board(study_dir: Path) -> Board:
    """Raises ConfigError when plan.json or study.yaml is absent, broken or cut short."""
    try:
        manifest = _Manifest.model_validate(read_json(study_dir / "plan.json"))
        told = TypeAdapter(Told).validate_python(read_yaml(study_dir / "study.yaml"))
        launcher = launcher_of(told.launcher)
    except (ValidationError, ConfigError):
        raise ConfigError.at(str(study_dir), "has no plan that can be read: the command that made the study writes it anew") from None
    entries = [Entry(cell.hash, cell.directory, cell.arm, cell.stage, cell.lr, cell.seed, cell.steps) for cell in manifest.cells]
    return Board(study_dir, launcher, entries, len(manifest.arms), len(manifest.blocks), manifest.later)


def is_controlled(study_dir: Path) -> bool:
    """Whether a process goes on with the study: it holds the lock (Control._alone) from its plan to its last run."""
    path = study_dir / "lock"
    if not path.exists():
        return False
    try:
        with FileLock(path, timeout=0):
            return False
    except Timeout:
        return True


def is_at_work(study_dir: Path) -> bool:
    """Whether a local study goes on by itself: a process starts its runs, or has left some that run. Of Slurm the queue says more."""
    if is_controlled(study_dir):
        return True
    board = read_board(study_dir)
    return isinstance(board.launcher, Local) and "running" in board.states().values()
