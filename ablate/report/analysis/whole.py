"""whole: what a study says beyond its single arms: noise, effects of factors, the steps of a ladder, sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ablate.report.analysis.shapes import ArmResult, Effect, Noise, Scale, Span, Step
from ablate.report.analysis.table import Table, choice
from ablate.report.statistics import (
    PowerLaw,
    blocks_to_certify,
    blocks_to_find,
    effects,
    holm,
    ladder,
    pooled_deviation,
    power_law,
    rank_stability,
    smallest_certifiable,
    smallest_detectable,
)

FACTORIAL = ("grid", "fractional")
DIFFERENCES = (0.002, 0.005, 0.01, 0.02, 0.05)
"""In nats, of the table of blocks."""
LEAST_SIZES = 4
POOLED_BELOW = 6
"""Blocks from which on each arm's own noise is used."""


def pair_noise(arms: list[ArmResult]) -> tuple[float, int] | None:
    """The pooled deviation of a paired difference, and its degrees of freedom."""
    return pooled_deviation([list(arm.differences.values()) for arm in arms if not arm.is_baseline])


def noise_of(table: Table, arms: list[ArmResult], margin: float | None, alpha: float) -> Noise:
    compared = [arm for arm in arms if not arm.is_baseline]
    pooled = pair_noise(arms)
    deviation, df = pooled if pooled is not None and pooled[0] > 0 else (None, 0)
    blocks = max((len(arm.differences) for arm in compared), default=0)
    first = alpha / max(1, len(compared))
    used = df if blocks < POOLED_BELOW else blocks - 1
    rhos = [arm.rho for arm in compared if arm.rho is not None]
    sizes = sorted({*DIFFERENCES, *([margin] if margin else [])})
    return Noise(
        seed_sd={arm.name: arm.sd for arm in arms if arm.sd is not None},
        pair_sd=deviation,
        pair_df=df,
        detectable=_finite(smallest_detectable(blocks, used, alpha=first), deviation),
        certifiable=_finite(smallest_certifiable(blocks, used), deviation),
        blocks_table=[(size, blocks_to_find(size / deviation, first, 0.8), blocks_to_certify(size / deviation)) for size in sizes]
        if deviation
        else [],
        again=[arm.sentence for arm in compared if arm.name in table.loaded.meta.seed_offsets],
        rho=math.fsum(rhos) / len(rhos) if rhos else None,
    )


def _finite(deviations: float | None, deviation: float | None) -> float | None:
    return deviations * deviation if deviation is not None and deviations is not None and math.isfinite(deviations) else None


def effects_of(table: Table) -> tuple[list[Effect], list[tuple[str, str]]]:
    """Main effects and interactions of two axes on the blocks that every arm has, and the pairs of axes that cannot be told apart.

    Nothing of a design that is not factorial, or where sizes are an axis.
    """
    meta = table.loaded.meta
    if meta.design not in FACTORIAL or len(table.baselines) > 1:
        return [], []
    arms = [arm for arm in meta.arms if table.losses(arm.name)]
    varied = [axis for axis in (arms[0].levels if arms else {}) if len({arm.levels.get(axis) for arm in arms}) > 1]
    blocks = set.intersection(*(set(table.losses(arm.name)) for arm in arms)) if arms else set()
    if len(varied) < 2 or len(blocks) < 2:
        return [], []
    cells = [(arm, block) for arm in arms for block in sorted(blocks)]
    levels = [{axis: str(arm.levels.get(axis)) for axis in varied} for arm, _ in cells]
    try:
        found = effects(levels, [table.losses(arm.name)[block] for arm, block in cells], [block for _, block in cells])
    except ValueError:  # the cells that are left do not tell the axes apart
        return [], []
    told = {_name(effect.axes, effect.levels): effect for effect in (*found.main, *found.interactions)}
    corrected = holm({name: effect.p for name, effect in told.items() if effect.p is not None})
    return [
        Effect(
            name, "main" if len(effect.axes) == 1 else "interaction", effect.mean, effect.low, effect.high, effect.p, corrected.get(name)
        )
        for name, effect in told.items()
    ], list(found.aliased)


def _name(axes: Sequence[str], levels: Sequence[str]) -> str:
    return " \N{MULTIPLICATION SIGN} ".join(f"{axis}={level}" for axis, level in zip(axes, levels, strict=True))


def ladder_of(table: Table) -> list[Step]:
    """Each arm of a ladder less the one before it, over the blocks that all of them have; nothing until there is such a block."""
    meta = table.loaded.meta
    if meta.design != "ladder":
        return []
    try:
        return [Step(*rung) for rung in ladder({arm.name: table.losses(arm.name) for arm in meta.arms})]
    except ValueError:
        return []


def scale_of(table: Table, arms: list[ArmResult]) -> Scale | None:
    """Whether arms keep their order from size to size, and how their losses fall; of one size nothing."""
    strata = [stratum for stratum in table.baselines if stratum]
    if len(strata) < 2:
        return None
    metas = {meta.name: meta for meta in table.loaded.meta.arms}
    by_name = {arm.name: arm for arm in arms}
    work = {stratum: metas[table.baselines[stratum]].flops or math.nan for stratum in strata}
    strata.sort(key=lambda stratum: work[stratum])
    changes = list(dict.fromkeys(choice(meta) for meta in table.loaded.meta.arms))
    places = {(choice(metas[name]), stratum): name for name, stratum in table.strata.items() if name not in table.alone}
    names = {change: [places.get((change, stratum)) for stratum in strata] for change in changes}
    losses = {change: [by_name[name].mean if name else None for name in row] for change, row in names.items()}
    per_block = {
        change: {stratum: table.losses(name) for stratum, name in zip(strata, row, strict=True) if name} for change, row in names.items()
    }
    places_of = {stratum: float(index) for index, stratum in enumerate(strata)}  # names in the order of their FLOPs
    numbered = {change: {places_of[stratum]: row[stratum] for stratum in row} for change, row in per_block.items()}
    flops = [work[stratum] for stratum in strata]
    differences = {change: _differences(strata, row, by_name) for change, row in names.items()}
    return Scale(strata, flops, losses, differences, _stability(numbered, strata), _curves(flops, losses))


def _differences(strata: list[str], names: list[str | None], arms: dict[str, ArmResult]) -> dict[str, Span]:
    found = {}
    for stratum, name in zip(strata, names, strict=True):
        judgement = arms[name].judgement if name else None
        if judgement is not None and (contrast := judgement.contrast) is not None:
            found[stratum] = Span(contrast.mean, contrast.low, contrast.high)
    return found


def _stability(losses: dict[str, dict[float, dict[int, float]]], names: list[str]) -> list[tuple[str, str, Span, float]]:
    try:
        found = rank_stability({change: {size: blocks for size, blocks in row.items() if blocks} for change, row in losses.items()})
    except ValueError:
        return []
    return [(names[int(pair.small)], names[int(pair.large)], Span(pair.tau, pair.low, pair.high), pair.accuracy) for pair in found]


def _curves(flops: list[float], losses: dict[str, list[float | None]]) -> dict[str, PowerLaw]:
    """Power laws of the loss in training FLOPs, where four sizes leave a residual to look at."""
    curves = {}
    for change, row in losses.items():
        known = [(work, loss) for work, loss in zip(flops, row, strict=True) if loss is not None and math.isfinite(work)]
        if len(known) < max(LEAST_SIZES, len(flops)):
            continue
        try:
            curves[change] = power_law([work for work, _ in known], [loss for _, loss in known])
        except ValueError:
            continue
    return curves
