"""margin: the smallest difference worth acting on, in nats."""

from __future__ import annotations

from typing import NamedTuple

from ablate.report.analysis.shapes import Margin
from ablate.report.analysis.table import Table
from ablate.report.statistics import Budgets, fit_budgets, margin_from_tokens


class Worth(NamedTuple):
    """What a difference is worth in tokens: the curve of the tuned baseline over whole schedules of several lengths."""

    curve: Budgets | None
    tokens: float | None  # of the runs that are compared
    slope: float | None  # |dL / d ln D| there
    points: list[tuple[float, float]]  # tokens, mean loss over the blocks that all budgets have


def worth_of(table: Table) -> Worth:
    """From the budgets of the study's baseline; nothing where it has none that ended."""
    meta, runs = table.loaded.meta, table.loaded.runs
    own = runs[(runs["arm"] == meta.baseline) & runs["stage"].isin(["confirm", "budget"]) & (runs["outcome"] == "ok")]
    by_tokens = {float(tokens): dict(zip(rows["block"], rows["loss"], strict=True)) for tokens, rows in own.groupby("tokens")}
    usual = own[own["stage"] == "confirm"]["tokens"]
    if len(by_tokens) < 2 or usual.empty or table.metric != "nats per token":
        return Worth(None, None, None, [])
    blocks = set.intersection(*(set(losses) for losses in by_tokens.values()))
    if not blocks:
        return Worth(None, None, None, [])
    points = [(tokens, sum(losses[block] for block in blocks) / len(blocks)) for tokens, losses in sorted(by_tokens.items())]
    try:
        curve = fit_budgets([tokens for tokens, _ in points], [loss for _, loss in points])
        slope = curve.slope(float(usual.iloc[0]))
    except ValueError:  # more tokens did not help, so no difference is worth any
        return Worth(None, None, None, points)
    return Worth(curve, float(usual.iloc[0]), slope, points)


def margin_of(table: Table, worth: Worth, given: float | None, pair_sd: float | None) -> Margin:
    """As the study states it; `given` on the command line replaces it, and is said to."""
    meta = table.loaded.meta
    share = None if given is not None or meta.margin_nats is not None else meta.margin_tokens
    nats = given if given is not None else meta.margin_nats
    stated = (
        f"±{meta.margin_nats:g} nats"
        if meta.margin_nats is not None
        else f"{meta.margin_tokens:.0%} of the tokens"
        if meta.margin_tokens
        else "none"
    )
    told = f"given when the report was written; the study states {stated}" if given is not None else "as the study states it"
    if share is not None and worth.slope is not None:
        nats = margin_from_tokens(share, worth.slope)
        told = f"what {share:.0%} of the training tokens are worth to the baseline, {worth.slope:.3f} nats per e-fold of tokens"
    elif share is not None and len(worth.points) > 1:
        told = f"{share:.0%} of the training tokens, which are worth nothing here: the baseline's loss did not fall with more of them"
    elif share is not None:
        told = (
            f"{share:.0%} of the training tokens, which are not known in nats: the study has no budgets that have ended; "
            "without it no arm can be called EQUIVALENT"
        )
    elif nats is None:
        told = "none was stated; without it no arm can be called EQUIVALENT (--margin NATS states one)"
    if nats is not None and table.metric == "nats per byte":
        nats *= tokens_per_byte(table)
        told += f"; {nats:.4f} nats per byte, as the baseline cuts text"
    deviations = nats / pair_sd if nats is not None and pair_sd else None
    return Margin(nats, share if share is not None else _in_tokens(nats, worth.slope), deviations, told, worth.slope, given is not None)


def tokens_per_byte(table: Table) -> float:
    """Of the baseline, from its losses in both."""
    rows = table.of(table.loaded.meta.baseline)
    fine = rows[(rows["state"] == "done") & (rows["loss"] > 0)]
    return float((fine["metric"] / fine["loss"]).mean()) if len(fine) else 1.0


def _in_tokens(nats: float | None, slope: float | None) -> float | None:
    import math

    return math.expm1(nats / slope) if nats is not None and slope else None
