"""table: the runs of a study by arm and block, as the statistics want them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ablate.errors import ConfigError
from ablate.report.load import ArmMeta, Loaded

FAILED = ("nan", "diverged", "collapsed")
"""Outcomes without a loss that may be averaged."""

SIZES = ("scale", "model", "train", "data", "tokenizer", "eval")
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
    strata = {arm.name: _stratum(arm) for arm in loaded.meta.arms}
    by_arm = {str(arm): own for arm, own in rows.groupby("arm")}
    return Table(loaded, rows, metric, strata, _baselines(loaded, strata), by_arm)


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
    return axis.replace("/", ".").partition(".")[0] in SIZES


def _stratum(arm: ArmMeta) -> str:
    return " ".join(f"{axis}={value}" for axis, value in sorted(arm.levels.items()) if _is_size(axis) and axis != "tokenizer")


def _baselines(loaded: Loaded, strata: Mapping[str, str]) -> dict[str, str]:
    """Of each stratum the arm that is the baseline in all that is no size; of one without, its first arm."""
    arms = {arm.name: arm for arm in loaded.meta.arms}
    own = _choices(arms[loaded.meta.baseline])
    found: dict[str, str] = {strata[loaded.meta.baseline]: loaded.meta.baseline}
    for name, stratum in strata.items():
        if _choices(arms[name]) == own:
            found.setdefault(stratum, name)
    for name, stratum in strata.items():
        found.setdefault(stratum, name)
    return found


def _choices(arm: ArmMeta) -> dict[str, Any]:
    return {axis: value for axis, value in arm.levels.items() if not _is_size(axis) or axis == "tokenizer"}


def choice(arm: ArmMeta) -> str:
    """What an arm changes, without its size."""
    return " ".join(f"{axis}={value}" for axis, value in _choices(arm).items()) or arm.name
