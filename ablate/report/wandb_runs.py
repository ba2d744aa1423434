"""wandb_runs: runs as W&B keeps them, in the frames of run directories.

What a mirror did not send is not there: rows between its `every_steps`, where a run ran, its commit and the content of its corpus. The
plan of a study is not there either; arms and tuning are made of the configs, as for any runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ablate.errors import ConfigError
from ablate.files import flat
from ablate.report.grouping import study_of
from ablate.report.load import WANDB, Loaded, loaded, without_copies
from ablate.report.records import Record, curve_of, number

STATES = {"running": "running", "crashed": "crashed", "killed": "interrupted", "failed": "interrupted"}
"""State at W&B -> ours, of a run whose mirror did not send its end."""


def load_wandb(place: str, baseline: str | None = None) -> Loaded:
    """ENTITY/PROJECT or ENTITY/PROJECT/GROUP; raises ConfigError when W&B does not give it, or when there is no run in it."""
    words = place.split("/")
    if len(words) not in (2, 3) or not all(words):
        raise ConfigError.at(WANDB + place, f"must be {WANDB}ENTITY/PROJECT or {WANDB}ENTITY/PROJECT/GROUP")
    records = _records("/".join(words[:2]), words[2] if len(words) == 3 else None, WANDB + place)
    if not records:
        raise ConfigError.at(WANDB + place, "has no runs")
    kept, notes = without_copies(records)
    meta, roles = study_of(kept, baseline, "wandb", notes, name=words[-1])
    return loaded(meta, roles)


def _records(project: str, group: str | None, asked: str) -> list[Record]:
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import wandb

    try:
        found = wandb.Api().runs(project, filters={"group": group} if group else {}, lazy=False)
        fetched = [(run, list(run.scan_history())) for run in found]
    except Exception as error:  # of many kinds: no account, no such project, no answer
        raise ConfigError.at(asked, f"W&B does not give it: {' '.join(str(error).split())}") from None
    return [record_of(run, rows) for run, rows in fetched]


def record_of(run: Any, rows: Iterable[Mapping[str, Any]]) -> Record:
    """A run of W&B's public API and its history, whole: `scan_history`, since `history` draws a sample."""
    sent = _read(run.summary_metrics)
    state = sent.get("state") or STATES.get(run.state, "interrupted")
    return Record(
        name=f"{run.name}-{run.id}",
        digest=run.id,
        directory=run.url,
        identity={},
        config=_read(flat(run.config)),
        status={"state": state, "reason": sent.get("reason"), "step": sent.get("step"), "tokens": sent.get("tokens")},
        summary=_nested(sent) if "eval_loss" in sent else {},  # without a result W&B's summary is the last row: the seconds of one step
        curve=curve_of(_steps(rows)),
    )


def _steps(rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """With our step, as a number of steps, and without what W&B adds, such as its own step."""
    for row in rows:
        if (step := number(row.get("step"))) is not None:
            yield {**{key: value for key, value in row.items() if not key.startswith("_")}, "step": int(step)}


def _read(values: Mapping[str, Any]) -> dict[str, Any]:
    """Without W&B's own keys; "Infinity" is a number."""
    mine = {key: value for key, value in values.items() if not key.startswith("_")}
    return {key: number(value) if value in ("NaN", "Infinity", "-Infinity") else value for key, value in mine.items()}


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys as the mappings that they were: length_extrapolation.2."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        *parents, last = key.split(".")
        place = found
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    return found
