"""guards: what forbids a conclusion, and what a reader has to know before drawing one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from ablate.report.analysis.arms import OF_MATCH, TOLERANCE
from ablate.report.analysis.shapes import ArmResult, Banner, Margin, Noise
from ablate.report.analysis.table import Table
from ablate.report.statistics import Family

MOST_NAMED = 6


def banners(table: Table, arms: list[ArmResult], families: list[Family], margin: Margin, stage: str, noise: Noise) -> list[Banner]:
    """Red: no conclusion before that is mended. Amber: a conclusion, with that in mind."""
    found = [*_tuning(arms), *_matching(table, arms), *_again(table, arms), *_mixed(table), *_missing(table), *_failures(arms)]
    found += [Banner("amber", f"margin: {margin.told}")] if len(arms) > 1 and (margin.nats is None or margin.given) else []
    found += _power(arms, margin, noise)
    found += [Banner("amber", stage)] if stage != "final" else []
    found += [
        Banner("amber", f"{arm} is left out of the pooled noise and judged by its own: {reason}")
        for family in families
        if family.is_pooled
        for arm, reason in family.left_pool.items()
    ]
    meta = table.loaded.meta
    found += [Banner("amber", text) for text in (*meta.deviations, *(() if meta.source == "study" else meta.notes))]
    return sorted(found, key=lambda banner: banner.severity != "red")


def _power(arms: list[ArmResult], margin: Margin, noise: Noise) -> Iterator[Banner]:
    """Where an arm is left open: whether so many blocks could have closed it."""
    if margin.nats is None or noise.certifiable is None or noise.certifiable <= margin.nats:
        return
    if any(arm.judgement is not None and arm.judgement.verdict.word == "INCONCLUSIVE" for arm in arms):
        blocks = max(len(arm.differences) for arm in arms)
        yield Banner(
            "amber",
            f"{blocks} blocks are few for this margin: with 80 % power they show equivalence within ±{noise.certifiable:.2g} nats, "
            f"not within ±{margin.nats:.2g}",
        )


def _tuning(arms: list[ArmResult]) -> Iterator[Banner]:
    edges = [f"{arm.name} ({arm.lr:g}, the {arm.lr_edge} end)" for arm in arms if arm.lr_edge and arm.lr is not None]
    if edges:
        yield Banner("red", f"the best learning rate is at an end of the grid, so a better one may lie beyond it: {', '.join(edges)}")


def _matching(table: Table, arms: list[ArmResult]) -> Iterator[Banner]:
    meta = table.loaded.meta
    bound = meta.tolerance if meta.tolerance is not None else TOLERANCE
    far = [f"{arm.name} {arm.match_error:+.1%}" for arm in arms if arm.match_error is not None and abs(arm.match_error) > bound]
    if far:
        yield Banner("red", f"arms are to be equal in {meta.match} within {bound:.1%}, and are not: {', '.join(far)}")
    if meta.match in OF_MATCH:
        return
    by_name = {arm.name: arm for arm in arms}
    for what, attribute in (("parameters", "parameters"), ("FLOPs a token", "flops_per_token")):
        sizes = {arm.name: _ratio(arm, by_name[table.baseline_of(arm.name)], attribute) for arm in arms}
        unequal = [f"{name} {ratio - 1:+.1%}" for name, ratio in sizes.items() if ratio is not None and abs(ratio - 1) > TOLERANCE]
        if unequal:
            yield Banner("amber", f"no match was asked for, and arms differ from the baseline in {what}: {_some(unequal)}")


def _ratio(ours: ArmResult, theirs: ArmResult, attribute: str) -> float | None:
    top, bottom = getattr(ours, attribute), getattr(theirs, attribute)
    return top / bottom if top is not None and bottom else None


def _again(table: Table, arms: list[ArmResult]) -> Iterator[Banner]:
    """Arms that are the baseline once more must not be told from it."""
    offsets = table.loaded.meta.seed_offsets
    for arm in arms:
        if arm.name in offsets and arm.judgement is not None and arm.judgement.verdict.word in ("BETTER", "WORSE"):
            word = arm.judgement.verdict.word
            yield Banner("red", f"{arm.name} is the baseline on other seeds and was called {word}: chance does that once in twenty studies")


def _mixed(table: Table) -> Iterator[Banner]:
    """What all runs that are compared must share."""
    rows = table.rows[table.rows["state"] == "done"]
    rows = rows.assign(data=_data(rows))
    for column, noun, severity in (
        ("commit", "commits of this code", "red"),
        ("data", "data", "red"),
        ("tokenizer", "tokenizers; the loss is nats per byte, and whether their text is the same is not told by their data", "amber"),
        ("dtype", "number formats", "amber"),
        ("device", "devices, so their runs' speeds cannot be compared", "amber"),
        ("compiled", "ways to run the model (eager and compiled), so their runs' speeds cannot be compared", "amber"),
        ("torch", "versions of PyTorch", "amber"),
        ("processes", "numbers of processes a run", "amber"),
    ):
        counts = rows[column].dropna().astype(str).value_counts() if column in rows else pd.Series(dtype=int)
        if column == "data" and any("data" in meta.levels for meta in table.loaded.meta.arms):
            continue
        if len(counts) > 1:
            told = _some([f"{_short(column, value)} ({count} runs)" for value, count in counts.items()])
            yield Banner(severity, f"runs have different {noun}: {told}")
    dirty = rows["commit"].dropna().astype(str)
    if dirty.str.endswith("-dirty").any():
        yield Banner("amber", f"{int(dirty.str.endswith('-dirty').sum())} runs were trained with changes that are in no commit")


def _data(rows: pd.DataFrame) -> pd.Series:
    """The hash is of tokens: where each way to cut text has one, all may be of the same text."""
    one_each = (rows.groupby("tokenizer")["data"].nunique() <= 1).all() and rows["tokenizer"].nunique() > 1
    return pd.Series(None, index=rows.index, dtype=object) if one_each else rows["data"]


def _short(column: str, value: Any) -> str:
    return str(value)[:12] if column == "data" else str(value)


def _missing(table: Table) -> Iterator[Banner]:
    names = missing(table)
    meta = table.loaded.meta
    if names:
        yield Banner("red", f"{len(names)} of {len(table.loaded.runs)} runs have no result: {_some(names)}")
    if meta.later:
        yield Banner("red", f"{meta.later} more runs follow once the learning rates are known: nothing here is final")


def missing(table: Table) -> list[str]:
    """Runs that the study has asked for and that have not ended, or have lost their result."""
    runs = table.loaded.runs
    lost = (runs["state"] == "done") & (runs["outcome"] == "incomplete")
    open_runs = runs[~runs["state"].isin(["done", "failed"]) | lost]
    return [f"{row.run} ({'lost' if row.state == 'done' else row.state})" for row in open_runs.itertuples()]


def _failures(arms: list[ArmResult]) -> Iterator[Banner]:
    bad = [f"{arm.name} {arm.failed}/{arm.ended}" for arm in arms if arm.failed]
    if bad:
        yield Banner("amber", f"runs failed at the chosen learning rate: {', '.join(bad)}; failures are outcomes and in no mean")


def _some(names: list[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
