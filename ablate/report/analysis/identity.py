"""identity: the strip of the first screen, and what a reader needs to do it all again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from ablate.report.analysis.shapes import ArmResult, Identity, Margin
from ablate.report.analysis.table import Table
from ablate.report.analysis.words import named
from ablate.report.numbers import duration, setting


def identity_of(table: Table, arms: list[ArmResult], margin: Margin, baseline: ArmResult) -> Identity:
    meta, runs = table.loaded.meta, table.loaded.runs
    rows = table.rows
    rates = (
        f"{len(meta.tuning_rates)} rates, {meta.tuning_rates[0]:g} to {meta.tuning_rates[-1]:g}, on {len(meta.tuning_seeds)} seeds"
        if (meta.tuning_rates)
        else "not tuned: one rate for all arms"
    )
    hours = runs.drop_duplicates("run")["seconds"].sum(min_count=1) / 3600
    tokens = rows["tokens"][(rows["state"] == "done") & (rows["outcome"] == "ok")]
    strip = [
        ("baseline", _baseline(named(baseline, meta.reference))),
        ("budget", f"{_values(tokens)} tokens a run" if tokens.notna().any() else ""),
        ("blocks", str(len({block for arm in arms for block in arm.outcomes}))),
        ("learning rates", rates),
        ("match", meta.match if meta.match != "none" else "none asked for"),
        ("margin", _margin(margin)),
        ("data", _values(rows["data"].astype("string").str[:12])),
        ("commit", _values(rows["commit"])),
        ("date", _dates(runs)),
        ("training", f"{duration(hours)} in {runs['run'].nunique()} runs" if pd.notna(hours) else ""),
    ]
    reproduce = [
        ("command", meta.command or ""),
        ("question", meta.question),
        *((name, _values(rows[column])) for name, column in OF_MACHINE.items() if column in rows),
        *_settings(meta.settings.get(meta.baseline, {})),
        ("data, content hash", _values(rows["data"])),
        ("seeds", ", ".join(map(str, meta.blocks))),
        ("tuning seeds", ", ".join(map(str, meta.tuning_seeds)) or "none"),
    ]
    return Identity([(name, value) for name, value in strip if value], [(name, value) for name, value in reproduce if value])


def _baseline(name: str) -> str:
    """The word is its label already."""
    return name.removeprefix("baseline (").removesuffix(")") if name.startswith("baseline (") else name


def _settings(flat: Mapping[str, Any]) -> list[tuple[str, str]]:
    """section of the baseline's config -> its values; what stands elsewhere, or is not set, is left out."""
    sections: dict[str, list[str]] = {}
    for key, value in flat.items():
        section, _, rest = key.partition(".")
        if rest and value not in (None, {}, "none", math.inf) and key != "optim.lr":
            said = setting(value)
            sections.setdefault(section, []).append(said if rest == "kind" else f"{rest.removesuffix('.kind')} {said}")
    return [(f"baseline, {section}", ", ".join(values)) for section, values in sections.items()]


OF_MACHINE = {
    "commit": "commit",
    "device": "device",
    "threads": "threads",
    "processes": "processes",
    "number format": "dtype",
    "compiled": "compiled",
    "PyTorch": "torch",
    "NumPy": "numpy",
    "Python": "python",
    "tokenizer": "tokenizer",
}


def _margin(margin: Margin) -> str:
    if margin.nats is None:
        return "not known"
    more = [f"{margin.tokens:.1%} of tokens"] if margin.tokens is not None else []
    more += [f"{margin.deviations:.1f} deviations of a pair"] if margin.deviations is not None else []
    return f"±{margin.nats:.4f} nats" + (f" = {', '.join(more)}" if more else "")


def _values(values: pd.Series) -> str:
    distinct = [
        f"{value:,.0f}" if isinstance(value, float) and value.is_integer() else str(value) for value in sorted(values.dropna().unique())
    ]
    return ", ".join(distinct[:4]) + (f" and {len(distinct) - 4} more" if len(distinct) > 4 else "")


def _dates(runs: pd.DataFrame) -> str:
    days = sorted(runs["started"].dropna().astype(str).str[:10].unique())
    return days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}" if days else ""
