"""records: what a run has left, from its directory or from elsewhere, and the frames made of it.

Nothing here composes a config or knows a model: reading a study costs no import of torch.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ablate.claim import read_status
from ablate.files import flat, metric_rows, read_json, read_object, read_yaml
from ablate.report.statistics.failures import outcome

MULTIPLES = (1, 2, 4)
"""Of the context of training, in length_extrapolation."""

NUMBERS = (
    *("loss", "bits_per_byte", "tokens", "steps", "seconds", "tokens_per_second", "parameters", "training_flops", "unigram_entropy"),
    *("initial_loss", "threads", "processes", "context", "width", "depth", *(f"extrapolation_{times}" for times in MULTIPLES)),
)
COLUMNS = (
    *("run", "hash", "directory", "arm", "stage", "lr", "seed", "block", "share", "init_seed", "data_seed"),
    *("state", "reason", "detail", "outcome", "loss", "bits_per_byte", "tokens", "steps", "seconds", "tokens_per_second"),
    *("parameters", "training_flops", "unigram_entropy", "initial_loss", "commit", "device", "device_type", "threads", "processes"),
    *("torch", "numpy", "python", "host", "started", "data", "tokenizer", "dtype", "compiled", "context", "width", "depth"),
    *(f"extrapolation_{times}" for times in MULTIPLES),
)
CURVE_COLUMNS = ("run", "step", "tokens", "loss", "lr", "grad_norm", "eval/loss")
POSITION_COLUMNS = ("run", "position", "loss")

NOT_IDENTITY = frozenset(
    {"arch", "imports", "seed", "results_dir", "cache_dir", "threads", "rerun", "progress", "checkpoint", "tracker", "match", "probes"}
    | {"parallel"}
)
"""`ablate.config.Config.not_identity`; importing it would import torch. A test compares the two."""


@dataclass(frozen=True)
class Record:
    """One run. `identity` and `config` are flat (dotted keys); what is not there is empty."""

    name: str
    digest: str
    directory: str  # or an address
    identity: dict[str, Any]
    config: dict[str, Any]
    status: dict[str, Any]
    summary: dict[str, Any]
    starts: list[dict[str, Any]] = field(default_factory=list)  # environment.json
    curve: pd.DataFrame = field(default_factory=pd.DataFrame)  # a row a step

    @property
    def state(self) -> str:
        return str(self.status.get("state", "new"))

    @property
    def says(self) -> dict[str, Any]:
        """What the run is, flat: its identity, or its config where that is lost."""
        return self.identity or self.config

    @property
    def loss(self) -> float | None:
        """The final evaluation, of a run that is done."""
        return number(self.summary.get("eval_loss")) if self.state == "done" else None


class Role(NamedTuple):
    """What a run is to a study."""

    arm: str
    stage: str  # tune, confirm, budget
    lr: float | None
    seed: int
    block: int
    share: float = 1.0  # of the training tokens


# --- reading a directory


def read_record(directory: Path) -> Record:
    """A run directory as far as it goes: a file that is absent, broken or cut counts as far as it can be read."""
    starts = read_json(directory / "environment.json")
    return Record(
        name=directory.name,
        digest=directory.name.rpartition("-")[2],
        directory=str(directory),
        identity=flat(read_object(directory / "identity.json")),
        config={},
        status=read_status(directory),
        summary=read_object(directory / "summary.json"),
        starts=[start for start in starts if isinstance(start, dict)] if isinstance(starts, list) else [],
        curve=curve_of(_rows(directory / "metrics.jsonl")),
    )


def with_config(record: Record) -> Record:
    """What a run is by its config alone, which takes ten times as long to read as its identity."""
    return replace(record, identity={}, config=flat(read_yaml(Path(record.directory) / "config.yaml") or {}))


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return []
    try:  # all lines in one call, which takes two thirds of the time
        rows = json.loads(b"[" + b",".join(lines) + b"]")
    except ValueError:
        return list(metric_rows(lines))
    return [row for row in rows if isinstance(row, dict) and isinstance(row.get("step"), int)]


def curve_of(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """A row a step, its training row and its evaluation together; of two values the later one counts."""
    by_step: dict[int, dict[str, Any]] = {}
    for row in rows:
        by_step.setdefault(row["step"], {}).update(row)
    merged = [by_step[step] for step in sorted(by_step)]
    alike: dict[tuple[str, ...], list[int]] = defaultdict(list)  # keys -> places of the rows that have just these
    for place, row in enumerate(merged):
        alike[tuple(row)].append(place)
    columns = {key: index for index, key in enumerate(dict.fromkeys(key for keys in alike for key in keys))}
    table = np.full((len(merged), len(columns)), np.nan)
    for keys, places in alike.items():
        table[np.ix_(places, [columns[key] for key in keys])] = _numbers([list(merged[place].values()) for place in places])
    frame = pd.DataFrame(table, columns=list(columns))
    return frame.astype({"step": int}) if len(frame) else frame


def _numbers(rows: Sequence[Sequence[Any]]) -> np.ndarray:
    try:
        return np.array(rows, dtype=float)  # None is NaN, and so is "NaN"
    except (TypeError, ValueError):
        return np.array([[number(value) for value in row] for row in rows], dtype=float)


def number(value: Any) -> float | None:
    """A number, also as W&B writes those that JSON has not ("NaN", "Infinity"); None for what is none."""
    if isinstance(value, str):
        return float(value) if value.lstrip("-") in ("NaN", "Infinity") else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


# --- frames


def runs_frame(roles: Sequence[tuple[Record, Role]]) -> pd.DataFrame:
    """A row a run and role, with the columns of COLUMNS."""
    entropies = _entropies(record for record, _ in roles)
    frame = pd.DataFrame([_row(record, role, entropies) for record, role in roles], columns=list(COLUMNS))
    return frame.astype(dict.fromkeys(NUMBERS, float))


def _row(record: Record, role: Role, entropies: Mapping[tuple[Any, Any], float]) -> dict[str, Any]:
    says, status, summary = record.says, record.status, record.summary
    start = record.starts[-1] if record.starts else {}
    entropy = number(summary.get("unigram_entropy"))
    row: dict[str, Any] = {
        "run": record.name,
        "hash": record.digest,
        "directory": record.directory,
        **role._asdict(),
        "init_seed": says.get("init_seed", role.seed),
        "data_seed": says.get("data_seed", role.seed),
        "state": record.state,
        "reason": status.get("reason"),
        "detail": status.get("detail"),
        **{key: number(summary.get(key, status.get(key))) for key in ("tokens", "steps")},
        **{key: number(summary.get(key)) for key in ("bits_per_byte", "seconds", "tokens_per_second", "parameters", "training_flops")},
        "loss": record.loss,
        "unigram_entropy": entropy if entropy is not None else entropies.get(_corpus(record)),
        "initial_loss": _first(record.curve, "loss"),
        **{key: start.get(key) for key in ("commit", "device", "device_type", "python", "host")},
        **{key: number(start.get(key)) for key in ("threads", "processes")},
        **{key: _object(start.get("versions")).get(key) for key in ("torch", "numpy")},
        "started": record.starts[0].get("time") if record.starts else None,
        "data": says.get("data", says.get("data.kind")),
        "tokenizer": _tokenizer(says),
        "dtype": says.get("dtype"),
        "compiled": summary.get("compiled"),
        **{key: number(says.get(f"model.{key}")) for key in ("context", "width", "depth")},
    }
    if record.state != "done":  # what is on the way says how far it is
        row["steps"] = number(status.get("step")) or _last(record.curve, "step")
        row["tokens"] = number(status.get("tokens")) or _last(record.curve, "tokens")
    extrapolation = summary.get("length_extrapolation")
    for times in MULTIPLES:
        row[f"extrapolation_{times}"] = number(extrapolation.get(str(times))) if isinstance(extrapolation, dict) else None
    row["outcome"] = _outcome(record, row)
    return row


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _tokenizer(says: Mapping[str, Any]) -> str | None:
    """Its kind, and its options: two vocabularies of one kind cut text in two ways."""
    kind = says.get("tokenizer.kind")
    options = [
        f"{key.partition('.')[2]}={value}"
        for key, value in sorted(says.items())
        if key.startswith("tokenizer.") and key != "tokenizer.kind"
    ]
    return None if kind is None else " ".join([str(kind), *options])


def _outcome(record: Record, row: Mapping[str, Any]) -> str:
    if record.state == "done" and record.loss is None:  # its summary is lost
        return "incomplete"
    final = record.loss if record.loss is not None else _last(record.curve, "eval/loss")
    return outcome(_losses(record.curve), record.state, record.status.get("reason"), row["initial_loss"], row["unigram_entropy"], final)


def _losses(curve: pd.DataFrame) -> list[float]:
    """Of the steps that have a training row, where a loss that is no number was one that was logged."""
    if "loss" not in curve:
        return []
    logged = curve["lr"].notna() if "lr" in curve else curve["loss"].notna()
    return [float(loss) for loss in curve["loss"][logged]]


def _entropies(records: Iterable[Record]) -> dict[tuple[Any, Any], float]:
    """The unigram entropy of each corpus: runs that did not end lack it, and others of the same corpus know it."""
    found = {}
    for record in records:
        entropy = number(record.summary.get("unigram_entropy"))
        if entropy is not None:
            found[_corpus(record)] = entropy
    return found


def _corpus(record: Record) -> tuple[Any, Any]:
    says = record.says
    return says.get("data", says.get("data.kind")), tuple(sorted((key, str(says[key])) for key in says if key.startswith("tokenizer.")))


def _first(curve: pd.DataFrame, key: str) -> float | None:
    values = curve[key].dropna() if key in curve else pd.Series(dtype=float)
    return float(values.iloc[0]) if len(values) else None


def _last(curve: pd.DataFrame, key: str) -> float | None:
    values = curve[key].dropna() if key in curve else pd.Series(dtype=float)
    return float(values.iloc[-1]) if len(values) else None


def curves_frame(records: Iterable[Record]) -> pd.DataFrame:
    """A row a run and step."""
    tables = [record.curve.copy().assign(run=record.name) for record in records if len(record.curve)]
    frame = pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()
    return frame.reindex(columns=[*CURVE_COLUMNS, *(key for key in frame.columns if key not in CURVE_COLUMNS)])


def positions_frame(records: Iterable[Record]) -> pd.DataFrame:
    """A row a run and bucket of positions, named by its last position."""
    rows = [(record.name, *pair) for record in records for pair in _positions(record.summary.get("loss_by_position"))]
    return pd.DataFrame(rows, columns=list(POSITION_COLUMNS))


def _positions(buckets: Any) -> Iterator[tuple[int, float]]:
    for bucket in buckets if isinstance(buckets, list) else ():
        if isinstance(bucket, dict) and isinstance(bucket.get("to"), int) and (loss := number(bucket.get("loss"))) is not None:
            yield bucket["to"], loss


def better_copy(first: Record, second: Record) -> Record:
    """Of two copies of a run the one that got further; of equals the first."""
    order = ("done", "failed", "running", "stopped", "interrupted", "crashed", "new")

    def place(record: Record) -> tuple[int, int, float]:
        rank = order.index(record.state) if record.state in order else len(order)
        return rank, record.state == "done" and record.loss is None, -(_last(record.curve, "step") or -math.inf)

    return second if place(second) < place(first) else first
