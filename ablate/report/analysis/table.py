"""table: the runs of a study by arm and block, as the statistics want them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ablate.errors import ConfigError
from ablate.report.load import ArmMeta, Loaded

FAILED = ("nan", "diverged", "collapsed")
"""Outcomes without a loss that may be averaged."""

SIZES = ("scale", "model", "train", "data", "eval")
"""What two arms must share to be compared: the other axes are what is compared."""


@dataclass(frozen=True)
class Table:
    """`rows` are the confirmation runs, whose `metric` is a loss; an arm is compared within its `stratum`, with that one's baseline."""

    loaded: Loaded
    rows: pd.DataFrame
    metric: str
    strata: dict[str, str]  # arm -> stratum, "" where sizes are no axis
    baselines: dict[str, str]  # stratum -> arm
    by_arm: dict[str, pd.DataFrame]
    alone: dict[str, str]  # arm that has no baseline of its size -> that size; it stands with the others, and is not compared

    def baseline_of(self, arm: str) -> str:
        return self.baselines[self.strata[arm]]

    def arms(self, stratum: str) -> list[str]:
        return [arm for arm, own in self.strata.items() if own == stratum]

    def of(self, arm: str) -> pd.DataFrame:
        return self.by_arm.get(arm, self.rows.iloc[:0])

    def losses(self, arm: str) -> dict[int, float]:
        """block -> loss of the runs that have a result and did not fail."""
        rows = self.of(arm)
        fine = rows[(rows["state"] == "done") & ~rows["outcome"].isin(FAILED) & rows["metric"].notna()]
        return {int(block): float(loss) for block, loss in zip(fine["block"], fine["metric"], strict=True)}

    def outcomes(self, arm: str) -> dict[int, str]:
        rows = self.of(arm)
        return {int(block): str(outcome) for block, outcome in zip(rows["block"], rows["outcome"], strict=True)}

    def failures(self, arm: str) -> tuple[int, int]:
        """How many of the runs that have ended have failed, and how many have ended."""
        outcomes = [outcome for outcome in self.outcomes(arm).values() if outcome != "incomplete"]
        return sum(outcome in FAILED for outcome in outcomes), len(outcomes)


def table_of(loaded: Loaded, blocks: int | None = None) -> Table:
    """The confirmation runs, of the first `blocks` blocks where a look is before the end."""
    rows = loaded.runs[loaded.runs["stage"] == "confirm"].copy()
    if blocks is not None:
        rows = rows[rows["block"].isin(loaded.meta.blocks[:blocks])]
    rows = rows.drop_duplicates(["arm", "block"], keep="last")
    rows["metric"], metric = _metric(rows)
    strata = _strata(loaded.meta.arms)
    baselines, alone = _baselines(loaded, strata)
    strata |= dict.fromkeys(alone, strata[loaded.meta.baseline])
    by_arm = {str(arm): own for arm, own in rows.groupby("arm")}
    return Table(loaded, rows, metric, strata, baselines, by_arm, alone)


def _metric(rows: pd.DataFrame) -> tuple[pd.Series, str]:
    """Nats per token; per byte where arms cut text otherwise, since their tokens are not the same thing."""
    if rows["tokenizer"].dropna().nunique() <= 1:
        return rows["loss"].astype(float), "nats per token"
    done = rows[rows["state"] == "done"]
    if done["bits_per_byte"].isna().any():
        kinds = ", ".join(sorted(rows["tokenizer"].dropna().unique()))
        raise ConfigError.at(
            "tokenizer", f"runs have different ones ({kinds}) and not all know their bytes: their losses cannot be compared"
        )
    return rows["bits_per_byte"].astype(float) * math.log(2), "nats per byte"


def _is_size(axis: str) -> bool:
    return _root(axis) in SIZES


def _root(axis: str) -> str:
    return axis.replace("/", ".").partition(".")[0]


def _strata(arms: Sequence[ArmMeta]) -> dict[str, str]:
    """Data go by a hash of their tokens: where each way to cut text has one, that is no axis of its own."""
    texts: dict[tuple[tuple[str, str], ...], set[str | None]] = defaultdict(set)
    for arm in arms:
        texts[tuple(sorted((axis, value) for axis, value in arm.levels.items() if _root(axis) == "tokenizer"))].add(arm.levels.get("data"))
    several = any(len(found) > 1 for found in texts.values())
    return {
        arm.name: " ".join(
            f"{axis}={value}" for axis, value in sorted(arm.levels.items()) if _is_size(axis) and (several or _root(axis) != "data")
        )
        for arm in arms
    }


def _baselines(loaded: Loaded, strata: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Of each stratum the arm that is the baseline in all that is no size, and the arms of strata that have none."""
    arms = {arm.name: arm for arm in loaded.meta.arms}
    own = _choices(arms[loaded.meta.baseline])
    found: dict[str, str] = {strata[loaded.meta.baseline]: loaded.meta.baseline}
    for name, stratum in strata.items():
        if _choices(arms[name]) == own:
            found.setdefault(stratum, name)
    return found, {name: stratum for name, stratum in strata.items() if stratum not in found}


def _choices(arm: ArmMeta) -> dict[str, Any]:
    return {axis: value for axis, value in arm.levels.items() if not _is_size(axis)}


def choice(arm: ArmMeta) -> str:
    """What an arm changes, without its size."""
    return " ".join(f"{axis}={value}" for axis, value in _choices(arm).items()) or arm.name
