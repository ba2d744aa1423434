"""errors: of which class the end of a run without a result is, and its last words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from ablate.claim import read_status

Class = Literal["oom", "crash", "node"]

OUT_OF_MEMORY = re.compile(
    r"OutOfMemoryError|MemoryError|can't allocate memory|oom[-_ ]kill|OUT_OF_MEMORY|Out Of Memory|memory limit|exceeded .*memory", re.I
)
"""Of PyTorch, of Python, of Slurm with cgroups, of Slurm without."""

TAIL_BYTES = 20_000


def class_of(directory: Path, study_dir: Path, digest: str) -> Class | None:
    """oom: no memory; crash: an error was raised; node: killed or lost from outside. None of a run that has a result, or never started."""
    state = read_status(directory).get("state")
    if state == "crashed":
        return "oom" if OUT_OF_MEMORY.search(_tail(directory / "error.txt")) else "crash"
    if state == "interrupted":
        return "oom" if any(OUT_OF_MEMORY.search(_tail(path)) for path in logs_of(study_dir, digest)[-1:]) else "node"
    return None


def last_words(directory: Path, study_dir: Path, digest: str) -> str:
    """One line that says why a run has no result."""
    status = read_status(directory)
    kind = class_of(directory, study_dir, digest)
    if status.get("reason"):
        detail = str(status.get("detail", "")).partition(": ")[0]
        return f"{f'{kind}: ' if kind else ''}{status['reason']}: {detail}"
    if kind is not None:
        return {"oom": "oom: it was killed for its memory", "node": "node: it was killed, or its node was"}.get(kind, kind)
    logs = logs_of(study_dir, digest)
    lines = [line for line in _tail(logs[-1]).splitlines() if line.strip()] if logs else []
    return lines[-1].strip() if lines else "not started"


def logs_of(study_dir: Path, digest: str) -> list[Path]:
    """What the processes of a run wrote to the screen, oldest first: of local workers and of Slurm's tasks."""
    from ablate.sweep.slurm import batches

    found: list[Path] = []
    for batch in batches(study_dir):
        if digest not in batch["cells"]:
            continue
        folder = study_dir / "batches" / batch["id"]
        if batch["launcher"] == "local":
            found += folder.glob(f"{digest}.log")
        else:
            index = batch["cells"].index(digest)
            names = [f"*_{index}_*_log.*"] if len(batch["cells"]) > 1 else ["*_log.*"]
            found += sorted(path for name in names for path in folder.glob(name))
    return found


def _tail(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
