"""board: a study as its folder tells it. Nothing is composed: what is read is the manifest and the directories of the runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ablate.errors import ConfigError
from ablate.files import read_object, read_yaml
from ablate.sweep.launchers import Launcher, launcher_of
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


def read_board(study_dir: Path) -> Board:
    manifest: dict[str, Any] = read_object(study_dir / "plan.json")
    told = read_yaml(study_dir / "study.yaml")
    if not manifest or told is None:
        raise ConfigError.at(str(study_dir), "has no plan that can be read: the command that made the study writes it anew")
    entries = [
        Entry(cell["hash"], Path(cell["directory"]), cell["arm"], cell["stage"], cell["lr"], cell["seed"], cell["steps"])
        for cell in manifest["cells"]
    ]
    return Board(study_dir, launcher_of(told["launcher"]), entries, len(manifest["arms"]), len(manifest["blocks"]), manifest["later"])
