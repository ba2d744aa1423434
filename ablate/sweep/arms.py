"""arms: what a design makes of a study, and the names that arms get."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, count
from typing import NamedTuple

from ablate.composition import OF_ARCHITECTURE
from ablate.sweep.study import RESERVED, Study, as_text, over

OF_REFERENCE = (OF_ARCHITECTURE | {"arch"}) - {"match"}
"""What of a baseline says how large it is."""

Refused = Callable[[Sequence[str]], str | None]
"""Why some overrides together make no config, or None if they do."""


class Arm(NamedTuple):
    """One set of variants: `overrides` go over study.set. Block b runs with the seed b + seed_offset."""

    name: str
    overrides: tuple[str, ...]
    levels: dict[str, str]  # axis or change -> what this arm has there, for tables and interaction plots
    seed_offset: int = 0


class Arms(NamedTuple):
    """The arms, first the one that the others are compared with."""

    arms: tuple[Arm, ...]
    baseline: str
    dropped: tuple[tuple[tuple[str, ...], str], ...] = ()  # combinations that cannot be had, and why
    notes: tuple[str, ...] = ()  # what a reader of the plan has to know


def match_overrides(study: Study, baseline: Arm) -> list[str]:
    """What makes each arm as large as the baseline arm, as overrides for conf/match; nothing for match.kind=none.

    The reference is the baseline's architecture at the arm's own scale and data.
    """
    rule = study.match
    if rule.kind == "none":
        return []
    architecture = [text for text in over(study.set, baseline.overrides) if re.split(r"[=.@/]", text.lstrip("+~"))[0] in OF_REFERENCE]
    words = [f"match={rule.kind}"]
    words += [f"match.{key}={value}" for key, value in (("tolerance", rule.tolerance), ("solve", rule.solve)) if value is not None]
    return [*words, f"match.reference='{' '.join(architecture)}'"] if architecture else words


Cell = dict[str, str]
"""axis -> value, as texts."""

Dropped = list[tuple[tuple[str, ...], str]]


def axes_of(study: Study) -> dict[str, list[str]]:
    """The axes, their values as they stand in overrides."""
    return {key: [as_text(value) for value in values] for key, values in (study.axes or {}).items()}


def overrides_of(cell: Cell) -> tuple[str, ...]:
    return tuple(f"{key}={value}" for key, value in cell.items())


def names_of(cells: Sequence[Cell], axes: Mapping[str, Sequence[str]]) -> list[str]:
    """A file name for each cell: its values, with their keys where a value alone says too little."""
    taken = {*RESERVED}
    names = []
    for cell in cells:
        name = "+".join(_word(key, value, axes) for key, value in cell.items())[:90]
        names.append(next(free for free in chain([name], (f"{name}.{n}" for n in count(2))) if free.lower() not in taken))
        taken.add(names[-1].lower())
    return names


def _word(key: str, value: str, axes: Mapping[str, Sequence[str]]) -> str:
    elsewhere = any(value in values for other, values in axes.items() if other != key)
    if re.match(r"[A-Za-z]", value) and value.lower() not in ("none", "null", "true", "false") and not elsewhere:
        return _safe(value)
    last = [re.split(r"[./]", other)[-1] for other in axes]
    mine = re.split(r"[./]", key)[-1]
    return f"{mine if last.count(mine) == 1 else _safe(key)}_{_safe(value)}"


def _safe(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text).strip("_")
